"""Samples of networks and estimates with errors: what varies, how many networks are behind a number, how certain it is.

A number of an experiment varies for two reasons: other networks could have been trained, and other images could have
been drawn for the test set. A :class:`Sample` holds the numbers as measured, one for each network or pair of networks,
perhaps on each block of test images. Samples are added and subtracted network by network (a paired design);
:func:`independent` combines arms that share no networks (Welch). Both end in an :class:`Estimate`: a number with its
standard error and degrees of freedom, which determine its interval, one-sided p-values and power.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from ..._zoo_intervals import left_out

_FEWEST_OF_PAIRS = 3  # networks: if one of two is left out, no pair remains
_EQUAL = 5  # fewest networks with the same value to the last digit whose spread of 0 is believed
_ROUNDING = 1e-12  # relative spread that counts as rounding
_MOST_HALVES = 256  # of a zoo, in the jackknife


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error."""

    value: float  # The number
    # Standard error; ``None`` with too few networks, 0 for exact numbers
    error: float | None = None
    freedom: float = math.inf  # Degrees of freedom of the error (Student's t)
    # Number of independent networks or runs; ``None`` for mathematical facts, which have none
    networks: int | None = None
    fixed: float = 0.0  # The part of the error that more networks do not reduce: that of the test images
    limits: tuple[float, float] = (-math.inf, math.inf)  # Range of possible values, such as (-1, 1) of a correlation

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Two-sided confidence interval, ``value -+ t error`` clipped to the limits; ``None`` without an error.

        Examples:
            >>> [round(end, 3) for end in Estimate(2.0, 0.577350269, 2).interval()]
            [-0.484, 4.484]
        """
        if self.error is None:
            return None
        half = student_quantile((1 + confidence) / 2, self.freedom) * self.error
        return max(self.value - half, self.limits[0]), min(self.value + half, self.limits[1])

    def p_above(self, limit: float) -> float:
        """One-sided p-value of "the number lies above the limit": how often as large a value occurs if it does not."""
        return self._p(self.value - limit)

    def p_below(self, limit: float) -> float:
        """One-sided p-value of "the number lies below the limit"."""
        return self._p(limit - self.value)

    def _p(self, distance: float) -> float:
        """One-sided p-value of a distance from a limit; ``K`` equal values count as ``K`` signs only: ``2^-K``."""
        if self.error is None or not math.isfinite(self.value):
            return 1.0
        if self.error == 0 and math.isfinite(distance):
            return 1.0 if not distance > 0 else 2.0**-self.networks if self.networks else 0.0
        if self.error == 0:
            return float(distance < 0)
        from scipy.special import stdtr

        return float(stdtr(min(self.freedom, 1e9), -distance / self.error))

    def times(self, factor: float) -> Estimate:
        """The estimate times a factor that is known exactly."""
        error = None if self.error is None else abs(factor) * self.error
        low, high = sorted(factor * end for end in self.limits) if factor else (-math.inf, math.inf)
        return replace(self, value=factor * self.value, error=error, fixed=abs(factor) * self.fixed, limits=(low, high))

    def __str__(self) -> str:
        ends = self.interval()
        return f"{self.value:.3g}" + ("" if ends is None or ends[0] == ends[1] else f" [{ends[0]:.3g}, {ends[1]:.3g}]")


@dataclass(frozen=True, eq=False)
class Sample:
    """One number for each network or each ordered pair of networks, perhaps on each block of test images.

    ``a - b`` and ``a + b`` combine network by network (or pair by pair): a paired design cancels what both arms share.
    """

    # By ``(network,)`` or ``(network, partner)``: ``(B,)`` numbers, one for each of ``B`` blocks of test images, or a
    # single one
    numbers: Mapping[tuple[str, ...], NDArray[np.float64]]
    # Variance of a single number over test images, such as ``p (1 - p) / n`` of an accuracy ``p`` on ``n`` images;
    # unused with several blocks, whose spread is measured. Differences add variances, which overestimates where both
    # arms are right about the same images
    variance: float = 0.0

    @classmethod
    def of(cls, numbers: Mapping[Hashable, float], images: int = 0) -> Sample:
        """A sample of single numbers, keyed by network or by pair of networks, a tuple of two names.

        For accuracies and other shares of test images, ``images`` is how many images each number was measured on.

        Examples:
            >>> print(Sample.of({"a": 1.0, "b": 2.0, "c": 3.0}).estimate())
            2 [-0.484, 4.48]
        """
        keyed = {(k if isinstance(k, tuple) else (str(k),)): np.array([v], dtype=float) for k, v in numbers.items()}
        mean = float(np.mean([v[0] for v in keyed.values()])) if keyed else math.nan
        share = min(max(mean, 0.0), 1.0)
        return cls(keyed, share * (1 - share) / images if images else 0.0)

    @cached_property
    def means(self) -> dict[tuple[str, ...], float]:
        """One number for each key, mean over blocks."""
        return {key: float(values.mean()) for key, values in self.numbers.items()}

    @property
    def networks(self) -> list[str]:
        """All networks in the sample, alone or in pairs."""
        return list(dict.fromkeys(name for key in self.numbers for name in key))

    @property
    def mean(self) -> float:
        """Mean over networks or pairs."""
        return sum(self.means.values()) / len(self.numbers) if self.numbers else math.nan

    def __sub__(self, other: Sample) -> Sample:
        return self._joined(other, -1.0)

    def __add__(self, other: Sample) -> Sample:
        return self._joined(other, 1.0)

    def times(self, factor: float) -> Sample:
        """The sample times a factor that is known exactly."""
        return Sample({k: factor * v for k, v in self.numbers.items()}, factor**2 * self.variance)

    def _joined(self, other: Sample, sign: float) -> Sample:
        with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, which needs no warning
            both = {k: v + sign * other.numbers[k] for k, v in self.numbers.items() if k in other.numbers}
        return Sample(both, self.variance + other.variance)

    def estimate(self) -> Estimate:
        """Mean with its standard error.

        The variance over networks is ``s^2 / K`` with ``K - 1`` degrees of freedom. Pairs that share a network are not
        independent, so each network is left out in turn with all its pairs (``left_out``): with the means ``m_k`` of
        the remaining pairs, ``v = (K - 1) / K Σ (m_k - m.)^2``. ``K`` networks count ``K`` times, not
        ``K (K - 1) / 2`` times. The variance over test images (of block means, or binomial) is added, with degrees of
        freedom by Satterthwaite.

        There is no error with fewer than 2 networks, or 3 in pairs; if one network is part of all pairs; or if fewer
        than 5 networks all gave the same number to the last digit.

        References:
            - Efron, B. and Stein, C. The jackknife estimate of variance. Annals of Statistics 9 (1981).
            - Aronow, P., Samii, C. and Assenova, V. Cluster-robust variance estimation for dyadic data. Political
              Analysis 23 (2015).
        """
        return independent((1.0, self))

    def _network_part(self) -> tuple[float, float, int] | None:
        """Variance of the mean over networks, its degrees of freedom, number of networks; ``None`` if unknown."""
        means, names = self.means, self.networks
        count, freedom = len(names), len(names) - 1.0
        if not all(map(math.isfinite, means.values())):
            return None
        if all(len(key) == 1 for key in means):
            if count < 2:
                return None
            variance = float(np.var(list(means.values()), ddof=1)) / count
        else:
            if count < _FEWEST_OF_PAIRS or any(all(name in key for key in means) for name in names):
                return None
            variance, freedom = left_out([(key[0], key[1]) for key in means], list(means.values()))
        if variance <= (_ROUNDING * max(map(abs, means.values()))) ** 2:
            variance = 0.0  # rounding of equal differences, such as 0.9 - 0.8 and 0.5 - 0.4
        return None if count < _EQUAL and variance == 0 else (variance, freedom, count)


def mean_of(samples: Iterable[Sample]) -> Sample:
    """Mean over samples of the same networks, such as over layers; it keeps the networks that all samples have.

    Examples:
        >>> one, two = Sample.of({"a": 1.0, "b": 2.0}), Sample.of({"a": 3.0, "b": 6.0})
        >>> mean_of([one, two]).means
        {('a',): 2.0, ('b',): 4.0}
    """
    listed = list(samples)
    if not listed:
        return Sample({})
    summed = reduce(Sample.__add__, listed).times(1 / len(listed))
    deviation = sum(math.sqrt(s.variance) for s in listed) / len(listed)  # the same images: errors may be correlated
    return replace(summed, variance=deviation**2)


def independent(*terms: tuple[float, Sample]) -> Estimate:
    """Linear combination ``Σ c_i mean(S_i)`` of arms that share test images but no networks (Welch, a bit stricter).

    To test the ratio of two positive means against ``r``, test ``independent((1, a), (-r, b))`` against 0.

    Examples:
        >>> a, b = Sample.of({"a": 1.0, "b": 3.0}), Sample.of({"c": 1.0, "d": 1.5, "e": 2.0})
        >>> found = independent((1, a), (-1, b))
        >>> found.value, round(found.freedom, 2), found.networks
        (0.5, 1.0, 2)
    """
    value = sum(c * s.mean for c, s in terms)
    parts, networks = [], []
    for c, s in terms:
        found = s._network_part()
        if found is None:
            return Estimate(value, networks=min((len(s.networks) for _, s in terms), default=None))
        variance, freedom, count = found
        parts.append((c**2 * variance, float(freedom)))
        networks.append(count)
    blocks = [min(map(len, s.numbers.values()), default=1) for _, s in terms]
    means = [c * np.mean([*s.numbers.values()], axis=0) if n > 1 else np.zeros(1) for (c, s), n in zip(terms, blocks)]
    variance_of = lambda by_block: (float(np.var(by_block, ddof=1)) / len(by_block), len(by_block) - 1.0)
    if len(set(blocks)) == 1 and blocks[0] > 1:  # all on the same blocks of test images
        images = [variance_of(np.sum(means, axis=0))]
    else:
        images = [variance_of(m) if n > 1 else (c**2 * s.variance, math.inf)
                  for (c, s), n, m in zip(terms, blocks, means)]  # fmt: skip
    fixed = sum(v for v, _ in images)
    parts += images
    total = sum(v for v, _ in parts)
    return Estimate(value, math.sqrt(total), _freedom_of(parts), min(networks), math.sqrt(fixed))


def _freedom_of(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of estimated variances ``v_i``: at least those of the least certain one."""
    # Welch and Satterthwaite put estimates for the true variances in (Σ v)^2 / Σ v_i^2 / f_i. With arms of 4 to 8
    # networks that is too large if one arm spreads three times as far as the other: verdicts at level 0.25 % are wrong
    # up to 1.7 times as often. With f_i - 1 in place of f_i the levels hold.
    known = [(v, f) for v, f in parts if v > 0 and math.isfinite(f)]
    if not known:
        return math.inf
    least, total = min(f for _, f in known), sum(v for v, _ in parts)
    return max(least, total**2 / sum(v**2 / (f - 1) for v, f in known)) if least > 1 else least


def of_runs(values: Iterable[float | None]) -> Estimate:
    """Mean of independent runs with its error; ``None`` among the values is left out."""
    return Sample.of({str(k): v for k, v in enumerate(values) if v is not None}).estimate()


def jackknife(models: Sequence[Hashable], statistic: Callable[[frozenset[Hashable]], float]) -> Estimate:
    """Delete-half jackknife of any statistic of a zoo, such as a rank correlation over pairs of its networks.

    With the statistic ``t_S`` of each half ``S`` of ``h`` among ``K`` networks, ``v = h / (K - h)`` times the mean of
    ``(t_S - t)^2``. Leaving out one network at a time, as for means, is wrong for ranks: two layers with close scores
    keep their order whichever network is left out, so the order looks certain. There is no error with fewer than 3
    networks, or if the statistic is NaN for all of them or a half. Beyond 256 halves, 256 are drawn, always the same.

    References:
        - Shao, J. and Wu, C. A general theory for jackknife variance estimation. Annals of Statistics 17 (1989).

    Examples:
        >>> heights = {"a": 1.0, "b": 2.0, "c": 3.0}
        >>> print(jackknife(list(heights), lambda kept: sum(heights[m] for m in kept) / len(kept)))
        2 [-0.484, 4.48]
    """
    count = len(models)
    found = statistic(frozenset(models))
    if count < _FEWEST_OF_PAIRS:
        return Estimate(found, networks=count)
    half = max((count + 1) // 2, 2)
    if math.comb(count, half) <= _MOST_HALVES:
        halves = list(itertools.combinations(models, half))
    else:
        drawn = random.Random(count)  # the same halves each time
        halves = [tuple(drawn.sample(list(models), half)) for _ in range(_MOST_HALVES)]
    values = [statistic(frozenset(kept)) for kept in halves]
    if not all(map(math.isfinite, [found, *values])):
        return Estimate(found, networks=count)
    variance = half / (count - half) * float(np.mean((np.array(values) - found) ** 2))
    error = None if variance == 0 and count < _EQUAL else math.sqrt(variance)
    return Estimate(found, error, count - 1, count)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN where one of the two does not vary.

    Examples:
        >>> spearman([1.0, 2.0, 3.0], [1.0, 4.0, 9.0])
        1.0
    """
    from scipy.stats import rankdata

    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return round(float(np.corrcoef(rankdata(first), rankdata(second))[0, 1]), 12)


def all_but(p_values: Sequence[float], but: int = 0) -> float:
    """P-value of "all but ``but`` of these hold" (partial conjunction; Benjamini and Heller 2008, Bonferroni's form).

    With ``but = 0`` it is the largest: a statement about every layer is as certain as its least certain layer
    (intersection-union test), at any level and without correction.

    Examples:
        >>> all_but([0.01, 0.03, 0.2]), all_but([0.01, 0.03, 0.2], but=1)
        (0.2, 0.06)
    """
    count = len(p_values)
    if count <= but:
        return 1.0
    return min(1.0, (but + 1) * sorted(p_values)[count - but - 1])


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for all statements of a page (Holm 1979): at level 5 % one page in twenty has a wrong verdict.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, largest, count = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, k in enumerate(sorted(range(count), key=lambda k: p_values[k])):
        largest = max(largest, min(1.0, (count - rank) * p_values[k]))
        adjusted[k] = largest
    return adjusted


def student_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t: the number below which a t variable lies with probability ``share``."""
    from scipy.special import stdtrit

    return float(stdtrit(min(freedom, 1e9), share))
