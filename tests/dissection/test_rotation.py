"""Rotations: laws of the path, minimal angles, half turns, reflections refused, uniform sampling."""

import math

import pytest
import torch

from intertwine.dissection.bases import Rotation, random_rotation


def haar(n, seed):
    return random_rotation(n, torch.Generator().manual_seed(seed))


def close(a, b, tolerance=1e-10):
    return float((a - b).abs().max()) <= tolerance


@pytest.mark.parametrize("n", range(1, 66))
def test_path_starts_at_identity_ends_at_q_and_adds_exponents(n):
    for seed in range(3):
        q = haar(n, seed)
        path = Rotation.of(q)
        eye = torch.eye(n, dtype=torch.float64)
        assert torch.equal(path.power(0), eye)
        assert close(path.power(1), q)
        assert close(path.power(0.3) @ path.power(0.7), q)
        assert close(path.power(0.25) @ path.power(0.4), path.power(0.65))
        assert close(path.power(-1), q.T)
        half = path.power(0.5)
        assert close(half @ half.T, eye)
        assert torch.linalg.slogdet(half).sign == 1
        assert bool((path.angles.abs() <= math.pi).all())


@pytest.mark.parametrize("n", [2, 3, 5, 8, 33, 64])
def test_logarithm_is_skew_and_its_exponential_is_q(n):
    q = haar(n, 7)
    path = Rotation.of(q)
    half = (path.second * path.angles) @ path.first.T
    log = half - half.T
    assert close(torch.linalg.matrix_exp(log), q)
    assert float(log.norm()) == pytest.approx(length(path))


def length(path):
    """Length of the path from the identity, ``|log Q|_F``."""
    return math.sqrt(2 * float(path.angles.square().sum()))


HALF_TURNS = {
    "minus identity": -torch.eye(2),
    "minus identity of 6": -torch.eye(6),
    "diag(-1, -1, 1)": torch.diag(torch.tensor([-1.0, -1.0, 1.0])),
    "diag(-1, 1, -1)": torch.diag(torch.tensor([-1.0, 1.0, -1.0])),
    "cyclic of 4": torch.eye(4)[[1, 2, 3, 0]] * torch.tensor([1.0, 1.0, 1.0, -1.0]),
    "swap of two pairs": torch.eye(4)[[1, 0, 3, 2]],
}


@pytest.mark.parametrize("name", HALF_TURNS)
def test_eigenvalue_minus_one_in_pairs(name):
    q = HALF_TURNS[name].double()
    for basis in (torch.eye(len(q), dtype=torch.float64), haar(len(q), 3)):
        turned = basis @ q @ basis.T
        path = Rotation.of(turned)
        assert close(path.power(1), turned)
        assert close(path.power(0.5) @ path.power(0.5), turned)
        assert bool((path.angles.abs() <= math.pi).all())
        assert not close(path.power(0.5), torch.eye(len(q), dtype=torch.float64), 0.1)


def test_minimal_length_is_the_principal_one():
    angles = torch.tensor([3.1, -3.0, 0.5], dtype=torch.float64)
    turn = lambda a: torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=torch.float64)
    blocks = [turn(a) for a in angles.tolist()]
    basis = haar(7, 1)
    q = basis @ torch.block_diag(*blocks, torch.ones(1, 1, dtype=torch.float64)) @ basis.T
    assert length(Rotation.of(q)) == pytest.approx(math.sqrt(2 * float(angles.square().sum())), abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_reflections_are_refused(n):
    q = haar(n, 0)
    q[:, 0] = -q[:, 0]
    with pytest.raises(ValueError, match=r"determinant 1. Got an orthogonal matrix with determinant -1"):
        Rotation.of(q)


def test_bad_matrices_are_refused():
    with pytest.raises(ValueError, match=r"must be square. Got shape"):
        Rotation.of(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"must be orthogonal"):
        Rotation.of(2 * torch.eye(3))
    with pytest.raises(ValueError, match=r"must be orthogonal"):
        Rotation.of(torch.full((2, 2), float("nan")))
    with pytest.raises(ValueError, match=r"n must be at least 1"):
        random_rotation(0)


def test_sampling_has_the_moments_of_haar():
    n, draws = 4, 4000
    generator = torch.Generator().manual_seed(0)
    q = torch.stack([random_rotation(n, generator) for _ in range(draws)])
    assert bool((torch.linalg.det(q) > 0.999).all())
    # E[q_ij] = 0, E[q_ij^2] = 1/n, E[tr Q] = 0, E[(tr Q)^2] = 1 on SO(n), n >= 3
    assert float(q.mean(0).abs().max()) < 5 / math.sqrt(n * draws)
    assert float((q.square().mean(0) - 1 / n).abs().max()) < 0.03
    trace = q.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(float(trace.mean())) < 5 / math.sqrt(draws)
    assert float(trace.square().mean()) == pytest.approx(1, abs=0.12)


def test_same_seed_same_rotation():
    assert torch.equal(haar(9, 5), haar(9, 5))
    assert not torch.equal(haar(9, 5), haar(9, 6))
