"""The null of the ranks: against all permutations, bounds in the tails, and the closed form of the combination."""

import math
from itertools import permutations, product

import numpy as np
import pytest
import torch

from intertwine.provenance import p_values as module
from intertwine.provenance.p_values import combined, fisher, log_tail, ranks, spearman


def test_ranks_are_counted_among_the_units_not_placed_yet():
    s = torch.tensor([[2.0, 9.0, 1.0], [5.0, 3.0, 3.0], [0.0, 0.0, 0.0]])
    assert ranks(s).tolist() == [2, 2, 1]  # 9 is before 2; a tie counts against; one unit is left


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_tail_is_the_share_of_all_orders(n):
    every = [torch.tensor(r) for r in product(*(range(1, m + 1) for m in range(n, 0, -1)))]
    scores = np.array([sum(math.log((n - i) / r) for i, r in enumerate(row.tolist())) for row in every])
    for row, score in list(zip(every, scores))[:: max(1, len(every) // 40)]:
        tail = math.exp(log_tail([row]))
        assert (scores >= score - 0.02).mean() >= tail - 1e-9  # the lattice tells scores apart down to 0.02
        assert (scores >= score + 0.02).mean() <= tail + 1e-9


def test_the_order_of_a_random_permutation_has_independent_uniform_ranks():
    s = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    found = sorted(tuple(ranks(s[:, list(p)]).tolist()) for p in permutations(range(4)))
    assert found == sorted(product(range(1, 5), range(1, 4), range(1, 3), range(1, 2)))


def test_all_units_in_place_have_one_over_n_factorial():
    for n in (8, 40, 256):
        assert log_tail([torch.ones(n, dtype=torch.int64)]) == pytest.approx(-math.lgamma(n + 1), rel=1e-6)
    assert log_tail([torch.ones(3, 5, dtype=torch.int64)]) == pytest.approx(-3 * math.lgamma(6), rel=1e-6)


def test_the_bound_lies_above_the_tail_and_close():
    g = torch.Generator().manual_seed(0)
    drawn = (torch.rand(60, generator=g) * torch.arange(60, 0, -1)).long() + 1
    drawn[:9] = 1
    exact, kept = log_tail([drawn]), module._ACCURATE
    try:
        module._ACCURATE = 1.0
        bound = log_tail([drawn])
    finally:
        module._ACCURATE = kept
    assert exact <= bound <= exact + math.log(20)


def test_fisher_is_the_tail_of_chi_square():
    stats = pytest.importorskip("scipy.stats")
    logs = [-0.1, -3.0, -7.5, -0.9]
    assert fisher(logs) == pytest.approx(stats.chi2.logsf(-2 * sum(logs), 8), rel=1e-9)
    assert fisher([]) == 0.0 and fisher([-5.0]) == pytest.approx(-5.0)


def test_spearman_of_few_units_is_enumerated():
    rho, log_p = spearman([torch.eye(5)[None]])
    assert rho == pytest.approx(1.0) and math.exp(log_p) == pytest.approx(1 / 120)
    rho, log_p = spearman([torch.eye(5).flip(0)[None]])
    assert rho == pytest.approx(-1.0) and log_p == pytest.approx(0.0)


def test_narrow_spaces_are_combined_by_their_own_laws():
    every = [torch.tensor(r) for r in product(*(range(1, m + 1) for m in (4, 3, 2, 1)))]
    pairs = [(a, b) for a in every for b in every]
    found = [math.exp(combined([[a], [b]])) for a, b in pairs]
    for p in sorted(set(found))[::7]:
        assert sum(x <= p + 1e-12 for x in found) / len(found) == pytest.approx(p, abs=1e-6)  # exact at every step
    assert all(combined([[a], [b]]) <= fisher([log_tail([a]), log_tail([b])]) + 1e-9 for a, b in pairs[::11])


def test_far_tails_of_many_spaces_are_those_of_fisher():
    ones = [[torch.ones(30, dtype=torch.int64)] for _ in range(3)]
    assert combined(ones) == pytest.approx(fisher([log_tail(x) for x in ones]))
