"""Intervals of means over pairs of models. Pairs share models, so it is models that are resampled."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from ._words import check_share, counted

__all__ = ["PairInterval", "left_out", "pair_interval"]

_FEWEST = 3  # models: with two, leaving one out leaves no pair


@dataclass(frozen=True)
class PairInterval:
    """A mean over pairs of models with its confidence interval."""

    mean: float  # Mean of the values
    low: float  # Lower end of the interval
    high: float  # Upper end
    confidence: float  # Nominal coverage
    models: int  # Number of distinct models among the pairs: this, not the number of pairs, is the sample size
    pairs: int  # Number of pairs

    def __str__(self) -> str:
        found = f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"
        return f"{found} ({self.confidence:.0%}, {counted(self.pairs, 'pair')} of {counted(self.models, 'model')})"


def pair_interval(
    pairs: Sequence[tuple[Hashable, Hashable]], values: Sequence[float], confidence: float = 0.95
) -> PairInterval:
    """Confidence interval for the mean over all pairs of infinitely many models.

    The papers average over pairs drawn from a zoo. Two pairs that share a model are not independent: with 10 models and
    200 pairs, the usual interval over pairs, nominally 95 %, covers the truth in a quarter to a third of all cases.
    Here each model is left out in turn, with all pairs that contain it (a delete-one jackknife over models). Let
    ``m_k`` be the mean over the remaining pairs, ``k = 1 .. K``, and ``m.`` the mean of these:

        v = (K - 1) / K · Σ_k (m_k - m.)²,    mean -+ t √v

    where ``t`` is Student's, with ``K - 1`` degrees of freedom if all pairs are there and fewer otherwise
    (:func:`left_out`). By the Efron-Stein inequality ``v`` errs upwards: the interval is somewhat too wide if pairs
    differ although their models do not, and right if models differ. Tests measure its coverage from 5 models on.

    Args:
        pairs: The two models of each value, under any names; their order does not matter. The same pair may occur
            again.
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
    models = list(dict.fromkeys(model for pair in pairs for model in pair))
    for model in models:
        if all(model in pair for pair in pairs):
            raise ValueError(
                f"pairs must not all hold the same model. Got {model!r} in each of {len(pairs)}: they say nothing "
                "about other models in its place. Draw pairs from a zoo of at least 3 models."
            )
    variance, freedom = left_out(pairs, values)
    mean, half = sum(values) / len(values), student_t(confidence, freedom) * sqrt(variance)
    return PairInterval(mean, mean - half, mean + half, confidence, len(models), len(values))


def left_out(pairs: Sequence[tuple[Hashable, Hashable]], values: Sequence[float]) -> tuple[float, float]:
    """Variance of a mean over pairs, by leaving out each model in turn, and its degrees of freedom.

    The variance is a quadratic form in the values, with eigenvalues ``a_i``. If pairs vary independently, it is like a
    chi-squared variable with ``(Σ a_i)^2 / Σ a_i^2`` degrees of freedom (Satterthwaite): ``K - 1`` for all pairs of
    ``K`` models, 4.5 for a ring of 8, and 2 for a ring of 4, where the pairs left by opposite models make up the whole.
    With these, simulated levels hold at 5 % and far below it, also if models differ (``docs/statement-levels.md``);
    with ``K - 1`` a ring is wrong twice as often as it says at 0.25 %.

    Args:
        pairs: Pairs of models; no model is in all of them.
        values: One number for each pair.

    References:
        - Bell, R. and McCaffrey, D. Bias reduction in standard errors for linear regression with multi-stage samples.
          Survey Methodology 28 (2002).

    Examples:
        >>> ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
        >>> [round(x, 4) for x in left_out(ring, [1.0, 2.0, 3.0, 5.0])]
        [2.4375, 2.0]
    """
    models = {model: k for k, model in enumerate(dict.fromkeys(model for pair in pairs for model in pair))}
    count, ends = len(models), np.array([[models[a], models[b]] for a, b in pairs])
    among, sums = (np.bincount(ends.T.ravel(), w, count) for w in (None, np.tile(np.asarray(values, float), 2)))
    kept = len(pairs) - among
    rest = (np.sum(values) - sums) / kept
    distinct, times = np.unique(ends, axis=0, return_counts=True)
    both = np.zeros((count, count))
    for a, b in (distinct.T, distinct.T[::-1]):
        np.add.at(both, (a, b), times**2)
    own = both.sum(1)
    moments = ((times**2).sum() - own[:, None] - own[None, :] + both + np.diag(own)) / np.outer(kept, kept)
    centred = moments - moments.mean(0)
    centred -= centred.mean(1, keepdims=True)
    freedom = float(np.trace(centred) ** 2 / (centred**2).sum())
    return (count - 1) ** 2 / count * float(np.var(rest, ddof=1)), min(freedom, count - 1.0)


def _check(pairs: Sequence[tuple[Hashable, Hashable]], values: Sequence[float], confidence: float) -> None:
    if len(pairs) != len(values):
        raise ValueError(f"values must be one for each pair. Got {len(values)} values for {len(pairs)} pairs.")
    check_share("confidence", confidence)
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
