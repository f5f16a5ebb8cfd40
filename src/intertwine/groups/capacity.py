"""The number of maps that a family of stitching layers holds, counted on a grid (v2 E.7, eq. E.29-E.43).

Every real coordinate is replaced by a grid of ``M = 2 bound / eps`` points. Then

    log #G_ReLU = log n! + n log M            log #rank_r = (2 n r - r^2) log M

so the rank-r matrices outnumber G_ReLU once ``(2 n r - r^2 - n) log M >= log n!``. The paper replaces ``log n!`` by
``n log n``; that coarse form fails at ``r = 1``, where it asks for ``M >= n^(n / (n - 1)) > n``. With the true ``log
n!`` (lgamma) the statement holds for every rank as soon as ``M >= n``, because ``n! <= n^(n - 1)``.

Positive scales keep all ``M`` grid points, as in the paper; halving the grid for ``D > 0`` subtracts ``n log 2`` from
``log #G_ReLU`` and only strengthens the statement.
"""

from math import exp, lgamma, log

__all__ = [
    "g_relu_dim", "log_count", "log_count_g_relu", "log_count_rank", "rank_dim", "rank_outnumbers", "threshold",
]  # fmt: skip


def log_count(log_components: float, dim: int, eps: float, bound: float) -> float:
    """``log #components + dim log M`` (v2 E.29): logarithm of a family's grid points, for components of one dimension.

    Raises:
        ValueError: If ``eps`` is not positive or the grid has less than one point.
    """
    if not dim:
        return log_components
    if not 0 < eps <= 2 * bound:
        raise ValueError(f"eps must be positive and at most 2 * bound. Got eps={eps}, bound={bound}.")
    return log_components + dim * (log(2 * bound) - log(eps))


def g_relu_dim(n: int) -> int:
    """``dim G_ReLU = n`` (paper 1, section 4)."""
    return n


def rank_dim(n: int, rank: int) -> int:
    """Dimension of the ``n x n`` matrices of one rank, ``2 n r - r^2`` (paper 1, section 4).

    Raises:
        ValueError: If ``rank`` is not between 1 and ``n``.
    """
    if not 1 <= rank <= n:
        raise ValueError(f"rank must be from 1 to n = {n}. Got {rank}.")
    return 2 * n * rank - rank**2


def log_count_g_relu(n: int, eps: float, bound: float) -> float:
    """``log #G_ReLU = log n! + n log M`` (v2 E.29).

    Examples:
        >>> round(log_count_g_relu(64, eps=2**-10, bound=1.0), 2)
        693.14
    """
    return log_count(lgamma(n + 1), n, eps, bound)


def log_count_rank(n: int, rank: int, eps: float, bound: float) -> float:
    """``log #rank_r = (2 n r - r^2) log M`` (v2 E.30-E.32).

    Examples:
        >>> round(log_count_rank(64, 1, eps=2**-10, bound=1.0), 2)
        968.34
    """
    return log_count(0.0, rank_dim(n, rank), eps, bound)


def rank_outnumbers(n: int, rank: int, eps: float, bound: float) -> bool:
    """Whether the rank-r matrices are at least as many as G_ReLU on this grid (v2 E.38-E.43 with the exact ``log n!``).

    Examples:
        >>> rank_outnumbers(64, 1, eps=2**-10, bound=1.0)
        True
    """
    return log_count_rank(n, rank, eps, bound) >= log_count_g_relu(n, eps, bound)


def threshold(n: int, rank: int = 1) -> float:
    """Fewest grid points ``M`` per coordinate from which rank r outnumbers G_ReLU: ``(n!)^(1 / (2 n r - r^2 - n))``.

    Never more than ``n`` (see the module's docstring); 1 for ``n = 1``, where both counts are equal.

    Examples:
        >>> round(threshold(64, 1), 1), round(threshold(64, 2), 1)
        (26.0, 3.0)
    """
    excess = rank_dim(n, rank) - g_relu_dim(n)
    return exp(lgamma(n + 1) / excess) if excess > 0 else 1.0
