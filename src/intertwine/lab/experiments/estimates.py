"""Estimates: a number, its confidence interval over independent networks, and arithmetic that keeps the interval."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..._zoo_intervals import pair_interval

_LEVEL = 0.95
_FEWEST = 3  # models: leaving one of two out leaves no pair
_EQUAL = 5  # runs with the same value to the last digit


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % confidence interval; without one, a single run or too few networks stand behind it.

    Sums and differences add the ends of intervals. That holds whatever the correlation, and is wider than need be:
    where pairs of numbers come from the same networks, estimate their difference instead.

    Attributes:
        value: The number.
        low: Lower end; ``None`` where there is no interval.
        high: Upper end.
        models: Independent networks or runs behind the interval; ``None`` where that is not known.
    """

    value: float
    low: float | None = None
    high: float | None = None
    models: int | None = None

    def __sub__(self, other: Estimate) -> Estimate:
        return self + Estimate(-other.value, _negative(other.high), _negative(other.low), other.models)

    def __add__(self, other: Estimate) -> Estimate:
        models = [m for m in (self.models, other.models) if m is not None]
        value = self.value + other.value
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return Estimate(value)
        return Estimate(value, self.low + other.low, self.high + other.high, min(models, default=None))

    def __truediv__(self, other: Estimate) -> Estimate:
        """The ratio of two positive numbers."""
        value = self.value / other.value
        if self.low is None or self.high is None or other.low is None or other.high is None or other.low <= 0:
            return Estimate(value)
        models = [m for m in (self.models, other.models) if m is not None]
        ends = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Estimate(value, min(ends), max(ends), min(models, default=None))

    @property
    def tells(self) -> bool:
        """Whether its interval is one: a few equal values say nothing about how far others lie from them."""
        return self.low is not None and (self.low != self.high or self.models is None or self.models >= _EQUAL)

    def times(self, factor: float) -> Estimate:
        """Multiplied by a number that is known exactly."""
        if self.low is None or self.high is None:
            return Estimate(factor * self.value)
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.value, low, high, self.models)

    def widened(self, statements: int) -> Estimate:
        """The interval at level ``1 - 0.05 / statements`` (Bonferroni), for one of several numbers judged together."""
        from scipy.special import stdtrit

        if self.low is None or self.high is None or statements < 2 or self.low == self.high:
            return self
        freedom = 1e6 if self.models is None else max(self.models - 1, 1)
        quantile = lambda alpha: float(stdtrit(freedom, 1 - alpha / 2))
        factor = quantile((1 - _LEVEL) / statements) / quantile(1 - _LEVEL)
        below, above = (abs(end - self.value) * factor for end in (self.low, self.high))
        return Estimate(self.value, self.value - below, self.value + above, self.models)

    def within(self, least: float, most: float) -> Estimate:
        """The interval cut where the number's range ends."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.value, max(self.low, least), min(self.high, most), self.models)

    def __str__(self) -> str:
        ends = "" if self.low is None or self.high is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.value:.3g}" + (ends if self.low != self.high else "")


def exact(value: float) -> Estimate:
    """A number without error, such as one of mathematics."""
    return Estimate(float(value), float(value), float(value))


def of_runs(values: Iterable[float | None]) -> Estimate:
    """Mean of independent runs with Student's interval, which one run has not; unknown values are left out.

    Examples:
        >>> print(of_runs([1.0, 2.0, 3.0]), of_runs([1.0]), sep="; ")
        2 [-0.484, 4.48]; 1
    """
    from scipy.special import stdtrit

    known = [v for v in values if v is not None]
    if not known:
        return Estimate(math.nan)
    count, mean = len(known), sum(known) / len(known)
    if count < 2:
        return Estimate(mean)
    error = math.sqrt(sum((v - mean) ** 2 for v in known) / (count - 1) / count)
    half = float(stdtrit(count - 1, (1 + _LEVEL) / 2)) * error
    return Estimate(mean, mean - half, mean + half, count)


def of_pairs(pairs: Sequence[tuple[Hashable, Hashable]], values: Sequence[float | None]) -> Estimate:
    """Mean over pairs of networks, each network left out in turn (``pair_interval``); unknown values are left out.

    There is no interval with fewer than 3 networks, or where one of them is part of every pair.

    Examples:
        >>> print(of_pairs([("a", "b"), ("b", "a")], [0.1, 0.3]))
        0.2
    """
    known = [(pair, v) for pair, v in zip(pairs, values, strict=True) if v is not None]
    models = {model for pair, _ in known for model in pair}
    if len(models) < _FEWEST or set.intersection(*(set(pair) for pair, _ in known)):
        return Estimate(of_runs(v for _, v in known).value)
    found = pair_interval([pair for pair, _ in known], [v for _, v in known])
    return Estimate(found.mean, found.low, found.high, found.models)


def mean_of(estimates: Iterable[Estimate]) -> Estimate:
    """The mean, its interval the mean of the ends."""
    total, *others = (listed := list(estimates))
    for one in others:
        total = total + one
    return total.times(1 / len(listed))


def minus(a: Mapping[str, Estimate], b: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Differences at all points that both have."""
    return {point: a[point] - b[point] for point in a if point in b}


def decreases(values: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Each number minus the next one, by the next one's name."""
    return {after: values[before] - values[after] for before, after in pairwise(values)}


def _negative(value: float | None) -> float | None:
    return None if value is None else -value
