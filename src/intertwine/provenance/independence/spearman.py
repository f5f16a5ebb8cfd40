"""Spearman statistic of the independence tests: whether units are matched in the order in which they stand.

Source: S. Zhu et al., Independence Tests for Language Models, 2025: the rank correlation of the best assignment of
units with the identity.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from math import erfc, log, pi, sqrt

import torch
from torch import Tensor

from ...groups.assignment import assign

_FEW = 7  # units up to which all permutations are listed


def spearman(similarities: Sequence[Tensor]) -> tuple[float, float]:
    """Rank correlation of the best assignments with the identity, and the logarithm of its one-sided p-value.

    Exact by enumeration for one group of at most 7 units; else by the normal limit, with variance ``1 / (n - 1)`` for
    each of the groups.

    Args:
        similarities: ``(P, n, n)`` for groups of units that are ordered among themselves.
    """
    total = variance = 0.0
    count = 0
    for s in similarities:
        n = s.shape[-1]
        centred = assign(s).double() - (n - 1) / 2
        index = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
        rho = (centred * index).sum(-1) * 12 / (n * (n * n - 1))
        total, variance, count = total + float(rho.sum()), variance + len(s) / (n - 1), count + len(s)
    if count == 1 and similarities[0].shape[-1] <= _FEW:
        null = _all(similarities[0].shape[-1])
        return total, log(sum(rho >= total - 1e-9 for rho in null) / len(null))
    return total / count, _normal_log_tail(total / variance**0.5)


@lru_cache
def _all(n: int) -> tuple[float, ...]:
    """Rank correlations of all permutations with the identity."""
    return tuple(
        1 - 6 * sum((i - p) ** 2 for i, p in enumerate(order)) / (n * (n * n - 1)) for order in permutations(range(n))
    )


def _normal_log_tail(z: float) -> float:
    return log(erfc(z / sqrt(2)) / 2) if z < 30 else -z * z / 2 - log(z * sqrt(2 * pi))
