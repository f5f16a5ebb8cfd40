"""Lemmas 3.1, E.7, E.10, E.12, Corollary E.11, Theorem E.14, Remark E.6, Theorem 3.3 and the example of Appendix C."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from stabiliser import has_finite_orbit, moving_element, stabilises_rays

from intertwine.groups import (
    GeneralLinear,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveMonomial,
    SignedPermutation,
    intertwiner,
)
from intertwine.groups.activations import RULE_NAMES, named_activation
from intertwine.groups.intertwiner_laws import (
    chain_rule_gap,
    equivariance_gap,
    identity_image_eigenvalues,
    identity_image_is_invertible,
    phi_by_definition,
    span_representation,
)

eye = lambda n: torch.eye(n, dtype=torch.float64)
SMOOTH = ["relu", "tanh", "rbf", "power:2", "power:3", "abs", "gelu", "sigmoid", "sin", "relu_squared", "identity"]


@pytest.mark.parametrize("name", RULE_NAMES)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_lemma_e7_predicts_the_rank_of_sigma_of_identity(name, n):
    sigma = named_activation(name).function
    image = sigma(eye(n).reshape(-1)).reshape(n, n)
    assert identity_image_is_invertible(sigma, n) == (int(torch.linalg.matrix_rank(image)) == n)
    repeated, single = identity_image_eigenvalues(sigma, n)
    expected = torch.tensor([repeated] * (n - 1) + [single], dtype=torch.float64).sort().values
    assert torch.allclose(torch.linalg.eigvalsh(image), expected)


def test_lemma_e7_is_necessary_only_from_two_channels_on():
    two = lambda x: x * 0 + 2.0  # sigma(1) = sigma(0): the printed condition fails for every n
    assert identity_image_is_invertible(two, 1) and not identity_image_is_invertible(two, 2)
    other = lambda x: torch.where(x == 0, 1.0, -2.0).to(x.dtype)  # sigma(1) = -(n - 1) sigma(0) at n = 3
    assert identity_image_is_invertible(other, 2) and not identity_image_is_invertible(other, 3)
    with pytest.raises(ValueError, match=r"must be invertible for Lemma 3.1"):
        phi_by_definition(other, eye(3))


@pytest.mark.parametrize("name", SMOOTH)
def test_lemma_e10_permutations_pass_unchanged(name):
    sigma = named_activation(name).function
    for p in itertools.permutations(range(3)):
        a = Permutation(3).element(list(p)).matrix()
        assert torch.equal(sigma((eye(3) @ a).reshape(-1)).reshape(3, 3), sigma(eye(3).reshape(-1)).reshape(3, 3) @ a)
        assert torch.allclose(phi_by_definition(sigma, a), a)


@pytest.mark.parametrize("name", SMOOTH)
def test_corollary_e11_a_permutation_neither_helps_nor_hurts(name):
    group = intertwiner(name, 3).group
    for seed in range(6):
        p = Permutation(3).random(seed).matrix()
        for a in (group.random(seed).matrix(), GeneralLinear(3).random(seed).matrix()):
            assert group.contains(a) == group.contains(a @ p) == group.contains(p @ a)


@pytest.mark.parametrize("name", SMOOTH)
def test_lemma_e12_holds_for_members_and_fails_outside(name):
    found, sigma = intertwiner(name, 3), named_activation(name).function
    x = torch.tensor([0.7, -1.1, 0.4], dtype=torch.float64)
    a = found.group.random(0)
    assert chain_rule_gap(sigma, a.matrix(), found.phi(a).matrix(), x) < 1e-12
    if name != "identity":
        q = Orthogonal(3).random(0).matrix()
        assert chain_rule_gap(sigma, q, phi_by_definition(sigma, q), x) > 1e-3


@pytest.mark.parametrize("name", ["relu", "tanh", "rbf", "power:3", "abs", "gelu", "relu_squared"])
def test_theorem_e14_members_are_monomial_and_phi_acts_on_each_scale_alone(name):
    found, sigma = intertwiner(name, 3), named_activation(name).function
    a = found.group.random(0)
    factors = Monomial(3).from_matrix(a.matrix())  # A = D P, read off
    assert factors.allclose(a)
    one = [phi_by_definition(sigma, s.reshape(1, 1)) for s in factors.scales()]
    diagonal = torch.diag(factors.scales())
    assert torch.allclose(phi_by_definition(sigma, diagonal), torch.diag(torch.cat(one).reshape(-1)))
    for seed in range(5):  # a full matrix passes through no nonlinear activation
        full = GeneralLinear(3).random(seed).matrix()
        x = torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        solution = torch.linalg.lstsq(sigma(x), sigma(x @ full.T)).solution
        assert (sigma(x) @ solution - sigma(x @ full.T)).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["relu", "rbf", "power:2", "tanh"])
def test_remark_e6_the_span_of_coordinates_is_stable_exactly_under_the_group(name):
    found, sigma = intertwiner(name, 3), named_activation(name).function
    functions = [lambda x, i=i: sigma(x[:, i]) for i in range(3)]
    points = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = found.group.random(0)
    m, residual = span_representation(functions, lambda x: a.apply(x), points)
    assert residual < 1e-12 and torch.allclose(m, found.phi(a).matrix(), atol=1e-12)
    q = Orthogonal(3).random(0)
    assert span_representation(functions, lambda x: q.apply(x), points)[1] > 1e-2


def test_remark_e6_covers_spaces_beyond_activations():
    quadratics = [lambda x: x[:, 0] ** 2, lambda x: x[:, 1] ** 2, lambda x: x[:, 0] * x[:, 1]]
    points = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    full = GeneralLinear(2).random(0)
    _, residual = span_representation(quadratics, lambda x: full.apply(x), points)
    assert residual < 1e-12  # all of GL(2) acts on quadratic forms


def test_example_of_appendix_c():
    a = torch.tensor(
        [[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64
    )  # printed as [[0, 2], [1, 0]], computed with this one
    for matrix in (a, a.T):
        assert PositiveMonomial(2).contains(matrix)
        assert equivariance_gap(F.relu, matrix, matrix) == 0
    x = torch.tensor([3.0, 5.0], dtype=torch.float64)
    assert F.relu(a @ x).tolist() == [5.0, 6.0] and F.relu(a.T @ x).tolist() == [10.0, 3.0]


def test_remark_e9_activations_with_zero_at_zero_and_one_at_one():
    a = PositiveMonomial(3).random(0).matrix()
    for sigma in (F.relu, torch.square, torch.abs):
        assert torch.allclose(phi_by_definition(sigma, a), sigma(a))


MATRICES = {
    "positive monomial": (PositiveMonomial(4), True),
    "signed permutation": (SignedPermutation(4), False),
    "monomial": (Monomial(4), False),
    "rotation": (Orthogonal(4), False),
    "general": (GeneralLinear(4), False),
}


@pytest.mark.parametrize("key", MATRICES)
def test_theorem_3_3_stabiliser_of_the_basis_rays_is_g_relu(key):
    group, stable = MATRICES[key]
    for seed in range(10):
        a = group.random(seed).matrix()
        assert stabilises_rays(a) == PositiveMonomial(4).contains(a)
        assert stable == stabilises_rays(a) or PositiveMonomial(4).contains(a)


def test_theorem_3_3_rays_left_in_place_lie_along_the_axes():
    axes = torch.cat([eye(3), -eye(3)])
    for seed in range(10):
        a = PositiveMonomial(3).random(seed).matrix()
        assert stabilises_rays(a, axes) and stabilises_rays(a, -eye(3))
        extra = torch.cat([axes, torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)])
        assert not stabilises_rays(a, extra)
    assert has_finite_orbit(torch.tensor([0.0, -2.0])) and not has_finite_orbit(torch.tensor([1e-9, 1.0]))
    assert not stabilises_rays(torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"rays must be nonzero"):
        stabilises_rays(eye(2), torch.zeros(1, 2))


def test_theorem_3_3_every_other_ray_has_an_infinite_orbit():
    v = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64)
    images = torch.stack([moving_element(v, t).apply(v, dim=0) for t in (0.5, 1.0, 2.0, 3.0, 7.0)])
    directions = images / images.norm(dim=1, keepdim=True)
    assert torch.pdist(directions).min() > 1e-2
    assert moving_element(torch.tensor([0.0, 4.0]), 2.0) is None
