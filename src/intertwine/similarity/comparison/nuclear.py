"""The best map of a group for given gains, and what it gains."""

import torch
from torch import Tensor

from ...groups import assign
from .._linalg import quick_nuclear_norm, singular, singular_values
from ..measures.procrustes import Procrustes

_LARGE = 192  # channels from which on a polar factor by products is faster than a decomposition
_LIFTS, _STEPS = 8, 4


def best_map(
    measure: Procrustes, gains: Tensor, value_only: bool = False, sure: bool = False
) -> tuple[float, Tensor, float]:
    """The largest trace over the group, the map that has it, and a bound on the error of the trace.

    Args:
        measure: Which group is searched.
        gains: ``(c, d)`` in float64.
        value_only: Whether the map is not needed.
        sure: Whether to decompose in float64, whatever it takes.
    """
    if not measure.permutes:
        place = torch.eye(*gains.shape, dtype=gains.dtype)
        return float(gains.diagonal().sum()), place, 0.0
    if measure.rotates:
        return _nuclear(gains, value_only, sure)
    worth = gains.abs() if measure.signs else gains
    flipped = len(worth) > worth.shape[1]
    columns = assign(worth.T if flipped else worth)
    rows = torch.arange(len(columns))
    rows, columns = (columns, rows) if flipped else (rows, columns)
    trace = float(worth[rows, columns].sum())
    chosen = torch.zeros_like(gains)
    chosen[rows, columns] = gains[rows, columns].sign() if measure.signs else 1.0
    return trace, chosen, 0.0


def _nuclear(gains: Tensor, value_only: bool, sure: bool) -> tuple[float, Tensor, float]:
    if min(gains.shape) >= _LARGE and not sure:
        return polar(gains)
    if value_only:
        if min(gains.shape) < 8:
            return float(singular_values(gains).sum()), gains, 0.0
        value, error = quick_nuclear_norm(gains)
        return value, gains, error
    u, s, v = singular(gains)
    return float(s.sum()), u @ v, 0.0


def polar(gains: Tensor) -> tuple[float, Tensor, float]:
    """Nuclear norm and polar factor by Newton-Schulz iterations in float32, which are matrix products alone.

    From ``X = G / |G|``, ``X <- X (a + b X^T X + c (X^T X)^2)`` with coefficients that lift small singular values fast,
    then ``X <- X (3 - X^T X) / 2``, which is quadratic. Every iterate has singular values ``q <= 1`` up to rounding, so
    that ``<X, G>`` is a lower bound. What is missing is ``sum s (1 - q)``; where ``q`` has come to more than a half it
    is at most ``4/3 sum s q (1 - q^2) = 4/3 <X (1 - X^T X), G>``, and singular values that have not are below the
    smallest that the iterations lift, so that they add at most their number times that.
    """
    short = gains if len(gains) <= gains.shape[1] else gains.mT
    g = short.float()
    size = float(torch.linalg.matrix_norm(g))
    if size == 0:
        return 0.0, torch.zeros_like(gains), 0.0
    x = g / size
    reach = 1.0
    for _ in range(_LIFTS):  # lifts by 3.4445 each, and keeps all in [0.68, 1.13]
        y = x @ x.mT
        x = torch.addmm(3.4445 * x, torch.addmm(-4.7750 * y, y, y, alpha=2.0315), x)
        reach *= 3.4445
    for _ in range(_STEPS):
        y = x @ x.mT
        x = 1.5 * x - 0.5 * (y @ x)
    y = x @ x.mT
    value = float((x.double() * short).sum())
    lag = float(((x - y @ x).double() * short).sum())
    unlifted = len(short) - float(y.diagonal().double().sum())  # sum of 1 - q^2
    smallest = size / reach
    error = 4 / 3 * max(0.0, lag) + max(0.0, unlifted) * smallest
    found = x.double()
    return value + max(0.0, lag) / 2, found if short is gains else found.mT, error
