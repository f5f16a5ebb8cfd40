"""Procrustes similarities: the paper's numbers, brute force, normalisations, floors."""

from math import sqrt

import pytest
import similarity_references as slow
import torch
from numeric import normal

from intertwine import groups
from intertwine.similarity import Procrustes, procrustes
from intertwine.similarity.measures.procrustes import polar


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(200, 16), (50, 16, 4, 4)], ids=str)
def test_a_planted_element_scores_one_and_a_rotation_less(shape, dtype):
    x = normal(*shape, dtype=dtype).relu()
    g = groups.PositiveMonomial(16).random(generator=1)
    assert procrustes(x, g.apply(x), group="g_relu") == pytest.approx(1, abs=1e-6)
    q = groups.Orthogonal(16).random(generator=1)
    assert procrustes(x, q.apply(x), group="g_relu") < 0.8
    assert procrustes(x, q.apply(x), group="orthogonal") == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_permutations_by_trying_all(seed):
    x, y = normal(12, 5, seed=seed).relu() + 0.1, normal(12, 5, seed=seed + 10).relu() + 0.1
    assert procrustes(x, y, group="g_relu") == pytest.approx(slow.permutation_procrustes(x, y), abs=1e-12)
    x, y = normal(12, 5, seed=seed), normal(12, 5, seed=seed + 10)  # cosines of both signs, of which none may flip
    assert procrustes(x, y, group="g_relu") == pytest.approx(slow.permutation_procrustes(x, y), abs=1e-12)


def test_agrees_with_the_element_that_the_groups_find():
    x, y = normal(40, 6).relu(), normal(40, 6, seed=1).relu()
    g = groups.PositiveMonomial(6).procrustes(x.T @ y, (x * x).sum(0), (y * y).sum(0), objective="cosine")
    moved = g.apply(x)
    cosines = (moved * y).sum(0) / (moved.norm(dim=0) * y.norm(dim=0))
    assert procrustes(x, y, group="g_relu") == pytest.approx(1 - sqrt(12 - 2 * float(cosines.sum())) / (2 * sqrt(6)))
    x, y = x / x.norm(), y / y.norm()
    q = groups.Orthogonal(6).procrustes(x.T @ y)
    # divided by the global norm of each side, which is 1 here and must not matter
    assert procrustes(3 * x, y / 7) == pytest.approx(1 - float((q.apply(x) - y).norm()) / 2, abs=1e-9)


def test_least_squares_may_choose_another_permutation_than_the_cosines():
    """Fitting the scales as well assigns on max(cos, 0)^2, the paper's measure on cos."""
    differ = 0
    for seed in range(50):
        x, y = normal(20, 8, seed=seed), normal(20, 8, seed=seed + 1000)
        cosines = (x / x.norm(dim=0)).T @ (y / y.norm(dim=0))
        by_sum, by_square = (groups.Permutation(8).procrustes(m) for m in (cosines, cosines.clamp(min=0).square()))
        differ += by_sum != by_square
    assert 0 < differ < 50


def test_six_of_ten_channels():
    x = normal(100, 10).relu()
    assert procrustes(x, x[:, :6], group="g_relu") == pytest.approx(1 - 2 / (2 * sqrt(10)), abs=1e-6)
    assert round(procrustes(x[:, :6], x, group="g_relu"), 3) == 0.684


def test_independent_half_rectified_gaussians_are_far_from_zero():
    scores = [
        procrustes(normal(4000, 64, seed=s).relu(), normal(4000, 64, seed=s + 9).relu(), "g_relu") for s in range(3)
    ]
    assert sum(scores) / 3 == pytest.approx(0.42, abs=0.01)


def test_translations_change_the_uncentred_score():
    """The paper's property (i) with translations holds only with centring (about 0.78 without)."""
    x = normal(2000, 16).relu()
    moved = x + normal(16, seed=1).abs()
    assert 0.6 < procrustes(x, moved, group="g_relu") < 0.95
    assert procrustes(x, moved, group="g_relu", center=True) == pytest.approx(1, abs=1e-6)


def test_space_is_summed_over_and_never_mixed():
    x, y = normal(10, 4, 3, 3), normal(10, 4, 3, 3, seed=1)
    rows = lambda t: t.movedim(1, -1).reshape(-1, 4)
    for kind in ("orthogonal", "g_relu", "monomial", "permutation", "signed_permutation", "trivial"):
        assert procrustes(x, y, kind) == pytest.approx(procrustes(rows(x), rows(y), kind))
    assert procrustes(x, x.flip(2), "orthogonal") < 0.9


def test_long_features_go_in_blocks(monkeypatch):
    x, y = normal(30, 4, 3), normal(30, 4, 3, seed=1)
    expected = procrustes(x, y)
    monkeypatch.setattr("intertwine.similarity._features._BLOCK", 40)
    assert procrustes(x, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["trivial", "permutation", "signed_permutation", "g_relu", "monomial", "orthogonal"])
def test_groups_are_taken_as_values_and_by_all_their_names(name):
    group = groups.named(name, 6)
    same = [other for other in groups.names() if groups.named(other, 6) == group]
    assert {Procrustes(kind) for kind in (group, group.on(2), *same)} == {Procrustes(name)}
    assert Procrustes(name).name == f"{name}_procrustes"
    x, y = normal(30, 6), normal(30, 6, seed=1)
    assert procrustes(x, group.random(generator=0).apply(y), name) == pytest.approx(procrustes(x, y, group))


@pytest.mark.parametrize(
    "group", [groups.GeneralLinear(6), groups.Monomial(6, scales=2), groups.Orthogonal(6, special=True)]
)
def test_groups_whose_best_element_is_not_searched_are_refused(group):
    with pytest.raises(ValueError, match=r"group must be one of .*Got (GeneralLinear|Monomial|Orthogonal)\(6"):
        procrustes(normal(30, 6), normal(30, 6), group)


def test_floors():
    lowest = 1 - sqrt(0.5)
    x, y = torch.eye(8, dtype=torch.float64)[:, :4].clone(), torch.eye(8, dtype=torch.float64)[:, 4:].clone()
    for kind in ("orthogonal", "g_relu", "monomial", "signed_permutation", "permutation"):
        m = Procrustes(kind)
        a, b = m.prepare(x), m.prepare(y)
        assert m.score(a, b) == pytest.approx(lowest) == m.floor(a, b)
    m = Procrustes("g_relu", center=True)
    line = normal(8, 1)
    a, b = m.prepare(line.repeat(1, 3)), m.prepare(-line.repeat(1, 3))
    assert m.score(a, b) == pytest.approx(0, abs=1e-7) == m.floor(a, b)
    narrow = m.prepare(-line.repeat(1, 2))
    assert m.score(a, narrow) == pytest.approx(m.floor(a, narrow))


def test_sizes_that_do_not_fit():
    x = normal(10, 4, 8, 8)
    with pytest.raises(ValueError, match=r"same spatial size. Got \(8, 8\) and \(4, 4\). Pool the finer"):
        procrustes(x, x[:, :, :4, :4])
    with pytest.raises(ValueError, match=r"group must be one of 'orthogonal', 'positive_monomial'.*Got 'relu'"):
        procrustes(x, x, group="relu")
    with pytest.raises(ValueError, match=r"other than 0, the axis of examples. Got 4"):
        procrustes(x, x, channel_dim=4)
    with pytest.raises(ValueError, match=r"example axis and a channel axis"):
        procrustes(x[:, 0, 0, 0], x[:, 0, 0, 0])


def test_lemma_5_1_scales_and_permutations_make_all_of_g_relu():
    x, y = normal(50, 8).relu(), normal(50, 8, seed=1).relu()
    a, b = groups.PositiveMonomial(8).random(generator=1), groups.PositiveMonomial(8).random(generator=2)
    assert procrustes(a.apply(x), b.apply(y), "g_relu") == pytest.approx(procrustes(x, y, "g_relu"))


@pytest.mark.parametrize("spread", [torch.ones(256), torch.logspace(0, -4, 256), torch.tensor([1e4, *[1.0] * 255])])
def test_quick_traces_and_maps_are_those_of_singular_values(spread):
    """In float32 where that is precise enough, else in float64: an outlier hides the others in float32."""
    g = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(256, 256, generator=g, dtype=torch.float64))
    gains, total = u * spread.double() @ v, float(spread.double().sum())
    assert float(Procrustes("orthogonal").best_traces(gains[None])) == pytest.approx(total, rel=1e-4)
    trace, found = polar(gains, quick=True)
    assert trace == pytest.approx(total, rel=1e-4) and float((found * gains).sum()) == pytest.approx(total, rel=2e-2)
