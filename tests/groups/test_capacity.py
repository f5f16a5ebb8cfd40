from math import comb, factorial, log, pi

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from intertwine.groups import (
    Monomial,
    Orthogonal,
    Permutation,
    PositiveMonomial,
    SignedPermutation,
    capacity,
    gelu_error,
)
from intertwine.groups.intertwiner_laws import ASYMPTOTIC_SLOPE


@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_counts_are_those_of_the_grid(n):
    points = 2 * 1.0 / 0.01
    assert capacity.log_count_g_relu(n, 0.01, 1.0) == pytest.approx(log(factorial(n)) + n * log(points))
    assert PositiveMonomial(n).log_size(0.01, 1.0) == capacity.log_count_g_relu(n, 0.01, 1.0)
    assert capacity.log_count_rank(n, 1, 0.01, 1.0) == pytest.approx((2 * n - 1) * log(points))
    assert Permutation(n).log_size(0.01, 1.0) == pytest.approx(log(factorial(n)))
    assert SignedPermutation(n).log_size(0.01, 1.0) == pytest.approx(log(factorial(n)) + n * log(2))
    assert Monomial(n).log_size(0.01, 1.0) == PositiveMonomial(n).log_size(0.01, 1.0)
    assert Orthogonal(n).log_size(0.01, 1.0) == pytest.approx(log(2) + comb(n, 2) * log(points))


@pytest.mark.parametrize("n", [2, 3, 8, 64, 512])
def test_every_rank_outnumbers_g_relu_from_n_points_on(n):
    for rank in {1, 2, n}:
        assert capacity.threshold(n, rank) <= n
        assert capacity.rank_outnumbers(n, rank, eps=2 / n, bound=1.0)  # M = n


def test_the_threshold_is_where_the_counts_cross():
    for n, rank in ((64, 1), (64, 2), (8, 3)):
        m = capacity.threshold(n, rank)
        assert capacity.rank_outnumbers(n, rank, eps=2 / (1.001 * m), bound=1.0)
        assert not capacity.rank_outnumbers(n, rank, eps=2 / (0.999 * m), bound=1.0)


def test_the_coarse_count_fails_at_rank_one():
    n = 64
    assert n * log(n) + n * log(n) > (2 * n - 1) * log(n)  # n log n in place of log n!, at M = n
    assert capacity.log_count_g_relu(n, 2 / n, 1.0) <= capacity.log_count_rank(n, 1, 2 / n, 1.0)


def test_dimensions_of_section_4():
    assert capacity.g_relu_dim(64) == PositiveMonomial(64).dim == 64
    jacobian_rank = capacity.rank_dim(5, 2)
    u, v = (torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    tangent = torch.autograd.functional.jacobian(lambda a, b: (a @ b.T).reshape(-1), (u, v))
    assert torch.linalg.matrix_rank(torch.cat([t.reshape(25, -1) for t in tangent], 1)) == jacobian_rank == 16


def test_wrong_grids_and_ranks_are_refused():
    with pytest.raises(ValueError, match=r"eps must be positive"):
        PositiveMonomial(3).log_size(0.0, 1.0)
    with pytest.raises(ValueError, match=r"rank must be from 1 to n = 3. Got 4"):
        capacity.rank_dim(3, 4)


@pytest.mark.parametrize(("a", "value"), [(0.25, 0.0650), (0.5, 0.0687), (2, 0.1767), (4, 0.4762), (10, 1.2611)])
def test_gelu_error_has_the_values_of_its_integral(a, value):
    integrand = lambda x: (a * x * (norm.cdf(a * x) - norm.cdf(x))) ** 2 * norm.pdf(x)
    direct = quad(integrand, -12, 12, epsabs=1e-13, limit=400)[0] ** 0.5
    assert float(gelu_error(a)) == pytest.approx(direct, rel=1e-6)
    assert float(gelu_error(a)) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("a", [-2.0, -0.3, 0.9])
def test_gelu_error_holds_for_every_sign(a):
    integrand = lambda x: (a * x * (norm.cdf(a * x) - norm.cdf(x))) ** 2 * norm.pdf(x)
    assert float(gelu_error(a)) == pytest.approx(quad(integrand, -12, 12, epsabs=1e-13)[0] ** 0.5, rel=1e-6)


def test_gelu_error_vanishes_at_zero_and_one_and_grows_linearly():
    assert gelu_error(torch.tensor([0.0, 1.0])).abs().max() < 1e-8
    assert pytest.approx(0.12675, abs=1e-5) == ASYMPTOTIC_SLOPE
    assert float(gelu_error(1e4)) / 1e4 == pytest.approx(ASYMPTOTIC_SLOPE, rel=1e-3)
    assert pytest.approx((1 / 12 - 1 / (2 * pi) + 1 / (2 * pi * 3**0.5)) ** 0.5) == ASYMPTOTIC_SLOPE
