"""The best map of a group for given gains, and what it gains."""

import torch
from torch import Tensor

from ....groups import assign
from ..._linalg import eigen, quick_nuclear_norm, singular
from ...measures.procrustes import Procrustes

_FEW, _LARGE = 8, 96  # channels up to which values, and maps, are those of a decomposition of the matrix itself
_NULL = 1e-7  # of the largest singular value, below which a direction is rounding


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
    """The nuclear norm and the orthogonal factor: of wide matrices by eigenvalues of the smaller product.

    Small singular values lose digits there; the bound counts them, and the map needs none of them.
    """
    if sure or min(gains.shape) < (_FEW if value_only else _LARGE):
        u, s, v = singular(gains)
        return float(s.sum()), u @ v, 0.0
    if value_only:
        value, error = quick_nuclear_norm(gains)
        return value, gains, error
    short = gains if len(gains) <= gains.shape[1] else gains.mT
    values, vectors = eigen(short @ short.mT)
    sizes = values.clamp(min=0).sqrt()
    lifted = torch.where(sizes > _NULL * sizes[0], 1 / sizes.clamp(min=1e-300), 0.0)
    found = vectors @ (lifted[:, None] * (vectors.mT @ short))
    error = _NULL * float(sizes[0]) * len(short)
    return float(sizes.sum()), found if short is gains else found.mT, min(error, 1e-6)
