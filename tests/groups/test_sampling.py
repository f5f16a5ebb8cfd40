import pytest
import torch

from intertwine.groups import GeneralLinear, Orthogonal, Permutation, PositiveMonomial, SignedPermutation
from intertwine.groups.sampling import haar, keeping_ones, lognormal


def traces(draw, n, count=4000):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([draw(n, generator).trace() for _ in range(count)])


def raw_qr(n, generator):
    return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]


@pytest.mark.parametrize("n", [3, 8])
def test_traces_have_haar_moments(n):
    trace = traces(haar, n)
    assert abs(float(trace.mean())) < 4 * 4000**-0.5  # E tr = 0, E tr^2 = 1 on O(n)
    assert float(trace.square().mean()) == pytest.approx(1, abs=0.12)
    special = traces(lambda n, g: haar(n, g, special=True), n)
    assert abs(float(special.mean())) < 4 * 4000**-0.5 and float(special.square().mean()) == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(("n", "mean"), [(3, -0.5), (8, -1.6)])
def test_the_moment_test_sees_that_raw_qr_is_not_haar(n, mean):
    assert float(traces(raw_qr, n).mean()) == pytest.approx(mean, abs=0.1)


@pytest.mark.parametrize("n", [2, 8])
def test_haar_rotations_that_keep_the_ones_are_haar_beside_them(n):
    kept = traces(lambda n, g: keeping_ones(haar(n, g)), n) - 1
    assert abs(float(kept.mean())) < 4 * 4000**-0.5 and float(kept.square().mean()) == pytest.approx(1, abs=0.12)
    q, ones = keeping_ones(haar(n, torch.Generator().manual_seed(0))), torch.ones(n, dtype=torch.float64)
    assert torch.allclose(q @ ones, ones) and Orthogonal(n).contains(q, 1e-12)
    assert torch.equal(keeping_ones(q), q)


def test_special_rotations_have_determinant_one_and_general_ones_both():
    assert all(torch.linalg.det(Orthogonal(4, special=True).random(s).matrix()) > 0 for s in range(20))
    assert len({bool(torch.linalg.det(Orthogonal(4).random(s).matrix()) > 0) for s in range(20)}) == 2


def test_scales_are_lognormal_with_mean_one():
    scale = PositiveMonomial(200_000).random(0).scale
    assert float(scale.mean()) == pytest.approx(1, abs=0.02)
    assert float(scale.log().std()) == pytest.approx(1, abs=0.01)
    assert float(lognormal(100_000, sigma=0.5).log().std()) == pytest.approx(0.5, abs=0.01)


def test_permutations_and_signs_are_uniform():
    counts = torch.zeros(6)
    generator = torch.Generator().manual_seed(0)
    orders = {(0, 1, 2): 0, (0, 2, 1): 1, (1, 0, 2): 2, (1, 2, 0): 3, (2, 0, 1): 4, (2, 1, 0): 5}
    for _ in range(3000):
        counts[orders[tuple(Permutation(3).random(generator).index.tolist())]] += 1
    assert float(((counts - 500) ** 2 / 500).sum()) < 20.5  # chi-square, 5 degrees of freedom, p = 0.001
    assert abs(float(SignedPermutation(100_000).random(0).scale.mean())) < 0.02


def test_invertible_matrices_are_well_conditioned():
    assert max(float(torch.linalg.cond(GeneralLinear(16).random(s).matrix())) for s in range(20)) <= 10 + 1e-9
