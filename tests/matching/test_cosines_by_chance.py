"""The mean cosine of matched units, and what it would be by chance."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import intertwine as iw


def net(seed, act=nn.ReLU):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 30), act(), nn.Linear(30, 30), act(), nn.Linear(30, 4))


X = torch.randn(2, 12)


@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, nn.Tanh])
@pytest.mark.parametrize("kinds", [None, ("permutation",)], ids=["all", "permutations"])
def test_networks_that_share_nothing_fit_as_well_as_by_chance(act, kinds):
    mean, chance = iw.align(net(0, act), net(1, act), X, kinds=kinds).cosines
    assert mean > 0.2 and chance == pytest.approx(mean, abs=0.05)


def test_networks_that_share_units_fit_better():
    a = net(0)
    b = net(1)
    with torch.no_grad():
        for p, q in zip(a.parameters(), b.parameters()):
            q.copy_(0.8 * p + 0.2 * q)
    sym = iw.symmetries(a, X)
    found = iw.align(a, sym.act(sym.random(seed=3), b), X)
    mean, chance = found.cosines
    assert mean > 0.9 > chance + 0.3
    assert f"mean cosine of matched units {mean:.3f}, {chance:.3f} by chance" in found.summary()
    assert found.to_frame()["chance"].notna().all() and f"{chance:.3f} by chance" in found.to_html()


def test_spaces_no_better_than_chance_are_named():
    found = iw.align(net(0), net(0), X)
    first, second = found.chance
    assert "unrelated networks" not in found.summary()
    said = replace(found, chance={first: 2.0, second: 0.1}).summary()
    assert "Note: units no more alike than those of unrelated networks in 1 space: " in said
    assert found.symmetry.titles[first] in said.rpartition("Note")[2] and "2 spaces" not in said


def test_chance_can_be_left_out_and_depends_on_the_seed_only():
    a, b = net(0), net(1)
    without = iw.align(a, b, X, chance=False)
    assert not without.chance and "by chance" not in without.summary()
    one, again = (iw.align(a, b, X, seed=2) for _ in range(2))
    assert one.chance == again.chance and one.objective == iw.align(a, b, X, seed=2, chance=False).objective


def test_mixed_spaces_get_a_new_basis_rather_than_places():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu") for _ in range(2)]
    found = iw.align(*layers, torch.randn(2, 3, 8))
    rows = [line for line in found.summary().splitlines() if "GL" in line]
    assert rows and all("new basis" in row for row in rows)
