"""Intervals over pairs of models: what they cover, against the interval over pairs that does not."""

from itertools import permutations

import numpy as np
import pytest

from intertwine._zoo_intervals import PairInterval, pair_interval


def draw(rng, models, pairs, of_first, of_second, of_pair):
    """Values ``a_i + b_j + e_ij`` of ordered pairs drawn uniformly with replacement; their expectation is 0."""
    i = rng.integers(0, models, pairs)
    j = (i + rng.integers(1, models, pairs)) % models
    a, b = rng.normal(size=models) * of_first, rng.normal(size=models) * of_second
    e = rng.normal(size=(models, models)) * of_pair
    return list(zip(i.tolist(), j.tolist())), a[i] + b[j] + e[i, j]


def coverage(models, pairs, effects, times=400):
    rng = np.random.default_rng(0)
    over_models = over_pairs = 0
    for _ in range(times):
        drawn, values = draw(rng, models, pairs, *effects)
        found = pair_interval(drawn, values.tolist())
        over_models += found.low <= 0 <= found.high
        over_pairs += abs(values.mean()) <= 1.96 * values.std(ddof=1) / pairs**0.5
    return over_models / times, over_pairs / times


@pytest.mark.parametrize("effects", [(1, 1, 0.2), (1, 1, 1), (1, 0, 0.5), (0.3, 0.3, 1), (0, 0, 1)], ids=str)
@pytest.mark.parametrize(("models", "pairs"), [(5, 16), (10, 32), (10, 200), (100, 32)])
def test_the_interval_over_models_covers(models, pairs, effects):
    # 400 draws: a true 95 % shows as 93 to 97
    assert coverage(models, pairs, effects)[0] >= 0.92


@pytest.mark.parametrize("effects", [(1, 1, 0.2), (1, 1, 1), (1, 0, 0.5)], ids=str)
def test_the_interval_over_pairs_does_not(effects):
    assert coverage(10, 200, effects)[1] < 0.45


def test_it_leaves_each_model_out_with_all_its_pairs():
    pairs = list(permutations("abcd", 2))
    values = [0.1 * k**1.5 for k in range(len(pairs))]
    without = [np.mean([v for p, v in zip(pairs, values) if model not in p]) for model in "abcd"]
    variance = 3 / 4 * sum((m - np.mean(without)) ** 2 for m in without)
    found = pair_interval(pairs, values)
    assert found.high - found.mean == pytest.approx(3.182446305 * variance**0.5)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.mean == pytest.approx(np.mean(values))


def test_drawing_every_pair_again_changes_nothing():
    # 20 times the pairs, not one model more
    pairs = list(permutations(range(5), 2))
    values = np.random.default_rng(0).normal(size=len(pairs)).tolist()
    once, often = pair_interval(pairs, values), pair_interval(pairs * 20, values * 20)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (once.pairs, often.pairs, often.models) == (20, 400, 5)


def test_a_higher_level_is_wider_and_equal_values_have_no_width():
    pairs = list(permutations(range(4), 2))
    values = [float(i) for i in range(12)]
    assert pair_interval(pairs, values, 0.99).high > pair_interval(pairs, values, 0.9).high
    flat = pair_interval(pairs, [0.25] * 12)
    assert (flat.low, flat.high) == pytest.approx((0.25, 0.25))


def test_it_prints_what_it_is():
    assert str(PairInterval(0.1, 0.05, 0.15, 0.95, 8, 32)) == "0.1 [0.05, 0.15] (95%, 32 pairs of 8 models)"


@pytest.mark.parametrize(
    ("pairs", "values", "level", "message"),
    [
        ([(0, 1), (1, 2)], [0.1], 0.95, "values must be one for each pair. Got 1 values for 2 pairs"),
        ([(0, 1), (1, 2)], [0.1, float("nan")], 0.95, "values must be finite"),
        ([(0, 1), (2, 2)], [0.1, 0.2], 0.95, "two distinct models. Got 2 with itself"),
        ([(0, 1), (1, 0)], [0.1, 0.2], 0.95, "at least 3 models for an interval over models. Got 2"),
        ([(0, 1), (2, 0)], [0.1, 0.2], 0.95, "pairs must not all hold the same model. Got 0"),
        ([(0, 1), (1, 2), (2, 0)], [0.1, 0.2, 0.3], 95, "confidence must lie between 0 and 1. Got 95"),
        ([], [], 0.95, "at least 3 models"),
    ],
)
def test_bad_input_is_refused(pairs, values, level, message):
    with pytest.raises(ValueError, match=message):
        pair_interval(pairs, values, level)
