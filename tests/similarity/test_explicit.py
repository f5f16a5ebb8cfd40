"""CKA by features where they are fewer than examples, transport by copies, decompositions that do not give up."""

import pytest
import torch
from numeric import normal

from intertwine.similarity import CKA, cka, hsic, measure, prepare_gram
from intertwine.similarity import _linalg as linalg
from intertwine.similarity.measures.cka import ExplicitSide
from intertwine.similarity.measures.procrustes import _by_program, transport


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
@pytest.mark.parametrize("kernel", ["linear", "gates", "channel_normalized"])
@pytest.mark.parametrize("shape", [(80, 7), (60, 3, 2, 2)], ids=str)
def test_features_and_gram_matrices_give_one_score(kernel, estimator, shape):
    x, y = normal(*shape), normal(*shape) + normal(*shape, seed=1) + 5
    x[:, 0] = 0.1
    y[::2, 1] -= 9
    m = CKA(kernel, estimator)
    a, b = m.prepare(x), m.prepare(y)
    c, d = m.gram_side(x), m.gram_side(y)
    assert isinstance(a, ExplicitSide) and (a.dead, a.channels) == (c.dead, c.channels) == (1, shape[1])
    expected = m.score(c, d)
    assert m.score(a, b) == pytest.approx(expected, abs=1e-12)
    assert m.score(a, d) == pytest.approx(expected, abs=1e-12) == m.score(c, b)
    half = torch.randperm(shape[0], generator=torch.Generator().manual_seed(2))[: shape[0] // 2]
    halves = m.score(a.take(half), b.take(half))
    tolerance = 0.1 if kernel == "channel_normalized" else 1e-12  # both keep the norms of all examples
    assert halves == pytest.approx(m.score(c.take(half), d.take(half)), abs=1e-12)
    assert halves == pytest.approx(m(x[half], y[half]), abs=tolerance)


def test_wide_features_keep_their_gram_matrix():
    assert not isinstance(CKA().prepare(normal(40, 21)), ExplicitSide)
    assert not isinstance(CKA("max").prepare(normal(40, 3)), ExplicitSide)
    narrow, wide = normal(60, 5), normal(60, 90, seed=1)
    assert cka(narrow, wide) == pytest.approx(cka(wide, narrow), abs=1e-12)


def test_features_whose_centring_leaves_little_keep_it_too():
    """A U-centred Gram matrix of nearly nothing cannot be had by differences: one direction with equal steps."""
    x = torch.tensor([1.0, -1.0]).repeat(4)[:, None].double()
    expected = measure("linear_cka").gram_side(x)
    assert cka(x, x) == pytest.approx(CKA().score(expected, expected))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_gram_matrices_are_checked(bad):
    k = normal(6, 6)
    k = k @ k.T
    broken = k.clone()
    broken[2, 3] = broken[3, 2] = bad
    for call in (lambda: hsic(broken, k), lambda: hsic(k, broken), lambda: prepare_gram(broken)):
        with pytest.raises(ValueError, match=r"must be finite. Got NaN or infinite values"):
            call()
    for wrong in (k.to(torch.complex128), (100 * k).long(), k.to(torch.float8_e4m3fn), k > 0):
        before = wrong.clone()
        with pytest.raises(TypeError, match=r"k must be a real floating-point tensor of 16 bits or more. Got torch"):
            hsic(wrong, k)
        assert torch.equal(wrong.view(torch.uint8), before.view(torch.uint8))
    assert hsic(k.half(), k.half()) == pytest.approx(hsic(k.half().double(), k.half().double()), rel=1e-4)


@pytest.mark.parametrize("name", ["svcca", "pwcca", "r2_cca", "linear_regression", "orthogonal_procrustes"])
def test_lapack_that_gives_up_is_asked_another_way(name, monkeypatch):
    x, y = normal(40, 6), normal(40, 5) + normal(40, 5, seed=1)
    m, expected = measure(name), measure(name)(x, y)

    def gives_up(*args, **kwargs):
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    for function in ("svd", "svdvals", "eigh"):
        monkeypatch.setattr(torch.linalg, function, gives_up)
    assert m(x, y) == pytest.approx(expected, abs=1e-12)


def test_decompositions_agree():
    x = normal(5, 3)
    u, s, vt = linalg.singular(x)
    torch.testing.assert_close(u * s @ vt, x)
    torch.testing.assert_close(linalg.singular_values(x), s)
    values, vectors = linalg.eigen(x.T @ x)
    torch.testing.assert_close(values, s.square())
    torch.testing.assert_close(vectors * values @ vectors.T, x.T @ x)


@pytest.mark.parametrize("name", ["svcca", "pwcca", "r2_cca", "orthogonal_procrustes", "g_relu_procrustes"])
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e140])
def test_extreme_sizes(name, size):
    x, y = normal(40, 6), normal(40, 5) + normal(40, 5, seed=1)
    assert measure(name)(size * x, y) == pytest.approx(measure(name)(x, y), abs=1e-9)
    assert measure(name)(size * x, size * y) == pytest.approx(measure(name)(x, y), abs=1e-9)


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (6, 4), (1, 5)], ids=str)
def test_transport_by_copies_is_the_linear_program(shape, monkeypatch):
    monkeypatch.setattr("intertwine.similarity.measures.procrustes._COPIES", 100)
    gain = normal(*shape)
    assert transport(gain) == pytest.approx(_by_program(gain), abs=1e-9)


def test_soft_matching_of_doubled_units_is_one():
    x = normal(50, 6)
    assert measure("soft_matching")(x, torch.cat([2 * x, x.flip(1)], 1)) == pytest.approx(1)
