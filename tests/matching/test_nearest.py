"""The certificate that units are matched best, against all inner products."""

import pytest
import torch

from intertwine.groups.assignment import assign
from intertwine.matching.coordinates.problem import Problem
from intertwine.matching.costs import LARGE, Costs, certified, paired, sketched
from intertwine.matching.solvers.coordinate_descent import descend
from intertwine.symmetry import symmetries
from intertwine.symmetry.transformation import identity, with_parts

N, K = LARGE, 1024


def _units(noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, K, generator=generator)
    return x, x + noise * torch.randn(N, K, generator=generator)


def _certified(*blocks) -> bool:
    return certified(lambda: iter(blocks))


def test_a_sketch_shortens_distances_and_keeps_those_of_few_weights():
    x, _ = _units(0)
    true, short = (torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") for y in (x, sketched(x)))
    assert sketched(x).shape == (N, 128)
    assert bool((short <= true + 1e-3).all())
    assert torch.equal(sketched(x[:, :100]), x[:, :100])


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_copies_and_noisy_copies_are_certified_with_signs_or_without(noise):
    x, y = _units(noise)
    assert _certified(((), x, y))
    assert _certified(((1,), x, y), ((0,), x, y))


def test_what_full_products_deny_is_not_certified():
    x, y = _units(0.01)
    swapped = y.clone()
    swapped[[3, 400]] = y[[400, 3]]
    flipped = y.clone()
    flipped[7] *= -1
    assert not _certified(((), x, swapped))
    assert not _certified(((1,), x, flipped))
    assert not _certified(((), x, _units(0, seed=1)[0]))
    near = x.clone()
    near[5] = x[6] + 0.001 * torch.randn(K, generator=torch.Generator().manual_seed(2))
    assert not _certified(((), x, near))


def test_a_swap_that_gains_is_not_certified():
    """Unit 0 is nearest to its own by distance, unit 1 by inner product; yet 20 + 1 of the swap is more than 2 + 10."""
    x, y = 3 * torch.eye(16), 3 * torch.eye(16)
    x[:2], y[:2] = 0.0, 0.0
    x[:2, 0], y[:2, 0] = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 10.0])
    assert not _certified(((), x, y))


@pytest.mark.parametrize("units", [2, 40])
def test_small_differences_of_large_units_are_seen(units):
    x = _units(0)[0] / 32
    x[:units] += 1000 * torch.nn.functional.normalize(_units(0, seed=1)[0][:1])
    y = x.clone()
    y[[0, 1]] = y[[1, 0]]
    assert _certified(((), x, x.clone()))
    assert not _certified(((), x, y))


@pytest.mark.parametrize("spoil", [lambda x: x[0].fill_(torch.nan), lambda x: x.mul_(1e19)], ids=["nan", "overflow"])
def test_numbers_beyond_their_type_certify_nothing(spoil):
    x = _units(0)[0]
    spoil(x)
    y = x.clone()
    y[[5, 6]] = y[[6, 5]]
    assert not _certified(((), x, y))
    assert not _certified(((1,), x, y))


def test_what_is_certified_is_the_best_assignment():
    generator, certain = torch.Generator().manual_seed(0), 0
    for _ in range(60):
        x = torch.randn(16, 3, generator=generator)
        y = x + 0.02 * torch.randn(16, 3, generator=generator)
        y[0] *= 10 ** (2 * torch.rand((), generator=generator) - 1)
        if _certified(((), x, y)):
            certain += 1
            gains = x @ y.T
            best = gains.gather(1, assign(gains.double())[:, None]).sum()
            assert float(gains.trace()) >= float(best) - 1e-4
    assert 10 < certain < 60


def test_duplicates_and_dead_units_are_compared_in_full():
    x, _ = _units(0)
    x[10:20], x[30] = 0.0, x[31]
    assert _certified(((), x, x.clone()))
    x[: N // 2] = 0.0
    assert not _certified(((), x, x.clone()))  # too many to look at: the costs are computed


def test_pairs_are_those_of_the_assignment():
    x, y = _units(0.1)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(4))
    found = paired([(sketched(x), sketched(y[order]))])
    assert torch.equal(order[found], torch.arange(N))
    assert paired([]) is None


def test_descent_computes_no_products_of_a_certified_space(monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, N), torch.nn.ReLU(), torch.nn.Linear(N, 300))
    sym = symmetries(model, torch.zeros(2, 300))
    space = sym.spaces[0]
    h = with_parts(identity(sym), space.name, permutation=torch.randperm(N))
    still = identity(sym)
    a = {name: x.detach() for name, x in model.named_parameters()}
    b = {name: x.detach() for name, x in sym.act(h, model).named_parameters()}
    stated = Problem(sym, a, b, still, still, sym)
    asked = []
    honest = Costs._followed
    monkeypatch.setattr(Costs, "_followed", lambda self, name: asked.append(name) or honest(self, name))
    start = with_parts(still, space.name, permutation=h[space.name].permutation.argsort())
    assert descend(stated, start, torch.Generator()).g is start
    assert not asked
    found = descend(stated, still, torch.Generator())
    assert asked
    assert torch.equal(found.g[space.name].permutation, start[space.name].permutation)
