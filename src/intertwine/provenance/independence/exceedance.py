"""P-value of one number beside a few others of one unknown law, extrapolated beyond the largest of them."""

from collections.abc import Sequence
from math import log, log1p


def log_exceedance(x: float, others: Sequence[float]) -> float:
    """Logarithm of the probability that one more draw exceeds ``n`` others by as much as ``x`` does.

    By rank alone ``p = (1 + #{y >= x}) / (n + 1)``, for any law; at least ``1 / (n + 1)``. Above the largest ``M``::

        p = (1 + t)^(1 - n) / (n + 1),    t = (x - M) / (M - m + Σ (y - m)),    m the smallest,

    which is exact where excesses are exponential, and never too small where the law's hazard rate does not fall (a
    tail no heavier than exponential): the map to exponential numbers is then convex and stretches ``x - M`` at least
    as much as each ``y - m``. For ``others`` that do not differ, rank alone.

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
