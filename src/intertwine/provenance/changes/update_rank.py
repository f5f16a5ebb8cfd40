"""The rank of an update: how many singular values exceed rounding."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_EDGE = 3.0  # times the largest singular value that rounding of this size is expected to have
_ROUNDED = 0.3  # root mean square of a rounding error, in units of the format's epsilon
_LOW = 4  # a low rank is at most one in so many of the full one
_DENSE = 1024  # smaller side up to which all singular values are computed
_PROBES = 96
_SMALL = 16  # smaller side from which on the shape of a spectrum tells something
_LIKE_NOISE = 0.02  # relative deviation of the effective rank from that of independent entries, beyond chance
_KURTOSIS = 0.05  # of the entries, beyond a normal distribution's and chance
_CHANCE = 4.0  # standard deviations of an estimate
_CENTRED = 0.2  # mean over root mean square


@dataclass(frozen=True)
class UpdateRank:
    """Rank of an update ``d`` of shape ``(m, n)``."""

    # Singular values above the rounding of the weights, where they are at most a quarter of ``min(m, n)``
    rank: int | None
    # ``(Σ s²)² / Σ s⁴``, which is the rank where all singular values are equal; ``None`` for vectors
    effective: float | None
    full: int  # ``min(m, n)``
    noise: bool  # Whether effective rank and tails are those of independent entries: ``m n / (m + n + 1)``, normal


def update_rank(d: Tensor, weights: Tensor, eps: float) -> UpdateRank:
    """The rank of an update that was added to weights of some format.

    Args:
        d: The update; axes after the first are one.
        weights: The weights after it, whose rounding covers small singular values.
        eps: Relative distance of neighbouring numbers of their format.
    """
    if d.ndim < 2 or min(d.shape[0], prod(d.shape[1:])) < 2:
        return UpdateRank(None, None, 1, False)
    matrix = d.flatten(1)
    matrix = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT).double()
    m, n = matrix.shape
    size = float(weights.square().mean(dtype=torch.float64)) ** 0.5
    rounding = _ROUNDED * eps * size
    edge = _EDGE * rounding * (m**0.5 + n**0.5)
    values, effective = _spectrum(matrix)
    rank = int((values > max(edge, 1e-9 * float(values.max()))).sum())
    known = len(values) == m or rank < len(values)
    low = known and 0 < rank <= m // _LOW
    alike = m >= _SMALL and abs(effective * (m + n + 1) / (m * n) - 1) < _LIKE_NOISE + _CHANCE / (m * n) ** 0.5
    return UpdateRank(rank if low else None, effective, m, alike and _normal(d))


def _spectrum(matrix: Tensor) -> tuple[Tensor, float]:
    """Singular values, or the largest ones, and the effective rank."""
    if matrix.shape[0] <= _DENSE:
        values = torch.linalg.eigvalsh(matrix @ matrix.mT).clamp_min(0).sqrt().flip(0)
        return values, float(values.square().sum() ** 2 / values.pow(4).sum().clamp_min(1e-300))
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(matrix.shape[1], _PROBES, generator=generator, dtype=matrix.dtype)
    seen = matrix @ probes
    basis = torch.linalg.qr(seen).Q
    values = torch.linalg.svdvals(basis.mT @ matrix)
    fourth = float((matrix.mT @ seen).square().sum()) / _PROBES  # E |D^T D z|^2 is the sum of fourth powers
    return values, float(matrix.square().sum() ** 2) / max(fourth, 1e-300)


def _normal(d: Tensor) -> bool:
    """Whether the entries have the tails of a normal distribution around zero."""
    x = d.flatten().double()
    square = float(x.square().mean())
    if x.numel() < _SMALL**2 or not square:
        return False
    near = _KURTOSIS + _CHANCE * (24 / x.numel()) ** 0.5
    return abs(float(x.pow(4).mean()) / square**2 - 3) < near and abs(float(x.mean())) < _CENTRED * square**0.5
