"""What measures give where nothing is shared: their own formula for chance, and honest p-values."""

import pytest
import torch

from intertwine.similarity import measure, measure_names
from intertwine.similarity.inference import infer

NEW = ("linear_regression", "r2_cca", "distance_correlation", "neighbour_jaccard", "cknna", "soft_matching")
NEW = (*NEW, "linear_regression_backward", "distance_correlation_biased", "size_and_shape_procrustes")


def pairs(count, n, c, d):
    g = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(n, c, generator=g), torch.randn(n, d, generator=g)


@pytest.mark.parametrize(
    ("name", "chance"),
    [
        ("linear_regression", 12 / 119),  # rank of the predictors over rows - 1
        ("linear_regression_backward", 5 / 119),
        ("r2_cca", 12 / 119),  # the larger rank
        ("distance_correlation", 0.0),
        ("cknna", 0.77 * 10 / 119),  # a little less than mutual neighbours
        ("mutual_knn", 10 / 119),
        ("neighbour_jaccard", 0.0441),  # about k / (2 (N - 1) - k)
    ],
)
def test_chance_is_what_the_docstring_says(name, chance):
    scores = torch.tensor([measure(name)(x, y) for x, y in pairs(60, 120, 12, 5)])
    assert abs(float(scores.mean()) - chance) < 4 * float(scores.std()) / 60**0.5 + 2e-3


def test_wide_independent_features_are_at_chance_unless_biased():
    x, y = next(pairs(1, 60, 2000, 2000))
    assert abs(measure("distance_correlation")(x, y)) < 0.05
    assert measure("distance_correlation_biased")(x, y) > 0.9


@pytest.mark.parametrize("name", NEW)
def test_p_values_of_unrelated_features_are_not_small(name):
    found = [infer(x.relu(), y.relu(), name, null=19, bootstrap=2, seed=3).p_value for x, y in pairs(12, 30, 4, 6)]
    assert 0.25 < sum(found) / len(found) < 0.75
    related = next(pairs(1, 30, 4, 4))[0]
    assert infer(related, related + 0.1 * related.flip(0), name, null=19, bootstrap=2).p_value == 0.05


def test_more_agreement_scores_more():
    """Every measure rises with the share of a common signal."""
    g = torch.Generator().manual_seed(1)
    signal, noise = torch.rand(80, 5, generator=g), torch.rand(80, 5, generator=g)
    for name in (n for n in measure_names() if not n.startswith("gates")):  # whose units are all on
        m = measure(name)
        scores = [m(signal, (1 - t) * noise + t * signal) for t in (0.0, 0.6, 1.0)]
        assert scores[0] < scores[1] < scores[2] == pytest.approx(1, abs=1e-6), name
