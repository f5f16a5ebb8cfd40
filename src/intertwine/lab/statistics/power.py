"""Power: the smallest effect that a plan tells, and the networks that an effect needs, from an earlier estimate."""

from __future__ import annotations

import math
from functools import cache

from .estimates import Estimate, student_quantile

_MOST_NETWORKS = 10_000


def detectable(found: Estimate, networks: int | None = None, level: float = 0.05, power: float = 0.8) -> float:
    """Smallest distance from a limit that a plan tells with a power, in the units of the number.

    Args:
        found: An earlier estimate of the same number, whose spread the plan is expected to have.
        networks: That the plan has; as many as the estimate's if ``None``.
        level: Of one statement; 0.05 divided by the statements of the page for the first step of Holm's rule.
        power: How often it is told.

    Returns:
        ``d`` with ``P(t' > t_{1 - level}) = power`` for the noncentral ``t'`` of ``d / error``; infinity where the
        spread is not known.

    Examples:
        >>> round(detectable(Estimate(0.0, 1.0, 5, 6)), 2), round(detectable(Estimate(0.0, 1.0, 5, 6), 24), 2)
        (2.9, 1.28)
    """
    if found.error is None or not found.networks:
        return math.inf if found.error is None else 0.0
    error, freedom = _scaled(found, networks or found.networks)
    return error * _noncentrality(freedom, level, power)


def networks_needed(found: Estimate, limit: float, level: float = 0.05, power: float = 0.8) -> int | None:
    """Networks with which a number would be told from a limit with a power, if it is what it seems to be.

    Returns:
        ``None`` where no number of networks up to 10,000 would: the test images alone do not tell, or the spread is not
        known.

    Examples:
        >>> networks_needed(Estimate(1.0, 0.5, 5, 6), 0.0), networks_needed(Estimate(1.0, 0.5, 5, 6), 1.0)
        (11, None)
    """
    distance = abs(found.value - limit)
    if found.error is None or not found.networks or not math.isfinite(distance):
        return None
    enough = lambda n: detectable(found, n, level, power) <= distance
    if not enough(_MOST_NETWORKS):
        return None
    low, high = 2, _MOST_NETWORKS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _scaled(found: Estimate, networks: int) -> tuple[float, float]:
    """Standard error and degrees of freedom with another number of networks."""
    assert found.error is not None
    assert found.networks
    before = max(found.error**2 - found.fixed**2, 0.0)
    moving = before * found.networks / networks
    total = moving + found.fixed**2
    if not moving:
        return math.sqrt(total), math.inf
    each = found.freedom * (before / found.error**2) ** 2 / max(found.networks - 1, 1)  # of one network more
    return math.sqrt(total), max((networks - 1) * each * (total / moving) ** 2, 1.0)


@cache
def _noncentrality(freedom: float, level: float, power: float) -> float:
    """Distance in standard errors that a one-sided test tells with this power."""
    from scipy.optimize import brentq
    from scipy.stats import nct, norm

    if freedom > 1e6:
        return float(norm.ppf(1 - level) + norm.ppf(power))
    critical = student_quantile(1 - level, freedom)
    missing = lambda distance: float(nct.sf(critical, freedom, distance)) - power
    return float(brentq(missing, 0.0, 4 * critical + 10))
