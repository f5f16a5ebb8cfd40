import gate_models
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

import intertwine as iw


def oracle(model, x, y, names=None):
    """The definition: whole Jacobians, contracted."""
    model.eval()
    state = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    chosen = {n: state[n] for n in (names or dict(model.named_parameters()))}
    f = lambda p, example: functional_call(model, {**state, **p}, (example[None],))[0]
    jacobians = [
        torch.cat([j.flatten(2) for j in vmap(jacrev(f), (None, 0))(chosen, z).values()], 2).detach() for z in (x, y)
    ]
    return torch.einsum("nop,mkp->nmok", *jacobians)


def equal(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


class Odd(nn.Module):
    """A layer used twice, a parameter of its own, tokens, groups, dilation and activations in place."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding="same", dilation=2, groups=2)
        self.twice = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm2d(4)
        self.token = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0, -1.0]))
        self.conv1 = nn.Conv1d(3, 2, 2, stride=2)

    def forward(self, x):
        x = self.twice(self.norm(self.twice(self.conv(x).relu_())).relu_())
        x = self.token(x.flatten(2).transpose(1, 2)) * self.scale
        return self.conv1(x.transpose(1, 2)).mean(-1)


def odd():
    torch.manual_seed(0)
    model = Odd().double().eval()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    return model, torch.randn(5, 2, 4, 4, dtype=torch.float64)


@pytest.mark.parametrize("method", ["layers", "jacobian", "products"])
@pytest.mark.parametrize(
    "name", ["mlp, biases", "conv 2d GAP", "strided, no pooling", "residual conv, batch norm", "max pooling"]
)
def test_every_method_gives_the_definition(name, method):
    model, x = gate_models.make(name), gate_models.inputs(name)
    equal(iw.gates.neural_tangent_kernel(model, x, x[:4], method=method), oracle(model, x, x[:4]))
    equal(iw.gates.neural_tangent_kernel(model, x, method=method), oracle(model, x, x))


@pytest.mark.parametrize("kind", ["full", "per_output", "trace"])
@pytest.mark.parametrize("method", ["auto", "jacobian", "products"])
def test_kinds_on_a_network_with_everything(kind, method):
    model, x = odd()
    full = oracle(model, x, x)
    diagonal = full.diagonal(dim1=2, dim2=3)
    expected = {"full": full, "per_output": diagonal, "trace": diagonal.sum(-1)}[kind]
    equal(iw.gates.neural_tangent_kernel(model, x, kind=kind, method=method), expected)


@pytest.mark.parametrize("ghost", [True, False])
def test_both_ways_to_do_a_convolution(ghost, monkeypatch):
    monkeypatch.setattr(
        "intertwine.gates._layer_signals.Layer._pairs_are_cheaper", lambda s, *_: ghost and s.groups == 1
    )
    model, x = odd()
    for kind in ("full", "trace", "per_output"):
        equal(
            iw.gates.neural_tangent_kernel(model, x, x[:2], kind=kind),
            iw.gates.neural_tangent_kernel(model, x, x[:2], kind=kind, method="products"),
        )


@pytest.mark.parametrize("kind", ["full", "trace"])
def test_what_is_kept_and_what_is_run_again_give_the_same(kind, monkeypatch):
    """A few examples at a time: once with Jacobians or signals kept, once tile by tile, for one side and for two."""
    module = "intertwine.gates.tangent_kernel"
    model, x = odd()
    expected = [iw.gates.neural_tangent_kernel(model, x, *y, kind=kind, method="products") for y in ((), (x[:3],))]
    for few, forbidden in ((2, "_by_tiles"), (16, "_keep")):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}._FEW", few)
            patch.setattr(f"{module}.{forbidden}", None)
            memory = 2**30 if few == 2 else 1.0
            for y, right in zip(((), (x[:3],)), expected):
                equal(iw.gates.neural_tangent_kernel(model, x, *y, kind=kind, memory=memory), right)


def test_memory_changes_nothing():
    model, x = odd()
    expected = oracle(model, x, x)
    equal(iw.gates.neural_tangent_kernel(model, x, memory=1.0), expected)
    equal(iw.gates.neural_tangent_kernel(model, x, memory=1.0, method="jacobian"), expected)


def test_blocks_of_channels_never_skip_one(monkeypatch):
    """Groups of three channels, done two at a time."""
    monkeypatch.setattr("intertwine.gates.tangent_kernel._examples_at_once", lambda *_: 100)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)).double()
    x = torch.randn(4, 2, 4, 4, dtype=torch.float64)
    row = 2 * (4 + 4) * 9 * 8
    equal(iw.gates.neural_tangent_kernel(model, x, memory=2 * 2 * row), oracle(model, x, x))


def test_some_of_the_parameters():
    model, x = odd()
    names = ["twice.weight", "norm.bias", "scale"]
    equal(iw.gates.neural_tangent_kernel(model, x, parameters=names), oracle(model, x, x, names))


def test_tied_parameters():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    x = torch.randn(4, 3, dtype=torch.float64)
    equal(iw.gates.neural_tangent_kernel(model, x), oracle(model, x, x))


def test_training_mode_and_gradients_are_left_alone():
    model, x = odd()
    model.train()
    iw.gates.neural_tangent_kernel(model, x)
    assert model.training and model.norm.training and all(p.grad is None for p in model.parameters())
    assert model.norm.num_batches_tracked == 0


def test_bad_arguments():
    model, x = odd()
    with pytest.raises(TypeError, match="model must be"):
        iw.gates.neural_tangent_kernel(len, x)
    with pytest.raises(ValueError, match='kind must be "full"'):
        iw.gates.neural_tangent_kernel(model, x, kind="sum")
    with pytest.raises(ValueError, match='method must be "auto"'):
        iw.gates.neural_tangent_kernel(model, x, method="fast")
    with pytest.raises(ValueError, match="parameters must be names"):
        iw.gates.neural_tangent_kernel(model, x, parameters=["weight"])
    with pytest.raises(ValueError, match=r"must find every parameter .* Got \['scale'\]"):
        iw.gates.neural_tangent_kernel(model, x, method="layers")
    with pytest.raises(ValueError, match=r"model must return \(N, outputs\)"):
        iw.gates.neural_tangent_kernel(nn.Conv2d(2, 1, 1).double(), x)
