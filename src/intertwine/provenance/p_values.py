"""P-values: of ranks of units in place, of rank correlation, and of one number compared with a few others.

Let ``S[i, j]`` be any similarity of unit ``i`` of one network to unit ``j`` of another whose units are in an order that
is uniformly random given the first. Reveal the order unit by unit: given units ``0..i-1``, unit ``i`` is uniform among
the ``m = n - i`` remaining ones, so its rank ``r`` among them is uniform on ``1..m`` and independent of earlier ranks.
The score ``Σ log(m / r)`` therefore has a known distribution, whatever the weights are.

Source: S. Zhu et al., Independence Tests for Language Models, 2025: the rank correlation of the best assignment of
units with the identity.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import permutations
from math import erfc, log, log1p, pi, sqrt

import numpy as np
import torch
from torch import Tensor

from ..groups.assignment import assign

_RESOLUTION = 512  # lattice steps per standard deviation of the score
_LENGTH = 2**14  # length of the lattice: 16 standard deviations on either side
_FINE = 2**15  # length of the lattice of combined p-values
_ACCURATE = 1e-9  # tail below which the Chernoff bound replaces the transform, whose rounding error is 1e-15
_STEEPEST = 60.0  # exponent of the bound at which only the best possible score matters

Counts = tuple[tuple[int, int], ...]  # numbers of candidates, each with the number of units that have as many


def power_of_ten(log_p: float) -> str:
    """A readable p-value, from its natural logarithm, such as ``"= 0.21"`` and ``"< 1e-189"``."""
    exponent = log_p / log(10)
    return f"= {10**exponent:.2g}" if exponent > -4 else f"< 1e{-int(-exponent)}"


def ranks(similarity: Tensor) -> Tensor:
    """Rank of every unit in place among units not placed yet, by similarities ``(..., n, n)``; ties rank worse.

    The ranks are ``r``, int64 ``(..., n)``, with ``1 <= r[..., i] <= n - i``.
    """
    own = similarity.diagonal(dim1=-2, dim2=-1)[..., None]
    return (similarity >= own).triu().sum(-1)


def log_tail(found: Iterable[Tensor]) -> float:
    """Natural logarithm of the probability that independent networks score at least as high as these ranks.

    It is exact (up to 1e-13), by the Fourier transform of the lattice distribution; below 1e-9 it is the Chernoff
    bound, which is never below the probability, and equals it for the highest score, ``1 / n!``. Each of ``found``
    holds the ranks ``(..., n)`` of a group of units that is ordered independently of the others.

    Examples:
        >>> import torch
        >>> round(log_tail([torch.ones(10, dtype=torch.int64)]), 3)  # all 10 units in place: 1 / 10!
        -15.104
    """
    counts, step, reached = _score(found)
    mass, centre = _null(counts, step)
    first = reached - (centre - _LENGTH // 2)  # where the tail begins in the window around the mean
    if first <= 0:
        return 0.0
    tail = float(mass[first:].sum()) if first < _LENGTH else 0.0
    if tail > 0.5:  # the lower tail is more accurate
        return log1p(-min(float(mass[:first].sum()), 1.0 - 1e-16))
    return log(tail) if tail > _ACCURATE else min(_chernoff(counts, step, reached), 0.0)


def combined(spaces: Sequence[Sequence[Tensor]]) -> float:
    """Logarithm of the combined p-value of spaces with independent p-values, from the ranks of each.

    The distribution of Fisher's ``-Σ log p`` is the convolution of those of the spaces, which are step functions for
    narrow spaces; ``chi²`` would overstate the p-value there, and is used only below 1e-9.
    """
    logs = [log_tail(found) for found in spaces]
    bound = fisher(logs)
    if bound < log(_ACCURATE) or not logs:
        return bound
    step = (len(logs) + 30 * len(logs) ** 0.5 + 40) / _FINE
    transform: np.ndarray = np.ones(_FINE // 2 + 1, dtype=complex)
    for found in spaces:
        transform = transform * _law(*_score(found)[:2], step)
    reached = sum(round(-x / step) for x in logs)
    return log(max(float(np.fft.irfft(transform, _FINE)[reached:].sum()), _ACCURATE))


def fisher(log_ps: Iterable[float]) -> float:
    """Logarithm of ``P(χ²_{2k} >= -2 Σ log p)``: Fisher's combination of independent p-values, in closed form.

    Source: R. A. Fisher, Statistical Methods for Research Workers, 1925, section 21.1.
    """
    values = list(log_ps)
    x = -sum(values)
    if not values or x <= 0:
        return 0.0
    terms = np.cumsum([0.0, *(log(x / k) for k in range(1, len(values)))])
    return min(float(np.logaddexp.reduce(terms)) - x, 0.0)


def _score(found: Iterable[Tensor]) -> tuple[Counts, float, int]:
    """The counts of units by number of candidates, the lattice step, and the score on the lattice."""
    rows = [row for x in found for row in x.reshape(-1, x.shape[-1])]
    counts = Counter(m for row in rows for m in range(1, len(row) + 1))
    step = sum(counts.values()) ** 0.5 / _RESOLUTION
    reached = sum(int(_scores(np.arange(len(row), 0, -1), row.numpy(), step).sum()) for row in rows)
    return tuple(sorted(counts.items())), step, reached


@lru_cache(maxsize=256)
def _law(counts: Counts, step: float, width: float) -> np.ndarray:
    """Fourier transform of the distribution of ``-log p`` for one space, on a lattice of given width."""
    mass, _ = _null(counts, step)
    tail = mass[::-1].cumsum()[::-1].clip(1e-15, 1.0)
    places = np.rint(-np.log(tail) / width).astype(np.int64).clip(0, _FINE - 1)
    return np.fft.rfft(np.bincount(places, mass / mass.sum(), minlength=_FINE))


def _scores(m: np.ndarray | int, r: np.ndarray, step: float) -> np.ndarray:
    """``log(m / r)`` on the lattice."""
    return np.rint(np.log(m / r) / step).astype(np.int64)


@lru_cache(maxsize=256)
def _null(counts: Counts, step: float) -> tuple[np.ndarray, int]:
    """Probabilities of all scores around the mean, and the score at their centre."""
    transform: np.ndarray = np.ones(_LENGTH // 2 + 1, dtype=complex)
    mean = 0.0
    for m, count in counts:
        scores = _scores(m, np.arange(1, m + 1), step)
        mean += count * float(scores.mean())
        transform = transform * np.fft.rfft(np.bincount(scores % _LENGTH, minlength=_LENGTH) / m) ** count
    centre = round(mean)
    mass = np.fft.irfft(transform, _LENGTH)
    return np.roll(mass, -(centre - _LENGTH // 2) % _LENGTH).clip(0.0), centre


def _chernoff(counts: Counts, step: float, reached: int) -> float:
    """``min_θ Σ log E exp(θ score) - θ reached``, convex in ``θ``, by golden section over ``log θ``."""
    scores = [step * _scores(m, np.arange(1, m + 1), step) for m, _ in counts]
    starts = np.cumsum([0, *(len(s) for s in scores)])[:-1]
    flat, target = np.concatenate(scores), step * reached
    number, size = (np.array(x, dtype=float) for x in zip(*((count, m) for m, count in counts)))

    def bound(log_theta: float) -> float:
        theta = np.exp(log_theta)
        moments = np.logaddexp.reduceat(theta * flat, starts) - np.log(size)
        return float(number @ moments - theta * target)

    low, high = np.log(1e-4), np.log(_STEEPEST)
    golden = (5**0.5 - 1) / 2
    for _ in range(24):  # every θ gives a bound
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if bound(left) < bound(right) else (left, high)
    return min(bound((low + high) / 2), bound(np.log(_STEEPEST)))


_FEW = 7  # most units for which all permutations are enumerated


def rank_correlation(order: Tensor) -> Tensor:
    """Spearman's correlation of permutations ``(..., n)`` with the identity."""
    n = order.shape[-1]
    index = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
    return ((order.double() - (n - 1) / 2) * index).sum(-1) * 12 / (n * (n * n - 1))


def spearman(similarities: Sequence[Tensor]) -> tuple[float, float]:
    """Rank correlation of the best assignments with the identity, and the logarithm of its one-sided p-value.

    Similarities are ``(P, n, n)`` for groups of units that are ordered separately. The p-value is exact, by
    enumeration, for one group of at most 7 units; else the normal limit, with variance ``1 / (n - 1)`` per group.
    """
    found = [rank_correlation(assign(s)) for s in similarities]
    total, count = sum(float(rho.sum()) for rho in found), sum(map(len, found))
    if count == 1 and similarities[0].shape[-1] <= _FEW:
        null = rank_correlation(torch.tensor([*permutations(range(similarities[0].shape[-1]))]))
        return total, log(float((null >= total - 1e-9).double().mean()))
    z = total / sum(len(s) / (s.shape[-1] - 1) for s in similarities) ** 0.5
    return total / count, log(erfc(z / sqrt(2)) / 2) if z < 30 else -z * z / 2 - log(z * sqrt(2 * pi))


def log_exceedance(x: float, others: Sequence[float]) -> float:
    """Logarithm of the probability that another draw exceeds ``n`` others by as much as ``x`` does.

    By rank alone, ``p = (1 + #{y >= x}) / (n + 1)`` for any law, at least ``1 / (n + 1)``. Above the largest ``M``::

        p = (1 + t)^(1 - n) / (n + 1),    t = (x - M) / (M - m + Σ (y - m)),    m the smallest,

    which is exact for exponential excesses, and never too small if the law's hazard rate does not fall (a tail no
    heavier than exponential): the map to exponential numbers is then convex and stretches ``x - M`` at least as much
    as each ``y - m``. If ``others`` are all equal, rank alone is used.

    Source: the map of R. E. Barlow and F. Proschan, Statistical Theory of Reliability and Life Testing, 1975; spacings
    of exponential numbers, B. Epstein and M. Sobel, JASA 48, 1953.

    Examples:
        >>> from math import exp
        >>> others = [0.1, 0.2, 0.3, 0.6]
        >>> round(exp(log_exceedance(0.5, others)), 3), round(exp(log_exceedance(1.6, others)), 3)
        (0.4, 0.036)
    """
    n, largest, smallest = len(others), max(others), min(others)
    spread = sum(y - smallest for y in (largest, *others))
    if x <= largest or spread <= 1e-12 * abs(largest):
        return log((1 + sum(y >= x for y in others)) / (n + 1))
    return (1 - n) * log1p((x - largest) / spread) - log(n + 1)
