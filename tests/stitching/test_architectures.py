"""Theorem 4.2 and the stitched network itself on architectures that people use, against other ways to compute them."""

import copy

import pytest
import torch
from torch import nn
from zoo import build

import intertwine as iw
from intertwine.stitching import Fixed, Pair, stream_moments
from intertwine.stitching.closed_form import least_squares

EXACT = [
    "mlp_powers", "resnet14_b", "densenet", "mobilenet", "shufflenet_2", "senet", "unet", "weight_norm", "gpt_tied",
    "vit_sdpa", "cct", "lstm", "convnext",
]  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_a_symmetric_copy_is_stitched_exactly_wherever_nothing_crosses_beside_the_tap(name):
    """Theorem 4.2: whatever the group at a layer is, the map that carries A's features to B's gives A's outputs."""
    model, (x,) = build(name)
    sym = iw.symmetries(model, x)
    twin = sym.act(sym.random(seed=0), model)
    pair, truth = Pair(model, twin, (x,)), model(x)
    truth = truth[0] if isinstance(truth, tuple) else truth
    cuts = [cut for cut in (pair.cut(layer) for layer in pair.layers()) if not cut.inside_block]
    assert cuts
    for cut, (moments, *_) in zip(cuts, stream_moments(pair, cuts, [(x,)])):
        net = cut.stitch(Fixed(least_squares(moments), channel_dim=cut.tap.channel_dim))
        torch.testing.assert_close(net(x), truth, rtol=1e-7, atol=1e-7)


def behind(model, tap, x):
    """Modules with weights whose output moves when the tap's output is moved, and by hand: no graph, only hooks."""
    leaves = {name: m for name, m in model.named_modules() if list(m.parameters(recurse=False))}

    def outputs(shift):
        found = {}
        hooks = [m.register_forward_hook(lambda *a, n=n: found.__setitem__(n, a[2].clone())) for n, m in leaves.items()]
        hooks.append(model.get_submodule(tap).register_forward_hook(lambda *a: a[2] + shift))
        model(x)
        for hook in hooks:
            hook.remove()
        return found

    moved, still = outputs(0.1), outputs(0.0)
    return [name for name in leaves if name != tap and not torch.equal(moved[name], still[name])]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_resnet_with_projected_shortcuts_is_stitched_as_by_hand_at_every_layer(training):
    """What the tap moves is B's, everything else A's, projections of the skip too; statistics of batch norm as well."""
    (a, (x,)), (b, _) = build("resnet14_b", seed=0), build("resnet14_b", seed=1)
    pair = Pair(a, b, (x,))
    starred, modules = 0, dict(a.named_modules())
    # behind an identity the value is that in front of it, which a hook there does not move for its other readers
    every = [name for name in pair.layers() if name in modules and not isinstance(modules[name], nn.Identity)]
    for layer in every[:: 3 + training]:
        cut = pair.cut(layer)
        starred += cut.inside_block
        mixed = copy.deepcopy(a)
        names = behind(a, layer, x)
        for name in names:
            parent, _, own = name.rpartition(".")
            setattr(mixed.get_submodule(parent), own, copy.deepcopy(b.get_submodule(name)))
            mixed.get_submodule(name).train(training)
        net = cut.stitch(Fixed(torch.eye(cut.tap.c_out, dtype=x.dtype)), tail_norm="train" if training else "eval")
        net.train(training)
        for _ in range(2):
            torch.testing.assert_close(net(x), mixed(x), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(net.eval()(x), mixed.eval()(x), rtol=1e-9, atol=1e-9)
    assert starred > 3


class Looped(nn.Module):
    """One layer and one ReLU in place that run three times, and a head that shares the first layer's weight."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.relu, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.ReLU(inplace=True), None
        self.head = nn.Linear(6, 6)
        self.head.weight = self.again.weight

    def forward(self, x):
        x = self.relu(self.first(x))
        for _ in range(3):
            x = self.relu(self.again(x))
        return self.head(x)


def test_calls_of_a_loop_are_cut_one_by_one_and_tied_weights_belong_to_their_network():
    torch.manual_seed(0)
    a, b, x = Looped().double(), Looped().double(), torch.randn(9, 4, dtype=torch.float64)
    pair, matrix = Pair(a, b, x), torch.randn(6, 6, dtype=torch.float64)
    for k in range(4):
        h = torch.relu(a.first(x))
        for step in range(4):
            if step == k:
                h = h @ matrix.T
            if step < 3:
                h = torch.relu((a if step < k else b).again(h))
        torch.testing.assert_close(pair.cut(f"relu#{k}").stitch(Fixed(matrix))(x), b.head(h))
    with pytest.raises(ValueError, match="which runs 4 times"):
        pair.cut("relu")
