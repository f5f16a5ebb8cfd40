"""Nearest and best elements against brute force over all permutations and against optimisers."""

import itertools

import pytest
import torch

from intertwine.groups import GeneralLinear, Orthogonal, Permutation, PositiveMonomial, UnitRowSum, named, names
from intertwine.groups.dense import polar_factor
from intertwine.groups.sampling import haar


def matrix(seed, n=4):
    return torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def features(seed, n=4, examples=40):
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(examples, n, dtype=torch.float64, generator=generator).relu()
    x = shared + 0.7 * torch.randn(examples, n, dtype=torch.float64, generator=generator).relu()
    y = shared.flip(1) * 2 + 0.7 * torch.randn(examples, n, dtype=torch.float64, generator=generator).relu()
    return x, y


BEST_SCALE = {  # best scale for one pair, given <y, x> and <x, x>
    "permutation": lambda c, e: 1.0,
    "signed_permutation": lambda c, e: 1.0 if c >= 0 else -1.0,
    "positive_monomial": lambda c, e: max(c / e, 0.0),
    "monomial": lambda c, e: c / e,
}


def brute(kind, x, y):
    """Smallest residual over all permutations, each with its best scales (0 allowed: the infimum)."""
    n, best = x.shape[1], torch.inf
    for p in itertools.permutations(range(n)):
        s = [BEST_SCALE[kind](float(y[:, i] @ x[:, j]), float(x[:, j] @ x[:, j])) for i, j in enumerate(p)]
        best = min(best, float((y - x[:, list(p)] * torch.tensor(s, dtype=x.dtype)).square().sum()))
    return best


@pytest.mark.parametrize("kind", BEST_SCALE)
@pytest.mark.parametrize("seed", range(5))
def test_projection_is_optimal_over_all_permutations(kind, seed):
    m = matrix(seed)
    eye = torch.eye(4, dtype=torch.float64)
    p = {"floor": 1e-9} if kind == "positive_monomial" else {}
    found = float((named(kind, 4).project(m, **p).matrix() - m).square().sum())
    # M = Y for X = I: the residual of |y - g x| summed over examples is that of |M - g|, transposed
    assert found == pytest.approx(brute(kind, eye, m.T), rel=1e-6)


@pytest.mark.parametrize("kind", BEST_SCALE)
@pytest.mark.parametrize("seed", range(5))
def test_least_squares_is_optimal_over_all_permutations(kind, seed):
    x, y = features(seed)
    g = named(kind, 4).procrustes(x.T @ y, x.T @ x)
    assert float((y - g.apply(x)).square().sum()) == pytest.approx(brute(kind, x, y), rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_cosine_objective_is_the_papers_distance(seed):
    x, y = features(seed)
    g = PositiveMonomial(4).procrustes(x.T @ y, x.T @ x, y.T @ y, objective="cosine")
    unit_x, unit_y = x / x.norm(dim=0), y / y.norm(dim=0)
    distances = {p: (unit_x[:, list(p)] - unit_y).norm() for p in itertools.permutations(range(4))}
    assert tuple(g.index.tolist()) == min(distances, key=distances.get)
    assert torch.allclose(g.apply(x).norm(dim=0), y.norm(dim=0))


def test_the_two_objectives_differ_in_some_cases_and_squares_of_cosines_decide_least_squares():
    different = 0
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(12, 8, dtype=torch.float64, generator=generator).relu() for _ in range(2))
        x, y = x / x.norm(dim=0), y / y.norm(dim=0)
        moments = (x.T @ y, x.T @ x, y.T @ y)
        squares = PositiveMonomial(8).procrustes(*moments)
        cosines = PositiveMonomial(8).procrustes(*moments, objective="cosine")
        cosine = (y.T @ x).clamp_min(0)
        total = lambda g, cos=cosine: float(cos.gather(1, g.index[:, None]).square().sum())
        assert total(squares) >= total(cosines) - 1e-12
        different += not torch.equal(squares.index, cosines.index)
    assert 3 <= different <= 30


def test_only_scales_need_second_moments():
    x, y = features(0)
    assert Permutation(4).procrustes(x.T @ y).group == Permutation(4)
    with pytest.raises(ValueError, match=r"xx must be given"):
        PositiveMonomial(4).procrustes(x.T @ y)
    with pytest.raises(ValueError, match=r"yy must be given"):
        PositiveMonomial(4).procrustes(x.T @ y, x.T @ x, objective="cosine")
    diagonal = PositiveMonomial(4).procrustes(x.T @ y, x.square().sum(0))
    assert diagonal.allclose(PositiveMonomial(4).procrustes(x.T @ y, x.T @ x))


def test_dead_channels_and_wrong_objectives_are_refused():
    x, y = features(0)
    x[:, 2] = 0
    with pytest.raises(ValueError, match=r"channels \[2\] without energy. Drop dead channels"):
        PositiveMonomial(4).procrustes(x.T @ y, x.T @ x)
    with pytest.raises(ValueError, match=r"xx must be invertible"):
        GeneralLinear(4).procrustes(x.T @ y, x.T @ x)
    with pytest.raises(ValueError, match=r"whole x.T @ x"):
        GeneralLinear(4).procrustes(x.T @ y, x.square().sum(0))
    with pytest.raises(ValueError, match=r"'least_squares' or 'cosine'. Got 'best'"):
        Permutation(4).procrustes(x.T @ y, objective="best")
    with pytest.raises(ValueError, match=r"must be 'least_squares'"):
        Orthogonal(4).procrustes(x.T @ y, objective="cosine")


@pytest.mark.parametrize(
    "group", [Orthogonal(3), Orthogonal(3, special=True), GeneralLinear(3), UnitRowSum(3)], ids=repr
)
@pytest.mark.parametrize("seed", range(3))
def test_dense_solutions_cannot_be_improved_by_small_moves_in_the_group(group, seed):
    x, y = features(seed, 3)
    y = y if seed else -y  # seed 0: the best orthogonal matrix has determinant -1 before the flip
    best = group.procrustes(x.T @ y, x.T @ x)
    loss = lambda g: float((y - g.apply(x)).square().sum())
    generator = torch.Generator().manual_seed(9)
    for _ in range(60):
        noise = 1e-3 * torch.randn(3, 3, dtype=torch.float64, generator=generator)
        moved = group.project(best.matrix() + noise)
        assert loss(best) <= loss(moved) + 1e-9
    assert group.contains(best.matrix())


def test_special_orthogonal_beats_every_random_rotation():
    x, y = features(1, 3)
    best = Orthogonal(3, special=True).procrustes(x.T @ y * -1)
    score = lambda g: float((g.matrix() * (-y.T @ x)).sum())
    assert all(score(best) >= score(Orthogonal(3, special=True).random(s)) for s in range(300))
    assert torch.linalg.det(best.matrix()) > 0


@pytest.mark.parametrize(
    ("kind", "objective"), [*((kind, "least_squares") for kind in names()), *((kind, "cosine") for kind in BEST_SCALE)]
)
def test_a_planted_element_is_found(kind, objective):
    x, _ = features(3)
    group = named(kind, 4)
    y = (g := group.random(4)).apply(x)
    assert group.procrustes(x.T @ y, x.T @ x, y.T @ y, objective=objective).allclose(
        g, rtol=1e-7, atol=1e-9 if objective == "least_squares" else 1e-12
    )


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("m", "n"), [(5, 5), (4, 6), (6, 4)])
def test_no_matrix_with_orthonormal_rows_is_nearer_than_the_polar_factor(m, n, special):
    generator = torch.Generator().manual_seed(0)
    some = torch.randn(20, m, n, generator=generator, dtype=torch.float64)
    found = polar_factor(some, special and m == n)
    short = found if m <= n else found.mT
    assert torch.allclose(short @ short.mT, torch.eye(min(m, n), dtype=torch.float64))
    others = torch.linalg.qr(torch.randn(20, max(m, n), min(m, n), generator=generator, dtype=torch.float64)).Q
    others = others.mT if m < n else others
    if special and m == n:
        assert torch.allclose(torch.linalg.det(found), torch.ones(20, dtype=torch.float64))
        others[..., 0] *= torch.linalg.det(others).sign()[:, None]
    assert ((found * some).sum((-2, -1)) >= (others * some).sum((-2, -1))).all()
    turned = haar(m, generator, special=True) @ found
    assert torch.allclose(polar_factor(turned @ (found.mT @ found)), turned)  # a rotation is undone
