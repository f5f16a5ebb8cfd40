"""Procrustes measures of large networks: what is saved is said, and what is given is exact or estimated well."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.features import Reading, collect
from intertwine.similarity import Resampling, _linalg, measure
from intertwine.similarity.comparison.draws import Draws
from intertwine.similarity.comparison.verdict import summarise
from intertwine.similarity.measures import procrustes

ORTHOGONAL, G_RELU = "orthogonal_procrustes_centered", "g_relu_procrustes_centered"


def net(widths, seed):
    torch.manual_seed(seed)
    sizes = [10, *widths]
    return nn.Sequential(*(part for n, m in pairwise(sizes) for part in (nn.Linear(n, m), nn.ReLU())))


def compared(a, b, x, work, **options):
    return iw.compare(a, b, [x], reading=Reading(work=work), exact=True, **options)


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(400, 10, generator=torch.Generator().manual_seed(5))


def test_partners_keep_their_exact_scores_and_chance_is_estimated(inputs):
    a, b = net((40, 30, 20), 0), net((40, 30, 20), 1)
    full, saved = (compared(a, b, inputs, work) for work in (math.inf, 1.0))
    assert not any("to save work" in note for note in full.notes)
    (said,) = [note for note in saved.notes if "to save work" in note]
    assert "3 of 9 pairs of layers" in said
    assert "3 of 20 shuffles" in said
    torch.testing.assert_close(saved.scores["linear_cka"], full.scores["linear_cka"])
    off = ~torch.eye(3, dtype=torch.bool)
    for name in (ORTHOGONAL, G_RELU):
        scores, chance = saved.scores[name], saved.chance[name]
        torch.testing.assert_close(scores.diagonal(), full.scores[name].diagonal(), atol=1e-12, rtol=0)
        above = chance.diagonal() - full.chance[name].diagonal()
        assert ((above > -1e-3) & (above < 0.03)).all()  # rather too high than too low
        assert scores[off].isnan().all() and chance[off].isnan().all()
        assert (saved.null_p[name].diagonal() >= full.null_p[name].diagonal()).all()
        low, high = (end[name].diagonal() for end in (saved.low, saved.high))
        assert ((low <= scores.diagonal()) & (scores.diagonal() <= high)).all()
        assert saved.untrained_pairs[name].shape == (2, 3, 3)
    assert summarise(saved, ORTHOGONAL).matched is None
    assert saved.summary().count("partner in B") == 2
    assert summarise(saved, "linear_cka").matched is not None


def test_between_all_and_little_all_pairs_have_scores(inputs):
    a, b = net((40, 30), 0), net((40, 30), 1)
    full = compared(a, b, inputs, math.inf, measures=ORTHOGONAL, resampling=Resampling(untrained=0))
    cost = {}
    for work in (1e9, 3e8, 2e8, 1.5e8, 1.2e8, 1e8, 8e7, 6e7, 4e7, 2e7, 1e7, 1e6):
        found = compared(a, b, inputs, work, measures=ORTHOGONAL, resampling=Resampling(untrained=0))
        known = ~found.scores[ORTHOGONAL].isnan(), ~found.chance[ORTHOGONAL].isnan()
        cost.setdefault(tuple(int(part.sum()) for part in known), found)
    assert list(cost) == [(4, 4), (4, 2), (2, 2)]
    torch.testing.assert_close(cost[4, 2].scores[ORTHOGONAL], full.scores[ORTHOGONAL])


def test_layers_without_counterparts_meet_the_most_similar_one(inputs):
    a, b = net((40, 30, 20), 0), net((40, 20), 1)
    found = compared(a, b, inputs, 1.0, measures=["linear_cka", ORTHOGONAL])
    assert (~found.scores[ORTHOGONAL].isnan()).sum(1).tolist() == [1, 1, 1]
    best = found.scores["linear_cka"].argmax(1)
    assert not found.scores[ORTHOGONAL].gather(1, best[:, None]).isnan().any()
    assert "best matches" in found.summary()


@pytest.mark.parametrize("work", [0, -1.0, math.nan, True, "all"])
def test_work_is_positive(work, inputs):
    with pytest.raises(ValueError, match=r"work must be a positive number"):
        compared(net((4,), 0), net((4,), 1), inputs, work)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fewer_rows_than_channels(dtype):
    """Layers by their coordinates in the span of their rows: scores, chance and halves stay."""
    a, b, x = net((60, 25), 0).to(dtype), net((50, 25), 1).to(dtype), torch.randn(24, 10).to(dtype)
    names = [ORTHOGONAL, "orthogonal_procrustes", "size_and_shape_procrustes", G_RELU]
    found = iw.compare(a, b, [x], measures=names, resampling=Resampling(null=5, bootstrap=4, seed=9, untrained=0))
    draws, tolerance = Draws.make(24, 5, 4, 9), 1e-9 if dtype == torch.float64 else 2e-6
    fa, fb = collect(a, [x]), collect(b, [x])
    for name in names:
        m = measure(name)
        for (i, u), (j, v) in ((p, q) for p in enumerate(fa.values()) for q in enumerate(fb.values())):
            p, q = m.prepare(u), m.prepare(v)
            assert float(found.scores[name][i, j]) == pytest.approx(m.score(p, q), abs=tolerance)
            chance = sum(m.score(p, q.take(order)) for order in draws.permutations) / 5
            assert float(found.chance[name][i, j]) == pytest.approx(chance, abs=tolerance)


@pytest.mark.parametrize("smallest", [1e-3, 1e-7, 1e-12, 0.0])
def test_quick_nuclear_norms_know_their_error(smallest, monkeypatch):
    monkeypatch.setattr(procrustes, "_LARGE", 1)
    g = torch.Generator().manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(60, 60, dtype=torch.float64, generator=g)).Q for _ in range(2))
    sizes = torch.logspace(0, math.log10(smallest), 60, dtype=torch.float64) if smallest else torch.eye(60)[0].double()
    for share in (0.5, 0.9, 1 - 1e-9, 1.0):
        scaled = sizes * share / sizes.sum()
        matrix = u @ torch.diag(scaled) @ v
        quick, error = _linalg.quick_nuclear_norm(matrix)
        assert abs(quick - share) <= error + 1e-15
        score = 1 - math.sqrt(max(0.0, 2 - 2 * procrustes._nuclear_norm(matrix))) / 2
        assert score == pytest.approx(1 - math.sqrt(2 - 2 * share) / 2, abs=1.2e-7)


def test_shuffles_are_turns_that_leave_no_example_but_the_rest():
    for examples, count in ((24, 5), (23, 5), (400, 20), (101, 20)):
        draws = Draws.make(examples, count, 0, 3)
        parts = len(draws.wheel)
        assert parts > count
        assert len(set(map(tuple, draws.permutations.tolist()))) == count
        for order in draws.permutations:
            assert sorted(order.tolist()) == list(range(examples))
            assert int((order == torch.arange(examples)).sum()) == examples % parts
    assert not len(Draws.make(6, 20, 0, 3).turns)
