"""Networks of the zoo with one layer edited, as they stand and moved: that layer is named, and nothing else."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from zoo import build

import intertwine as iw
from intertwine.matching.element_fit.consensus import _flipped, flipping, freedoms, unflipped
from intertwine.matching.judgement.verdict import RELATED
from intertwine.matching.same import same
from intertwine.symmetry.action import tensors_of, transform
from intertwine.symmetry.blocks import blocks
from intertwine.symmetry.gauge.canonical import fold


@cache
def known(name: str):
    """A network with gains and biases in no order, its inputs, its symmetry."""
    model, x = build(name)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in (p for p in model.parameters() if p.ndim == 1):
            p += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model, x, iw.symmetries(model, x)


def replaced(p, noise):
    return p.std() * noise(p.shape)


def adapted(p, noise):
    """An update of rank two."""
    rows = p.flatten(1)
    return p + (0.02 * noise((rows.shape[0], 2)) @ noise((2, rows.shape[1]))).view(p.shape)


def pruned(p, noise):
    return p.where(p.abs() >= p.abs().median(), 0.0)


def one_weight(p, noise):
    step = torch.zeros_like(p)
    step.view(-1)[p.numel() // 2] = p.std()
    return p + step


def edited(model: nn.Module, name: str, edit) -> nn.Module:
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(5)
    with torch.no_grad():
        p = other.get_parameter(name)
        p.copy_(edit(p, lambda shape: torch.randn(shape, generator=generator, dtype=p.dtype)))
    return other


def changes(found):
    """The kinds of change by tensor."""
    return {c.name: c.kind for c in found.tensors if not c.settled}


CHEAP = [
    ("mlp_bn", "3.weight", adapted),
    ("mlp_bn", "3.weight", pruned),
    ("mlp_bn", "0.weight", replaced),
    ("mlp_bn", "1.weight", one_weight),
    ("groupnorm_cnn", "3.weight", replaced),
    ("lstm", "rnn.weight_hh_l0", adapted),
    ("vit_sdpa", "attention.o.weight", pruned),
]
CASES = [
    *CHEAP,
    ("resnet6_b", "layers.1.conv2.weight", replaced),
    ("resnet6_b", "conv.weight", replaced),
    ("myrtle", "7.weight", replaced),
    ("vit_sdpa", "attention.o.weight", one_weight),
    ("resnext", "b.weight", adapted),
    ("resnext", "norms.1.weight", replaced),
    ("convnext", "up.weight", replaced),
    ("unet", "b.bias", replaced),
    ("unet", "up.bias", one_weight),
]
# Two units of one group, scales that fit a wrong order, a bias that comes close by chance: none hides the edit.
HARD = [
    ("resnext", "stem.bias", replaced),
    ("resnext", "a.weight", replaced),
    ("resnext", "norms.0.bias", lambda p, noise: -p),
    ("mlp_bn", "4.weight", replaced),
    ("rnn_relu", "rnn.bias_ih_l0", one_weight),
]
SEEDED = [(3, *case) for case in CASES] + [(4, *case) for case in HARD]


@pytest.mark.parametrize(("seed", "network", "name", "edit"), SEEDED)
def test_the_layer_of_a_moved_copy_that_was_edited_is_named(seed, network, name, edit):
    model, x, sym = known(network)
    found = same(model, sym.act(sym.random(seed=seed), edited(model, name, edit)), x, sym)
    assert found.verdict == RELATED and set(found.differing) == {name}


# ``diff`` simplifies what ``same`` finds, and both search nothing in place: a case of every edit, beside every kind of
# norm and without one.
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize(("network", "name", "edit"), CHEAP)
def test_diff_names_the_layer_that_was_edited(network, name, edit, moved):
    model, x, sym = known(network)
    other = edited(model, name, edit)
    if not moved:
        found = same(model, other, x, sym)
        assert found.verdict == RELATED and set(found.differing) == {name}
    changed = changes(iw.diff(model, sym.act(sym.random(seed=3), other) if moved else other, x, sym))
    # statistics are scaled with what was replaced, as it was not
    scaled = {n for n in changed if moved and edit is replaced and n.endswith(("running_mean", "running_var"))}
    assert changed.keys() - scaled == {name}


NEGATED = [
    ("mlp_bn", "3.weight"), ("mlp_bn", "1.weight"), ("lstm", "rnn.weight_ih_l0"), ("groupnorm_cnn", "0.weight"),
    ("convnext", "down.weight"), ("resnext", "a.weight"), ("vit_sdpa", "attention.qkv.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("network", "name", "moved"), [(*case, True) for case in NEGATED] + [(*NEGATED[0], False)])
def test_where_a_tensor_was_negated_it_is_named_and_not_its_neighbours(network, name, moved):
    """With the signs of its channels flipped the gain behind it, its mean and the bias would differ instead."""
    model, x, sym = known(network)
    other = edited(model, name, lambda p, noise: -p)
    other = sym.act(sym.random(seed=3), other) if moved else other
    assert set(same(model, other, x, sym).differing) == {name}
    if network not in ("resnext", "vit_sdpa"):
        assert changes(iw.diff(model, other, x, sym)) == {name: "scaled"}


def apart(a, b, g):
    return {n for n, y in b.state.items() if not torch.equal(transform(a.state[n], a.sym.layouts[n], g), y)}


def test_of_flips_of_whole_spaces_those_are_undone_that_leave_the_fewest_tensors_negated():
    """Law: whatever spaces were flipped, and with one tensor negated besides, no more than that one is left."""
    model, _, sym = known("convnext")
    a = fold(sym, tensors_of(model))
    flips = sorted(f for space in a.sym.spaces for f in freedoms(space) if f[1] in ("sign", "linear"))
    for k, name in enumerate(n for n, layout in a.sym.layouts.items() if any(map(flipping, blocks(layout)))):
        some = [f for j, f in enumerate(flips) if k >> j % 4 & 1]
        g, b = _flipped(a.sym, some), replace(a, state={**a.state, name: -a.state[name]})
        assert len(apart(a, b, unflipped(a, b, g, apart(a, b, g)))) <= 1
