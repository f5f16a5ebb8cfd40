"""Intervals of means over pairs of models: pairs share models, so models are what is resampled."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from ._words import counted

__all__ = ["PairInterval", "pair_interval"]

_FEWEST = 3  # models: leaving one of two out leaves no pair


@dataclass(frozen=True)
class PairInterval:
    """A mean over pairs of models with its confidence interval.

    Attributes:
        mean: Mean of the values.
        low: Lower end of the interval.
        high: Upper end.
        confidence: Nominal coverage.
        models: Number of distinct models among the pairs: this, not the number of pairs, is the sample size.
        pairs: Number of pairs.
    """

    mean: float
    low: float
    high: float
    confidence: float
    models: int
    pairs: int

    def __str__(self) -> str:
        found = f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"
        return f"{found} ({self.confidence:.0%}, {counted(self.pairs, 'pair')} of {counted(self.models, 'model')})"


def pair_interval(
    pairs: Sequence[tuple[Hashable, Hashable]], values: Sequence[float], confidence: float = 0.95
) -> PairInterval:
    """Confidence interval for the mean that pairs of infinitely many models would give.

    The papers average over pairs drawn from a zoo. Two pairs that share a model are not independent: with 10 models
    and 200 pairs the usual interval over pairs, nominally 95 %, covers the truth in a quarter to a third of all cases.
    Here each model is left out in turn, with all pairs that it is part of (a delete-one jackknife over models). With
    the means ``m_k`` of what is left, ``k = 1 .. K``, and ``m.`` the mean of those,

        v = (K - 1) / K · Σ_k (m_k - m.)²,    mean -+ t √v

    where ``t`` is Student's for ``K - 1`` degrees of freedom. By the Efron-Stein inequality ``v`` errs upwards: the
    interval is somewhat too wide where pairs differ although their models do not, and right where models differ.
    Tests measure its coverage from 5 models on.

    Args:
        pairs: For each value, the two models that it is about, under any names; the order does not matter here. The
            same pair may occur again.
        values: One number for each pair, such as a stitching penalty or a barrier.
        confidence: Nominal coverage.

    Raises:
        ValueError: If the numbers of pairs and values differ, a value is not finite, a pair holds one model twice, the
            confidence is not inside 0 to 1, there are fewer than 3 models, or one model is part of every pair.

    References:
        - Efron, B. and Stein, C. The jackknife estimate of variance. Annals of Statistics 9 (1981).
        - Aronow, P., Samii, C. and Assenova, V. Cluster-robust variance estimation for dyadic data. Political Analysis
          23 (2015).

    Examples:
        >>> from intertwine._zoo_intervals import pair_interval
        >>> found = pair_interval([("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")], [0.1, 0.2, 0.3, 0.2])
        >>> round(found.mean, 3), found.low < found.mean < found.high, found.models, found.pairs
        (0.2, True, 4, 4)
    """
    _check(pairs, values, confidence)
    total, count = sum(values), len(values)
    sums: dict[Hashable, float] = {}
    counts: dict[Hashable, int] = {}
    for pair, value in zip(pairs, values):
        for model in pair:
            sums[model] = sums.get(model, 0.0) + value
            counts[model] = counts.get(model, 0) + 1
    models = len(counts)
    for model, among in counts.items():
        if among == count:
            raise ValueError(
                f"pairs must not all hold the same model. Got {model!r} in each of {count}: they say nothing about "
                "other models in its place. Draw pairs from a zoo of at least 3 models."
            )
    rest = [(total - sums[model]) / (count - counts[model]) for model in counts]
    centre = sum(rest) / models
    variance = (models - 1) / models * sum((mean - centre) ** 2 for mean in rest)
    mean, half = total / count, student_t(confidence, models - 1) * sqrt(variance)
    return PairInterval(mean, mean - half, mean + half, confidence, models, count)


def _check(pairs: Sequence[tuple[Hashable, Hashable]], values: Sequence[float], confidence: float) -> None:
    if len(pairs) != len(values):
        raise ValueError(f"values must be one for each pair. Got {len(values)} values for {len(pairs)} pairs.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1. Got {confidence}.")
    for value in values:
        if not isfinite(value):
            raise ValueError(f"values must be finite. Got {value}. Leave out pairs that failed, and say how many.")
    for first, second in pairs:
        if first == second:
            raise ValueError(f"pairs must be of two distinct models. Got {first!r} with itself.")
    models = {model for pair in pairs for model in pair}
    if len(models) < _FEWEST:
        raise ValueError(
            f"pairs must be of at least {_FEWEST} models for an interval over models. Got {len(models)}. "
            "Train more networks."
        )


def student_t(confidence: float, freedom: float) -> float:
    """The ``t`` for which a Student variable lies between ``-t`` and ``t`` with probability ``confidence``.

    Examples:
        >>> round(student_t(0.95, 19), 3), round(student_t(0.95, 9.5), 3)
        (2.093, 2.244)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))
