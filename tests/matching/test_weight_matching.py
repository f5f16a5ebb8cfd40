"""Matching by weights: what counts as one, no search below plain descent, sketches, and the cosine of chance."""

import copy
from dataclasses import replace

import pytest
import torch
from noise import shaken
from torch import nn
from zoo import residual_stack

import intertwine as iw
from intertwine.matching import align
from intertwine.matching.coordinates.networks import Networks
from intertwine.matching.costs import paired, sketched
from intertwine.matching.solvers.coordinate_descent import descend
from intertwine.matching.solvers.steps import outwards
from intertwine.symmetry.transformation import identity


def chain(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(48, 5)).double()


def residual(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return residual_stack(6, 20, 24, 4, 3).double()


def normed(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    )
    for norm in (model[1], model[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return model.double().eval()


def test_running_statistics_are_no_weights():
    """Statistics follow the scale of the data; permutations by weights must not."""
    a, b, x = normed(0), normed(1), torch.randn(2, 3, 7, 7, dtype=torch.float64)
    sym = iw.symmetries(a, x)
    found = align(a, b, x, kinds=["permutation"], sym=sym)
    for model in (a, b):
        for m in model:
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean *= 100
                m.running_var *= 1e4
    again = align(a, b, x, kinds=["permutation"], sym=sym)
    assert again.transformation.allclose(found.transformation, 0.0)
    assert (again.objective, again.before, again.after) == (found.objective, found.before, found.after)
    moved = dict(found.apply(b).named_parameters())
    inner = sum(float((p * moved[n]).sum()) for n, p in a.named_parameters())
    assert found.objective == pytest.approx(inner)  # the objective is over parameters
    iw.testing.assert_same_function(b, found.apply(b), x)


@pytest.mark.parametrize("make", [chain, residual])
def test_the_default_is_not_below_plain_descent_from_the_identity(make):
    for seed in range(2):
        a, b = make(2 * seed), make(2 * seed + 1)
        x = torch.randn(2, 12 if make is chain else 6, dtype=torch.float64)
        sym = iw.symmetries(a, x)
        stated = Networks(a, b, sym, sym, ("permutation",)).stated
        start = identity(stated.sym)
        plain = [descend(stated, start, torch.Generator().manual_seed(k)).history[-1] for k in range(3)]
        found = align(a, b, x, sym=sym, kinds=["permutation"])
        assert found.objective >= max(plain)
        assert found.objective == pytest.approx(stated.objective(found.transformation))
        assert all(x <= y + 1e-9 for x, y in zip(found.history, found.history[1:]))


def test_spaces_placed_outwards_recover_a_noisy_copy_of_a_chain_at_once():
    a, x = chain(0), torch.randn(2, 12, dtype=torch.float64)
    sym = iw.symmetries(a, x)
    planted = sym.random(seed=1)
    b = shaken(copy.deepcopy(sym.act(planted, a)), 0.3, torch.std)
    stated = Networks(a, b, sym, sym, ("permutation", "scale", "sign", "linear")).stated
    assert (stated.lift(outwards(stated)) @ planted).restrict(kinds=["permutation"]).is_identity()


def net(seed, act=nn.ReLU):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 30), act(), nn.Linear(30, 30), act(), nn.Linear(30, 4))


X = torch.randn(2, 12)


@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, nn.Tanh])
@pytest.mark.parametrize("kinds", [None, ("permutation",)], ids=["all", "permutations"])
def test_networks_that_share_nothing_fit_as_well_as_by_chance(act, kinds):
    mean, chance = align(net(0, act), net(1, act), X, kinds=kinds).cosines
    assert mean > 0.2 and chance == pytest.approx(mean, abs=0.05)


def test_networks_that_share_units_fit_better():
    a = net(0)
    b = net(1)
    with torch.no_grad():
        for p, q in zip(a.parameters(), b.parameters()):
            q.copy_(0.8 * p + 0.2 * q)
    sym = iw.symmetries(a, X)
    found = align(a, sym.act(sym.random(seed=3), b), X)
    mean, chance = found.cosines
    assert mean > 0.9 > chance + 0.3
    assert f"mean cosine of matched units {mean:.3f}, {chance:.3f} by chance" in found.summary()
    assert found.to_frame()["chance"].notna().all() and f"{chance:.3f} by chance" in found.to_html()


def test_spaces_no_better_than_chance_are_named():
    found = align(net(0), net(0), X)
    first, second = found.chance
    assert "unrelated networks" not in found.summary()
    said = replace(found, chance={first: 2.0, second: 0.1}).summary()
    assert "Note: units no more alike than those of unrelated networks in 1 space: " in said
    assert found.symmetry.titles[first] in said.rpartition("Note")[2] and "2 spaces" not in said


def test_chance_can_be_left_out_and_depends_on_the_seed_only():
    a, b = net(0), net(1)
    without = align(a, b, X, chance=False)
    assert not without.chance and "by chance" not in without.summary()
    one, again = (align(a, b, X, seed=2) for _ in range(2))
    assert one.chance == again.chance and one.objective == align(a, b, X, seed=2, chance=False).objective


def test_mixed_spaces_get_a_new_basis_rather_than_places():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu") for _ in range(2)]
    found = align(*layers, torch.randn(2, 3, 8))
    rows = [line for line in found.summary().splitlines() if "GL" in line]
    assert rows and all("new basis" in row for row in rows)


def _units(noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(512, 1024, generator=generator)
    return x, x + noise * torch.randn(512, 1024, generator=generator)


def test_a_sketch_shortens_distances_and_keeps_those_of_few_weights():
    x, _ = _units(0)
    true, short = (torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") for y in (x, sketched(x)))
    assert sketched(x).shape == (512, 128)
    assert bool((short <= true + 1e-3).all())
    assert torch.equal(sketched(x[:, :100]), x[:, :100])


def test_pairs_are_those_of_the_assignment():
    x, y = _units(0.1)
    order = torch.randperm(512, generator=torch.Generator().manual_seed(4))
    found = paired([(sketched(x), sketched(y[order]))])
    assert torch.equal(order[found], torch.arange(512))
    assert paired([]) is None
