"""Chance levels, p-values, calibrated scores and intervals; coverage by simulation with a planted truth."""

from math import isnan

import pytest
import torch

from intertwine.similarity import cka, measure
from intertwine.similarity.hsic import center_gram, inner
from intertwine.similarity.inference import Draws, calibrate, infer, interval, p_value


def normal(*shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class Planted:
    """Jointly Gaussian features whose population similarities are known."""

    def __init__(self, noise=1.0, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.a, self.b, self.noise = normal(4, 5, generator=self.g), normal(4, 6, generator=self.g), noise

    def truth(self, name):
        xx, xy = self.a.T @ self.a, self.a.T @ self.b
        yy = self.b.T @ self.b + self.noise**2 * torch.eye(6, dtype=torch.float64)
        if name == "linear_cka":
            return float(xy.square().sum() / (xx.norm() * yy.norm()))
        return float(1 - (2 - 2 * torch.linalg.svdvals(xy).sum() / (xx.trace() * yy.trace()).sqrt()).sqrt() / 2)

    def draw(self, n):
        z = normal(n, 4, generator=self.g)
        return z @ self.a, z @ self.b + self.noise * normal(n, 6, generator=self.g)


@pytest.mark.parametrize("name", ["linear_cka", "orthogonal_procrustes"])
def test_intervals_cover_a_planted_truth(name):
    """With 20 halves that are unions of folds, the default of ``compare``; nominal 0.95."""
    m, planted, runs = measure(name), Planted(), 100
    truth, covered = planted.truth(name), 0
    for run in range(runs):
        x, y = planted.draw(48)
        a, b = m.prepare(x), m.prepare(y)
        draws, score = Draws.make(48, null=0, bootstrap=20, seed=run), m.score(a, b)
        halves = torch.tensor([m.score(a.take(h), b.take(h)) for h in draws.subsamples], dtype=torch.float64)
        low, high = interval(m, score, halves, 48, parts=len(draws.folds))
        assert low <= score <= high and low < high
        covered += low <= truth <= high
    assert 0.9 <= covered / runs <= 1


@pytest.mark.parametrize(("draws", "parts", "coverage"), [(5, 10**6, 0.95), (20, 10**6, 0.95), (20, 20, 0.97)])
def test_few_draws_keep_the_nominal_coverage(draws, parts, coverage):
    """A further draw of the same normal errors lies in the interval as often as promised, whatever their number."""
    g, m, covered, runs = torch.Generator().manual_seed(0), measure("linear_cka"), 0, 4000
    errors = 0.01 * normal(runs, draws, generator=g) + 0.003
    truth = 0.5 - (0.01 * normal(runs, generator=g) + 0.003)  # the score's own error is of their kind
    for e, t in zip(errors, truth):
        low, high = interval(m, 0.5, 0.5 + e, 1000, parts=parts)
        covered += low <= t <= high
    assert covered / runs == pytest.approx(coverage, abs=0.012)


def test_an_inflated_score_lies_at_the_end_of_its_interval():
    """Halves score far higher than the whole: the whole, too, is higher than more examples would be."""
    low, high = interval(measure("svcca"), 0.7, torch.tensor([0.79, 0.8, 0.8, 0.81], dtype=torch.float64), 100)
    assert low < 0.6 < high == 0.7


def test_sampling_with_replacement_invents_similarity():
    """Notes: repeated examples put k(x, x) off the diagonal; independent features go from 0 to nearly 1."""
    g = torch.Generator().manual_seed(0)
    x, y = normal(100, 2000, generator=g), normal(100, 2000, generator=g)
    again = torch.randint(100, (100,), generator=g)
    k, l = (center_gram((t @ t.T)[again][:, again]) for t in (x, y))
    assert abs(cka(x, y)) < 0.05
    assert inner(k, l) / (inner(k, k) * inner(l, l)) ** 0.5 > 0.9
    found = infer(x, y, null=1, bootstrap=60)
    assert found.low <= 0 <= found.high and found.high < 0.1


@pytest.mark.parametrize("name", ["linear_cka", "g_relu_cka", "g_relu_procrustes", "orthogonal_procrustes"])
def test_p_values_of_unrelated_features_are_uniform(name):
    g, values = torch.Generator().manual_seed(0), []
    for run in range(60):
        x, y = normal(20, 4, generator=g).relu() + 0.01, normal(20, 4, generator=g).relu() + 0.01
        values.append(infer(x, y, name, null=19, bootstrap=2, seed=run).p_value)
    small = sum(v <= 0.2 for v in values) / len(values)
    assert 0.03 <= small <= 0.37 and min(values) >= 0.05


def test_related_features_are_told_from_chance():
    x, y = Planted(0.3).draw(60)
    found = infer(x, y, "orthogonal_procrustes", null=39, bootstrap=39)
    assert found.p_value == 1 / 40 and found.chance < found.score and 0 < found.calibrated < 1
    assert found.low <= found.score <= found.high and found.n == 60 and found.dead == (0, 0)
    assert found.floor == pytest.approx(1 - 0.5**0.5)


@pytest.mark.parametrize("name", ["linear_cka", "g_relu_cka", "g_relu_procrustes", "svcca", "rsa"])
def test_equal_sides_get_a_point_interval_at_one(name):
    g = torch.Generator().manual_seed(0)
    x = normal(40, 6, generator=g).abs()
    found = infer(x, x, name, null=19, bootstrap=19)
    assert (found.score, found.low, found.high) == pytest.approx((1, 1, 1), abs=1e-6)
    assert found.calibrated == pytest.approx(1, abs=1e-6) and found.p_value == 0.05


def test_measures_of_a_fixed_number_of_neighbours_have_no_interval():
    """Their scores have no limit that halves of the examples would tell of."""
    found = infer(x := normal(40, 6, generator=torch.Generator().manual_seed(0)), x, "mutual_knn", null=19)
    assert found.score == 1 and found.p_value == 0.05 and isnan(found.low) and isnan(found.high)


def test_seeds_repeat():
    x, y = Planted().draw(30)
    assert infer(x, y, seed=3, null=9, bootstrap=9) == infer(x, y, seed=3, null=9, bootstrap=9)
    assert infer(x, y, seed=3, null=9, bootstrap=9) != infer(x, y, seed=4, null=9, bootstrap=9)


def test_calibration_by_hand():
    null = torch.linspace(0, 0.4, 101)
    assert calibrate(0.7, null) == pytest.approx((0.7 - 0.38) / 0.62)
    assert calibrate(0.3, null) == 0 and calibrate(1.0, null) == pytest.approx(1)
    assert calibrate(1.0, torch.ones(20)) == 0
    assert p_value(0.39, null) == pytest.approx(4 / 102)


def test_wrong_arguments():
    x, y = Planted().draw(30)
    m = measure("linear_cka")
    with pytest.raises(ValueError, match=r"null must be at least 1. Got 0"):
        infer(x, y, null=0)
    with pytest.raises(ValueError, match=r"bootstrap must be at least 2. Got 1"):
        infer(x, y, bootstrap=1)
    with pytest.raises(ValueError, match=r"halves must hold at least 2 scores"):
        interval(m, 0.5, torch.zeros(1), 30)
    with pytest.raises(ValueError, match=r"examples must be at least 8. Got 7"):
        infer(x[:7], y[:7])
    with pytest.raises(ValueError, match=r"confidence must lie between 0 and 1. Got 1"):
        interval(m, 0.5, torch.zeros(3), 30, confidence=1)
    with pytest.raises(ValueError, match=r"Got 30 and 20"):
        infer(x, y[:20])
