"""Kernels against explicit tensors, and what is and is not positive semi-definite."""

import numpy as np
import pytest
import similarity_references as slow
import torch
from numeric import normal

from intertwine import groups
from intertwine.similarity import cka, kernel, kernel_names
from intertwine.similarity._features import moments
from intertwine.similarity.hsic import center_gram
from intertwine.similarity.measures.kernels import (
    LaplaceKernel,
    MaxKernel,
    RBFKernel,
    channel_distances,
    linear_gram,
    max_gram,
    square_distances,
)

SHAPES = [(33, 5), (33, 5, 7), (21, 4, 3, 3), (19, 3, 9, 9)]


@pytest.mark.parametrize("tile", [None, 1, 8, 64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_max_gram_is_the_explicit_maximum(shape, tile):
    x = normal(*shape)
    torch.testing.assert_close(max_gram(x, tile=tile), slow.max_kernel(x))


def test_max_gram_in_several_blocks_of_channels(monkeypatch):
    monkeypatch.setattr("intertwine.similarity.measures.kernels._BYTES", 2 * 21 * 9 * 8)  # two channels at a time
    x, zero = normal(21, 5, 3, 3), torch.zeros(5)
    torch.testing.assert_close(max_gram(x, zero, tile=4), slow.max_kernel(x))


def test_max_gram_of_negative_products_does_not_start_at_zero():
    x = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert max_gram(x)[0, 1] == -1


def test_max_gram_spreads_nan():
    x = normal(12, 3, 2, 2)
    x[5, 1, 0, 1] = torch.nan
    bad = max_gram(x, tile=4).isnan()
    assert bad[5].all() and bad[:, 5].all() and bad.sum() == 23


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_max_gram_upcasts_half_precision(dtype):
    x = normal(20, 6, 4).to(dtype)
    gram = max_gram(x)
    assert gram.dtype == torch.float32
    torch.testing.assert_close(gram, slow.max_kernel(x.float()))


def test_max_gram_takes_strided_features():
    x = normal(20, 10, 10, 6)
    torch.testing.assert_close(max_gram(x.movedim(-1, 1)), slow.max_kernel(x.movedim(-1, 1)))


def test_grams_are_symmetric_to_the_last_bit():
    x = normal(70, 5, 8, 8, dtype=torch.float32)
    for gram in (max_gram(x, tile=16), linear_gram(x), channel_distances(x)):
        assert torch.equal(gram, gram.T)


def test_the_max_kernel_is_not_positive_semi_definite():
    gram = max_gram(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64))
    c = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
    assert float(c @ gram @ c) == -1  # v2 example E.44
    assert torch.linalg.eigvalsh(gram)[0] < -0.2
    assert not MaxKernel().psd


@pytest.mark.parametrize("name", [k for k in kernel_names() if kernel(k).psd])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_that_say_so_are_positive_semi_definite(name, shape):
    x = normal(*shape)
    gram, _ = kernel(name).gram(x, moments(x))
    assert torch.linalg.eigvalsh(gram)[0] > -1e-10 * gram.diagonal().sum()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_laplace_distances_are_explicit_differences(shape):
    x, scale = normal(*shape), normal(shape[1], seed=1).exp()
    expected = slow.laplace_distance(x * scale.view(-1, *[1] * (len(shape) - 2)))
    found = channel_distances(x, scale)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    assert (found.diagonal() == 0).all()


def test_laplace_distance_without_space_is_l1():
    x = normal(30, 5)
    torch.testing.assert_close(channel_distances(x), torch.cdist(x, x, p=1))


def test_bandwidth_is_the_median_and_is_told():
    x = normal(32, 5, 2, 2)  # 496 pairs: an even number, so that the median lies between two
    distance = slow.laplace_distance(slow.normalised(x))
    median = float(np.median(distance[torch.ones(32, 32).tril(-1).bool()]))
    gram, details = LaplaceKernel().gram(x, moments(x))
    assert details["bandwidth"] == pytest.approx(median)
    torch.testing.assert_close(gram, (-distance / median).exp(), rtol=1e-7, atol=1e-7)
    euclidean = torch.cdist(x.flatten(1), x.flatten(1))[torch.ones(32, 32).tril(-1).bool()]
    assert RBFKernel().gram(x, moments(x))[1]["bandwidth"] == pytest.approx(float(np.median(euclidean)))
    gram, details = RBFKernel(3.0).gram(x, moments(x))
    torch.testing.assert_close(gram, (-square_distances(linear_gram(x)) / 18).exp())
    assert details == {"bandwidth": 3.0}


def power_kernel(points, p):
    """Smallest eigenvalue of exp(-|x - y|_p) on points."""
    difference = (points[:, None] - points[None]).abs()
    distance = difference.amax(-1) if p == torch.inf else difference.pow(p).sum(-1).pow(1 / p)
    return float(torch.linalg.eigvalsh(torch.exp(-distance))[0])


def grid(d, side):
    line = torch.arange(side, dtype=torch.float64)
    return torch.cartesian_prod(*[line] * d).reshape(-1, d)


@pytest.mark.parametrize("p", [1, 1.5, 2])
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_power_kernels_up_to_two_are_positive_semi_definite(p, d):
    assert power_kernel(normal(60, d), p) > -1e-9
    assert power_kernel(grid(d, 3), p) > -1e-9


@pytest.mark.parametrize(("p", "d"), [(0.5, 2), (0.5, 3), (4, 3), (torch.inf, 3)])
def test_power_kernels_beyond_are_not(p, d):
    """The paper's open question after eq. 5.6: there are points where the kernel has a negative direction."""
    scales = [0.05, 0.1, 0.25, 0.5, 1.0]
    assert min(power_kernel(s * grid(d, 4), p) for s in scales) < -1e-3


@pytest.mark.parametrize("p", [3, 4, torch.inf])
def test_power_kernels_in_two_dimensions_are_positive_semi_definite_again(p):
    assert all(power_kernel(s * grid(2, 6), p) > -1e-9 for s in (0.1, 0.5, 1.0))


def test_the_square_kernel_has_every_rotation_as_symmetry():
    """So "the same symmetry properties" fails at p = 2."""
    x, q = normal(20, 4), torch.linalg.qr(normal(4, 4, seed=1)).Q
    torch.testing.assert_close(torch.cdist(x @ q, x @ q, p=2), torch.cdist(x, x, p=2), atol=1e-6, rtol=0)
    assert not torch.allclose(torch.cdist(x @ q, x @ q, p=1), torch.cdist(x, x, p=1), rtol=0.01)


def test_linear_gram_is_centred_even_far_from_zero():
    x = normal(40, 6, 3, dtype=torch.float32) + 1e4
    centred = (x.double() - x.double().mean(0)).flatten(1)
    torch.testing.assert_close(linear_gram(x).double(), centred @ centred.T, rtol=1e-3, atol=2e-2)
    assert (linear_gram(x, dtype=torch.float64) - centred @ centred.T).abs().max() < 1e-6


@pytest.mark.parametrize("kind", [LaplaceKernel, RBFKernel])
@pytest.mark.parametrize("bandwidth", [0, -1.0, float("inf")])
def test_bandwidth_must_be_positive(kind, bandwidth):
    with pytest.raises(ValueError, match=r"bandwidth must be positive"):
        kind(bandwidth)


def test_duplicates_leave_no_median():
    x = torch.zeros(20, 3)
    x[0] = 1
    with pytest.raises(ValueError, match=r"at least half of all pairs"):
        cka(x, x, "laplace")


def test_unknown_kernel():
    with pytest.raises(ValueError, match=r"kernel must be one of 'linear'.*Got 'median'"):
        kernel("median")


def test_the_symmetries_of_the_max_kernel_are_signed_permutations():
    """v2 lemma E.46 (v1 E.25): signed permutations keep max(x * y); scales and rotations do not."""
    x = normal(10, 4)
    signed = torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]] * torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(max_gram(x @ signed), max_gram(x))
    for other in (
        torch.diag(torch.tensor([2.0, 1, 1, 1], dtype=torch.float64)),
        torch.linalg.qr(normal(4, 4, seed=1)).Q,
    ):
        assert not torch.allclose(max_gram(x @ other), max_gram(x), rtol=0.01)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gates_kernel_counts_units_that_are_on_for_both(shape):
    x = normal(*shape).relu()
    both = torch.tensor([[float(((a > 0) & (b > 0)).sum()) for b in x] for a in x], dtype=torch.float64)
    gram, _ = kernel("gates").gram(x, moments(x))
    torch.testing.assert_close(center_gram(gram), center_gram(both))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_behind_a_relu_the_gates_kernel_has_the_group_of_the_relu_and_no_larger_one(shape):
    generator = torch.Generator().manual_seed(3)
    x = normal(*shape).relu()
    element = groups.PositiveMonomial(shape[1]).random(generator=generator)
    assert cka(x, element.apply(x, dim=1), "gates") == pytest.approx(1)
    for larger in (groups.SignedPermutation(shape[1]), groups.Orthogonal(shape[1])):
        assert cka(x, larger.random(generator=generator).apply(x, dim=1), "gates") < 0.99
    assert cka(x, x - 0.5, "gates") < 0.99  # nor a translation


def test_the_gates_kernel_sees_no_strength():
    x = normal(40, 6).relu()
    assert cka(x, x**3, "gates") == pytest.approx(1)
    assert cka(x, x**3, "linear") < 0.99
