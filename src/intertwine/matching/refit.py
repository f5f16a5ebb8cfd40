"""Fitting what is continuous once units are matched: scales by log ratios, bases by least squares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.gauge.canonical import slices
from ..symmetry.spaces import Space
from ..symmetry.transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry

__all__ = ["refit"]

_CONDITION = 1e6  # a basis that is worse conditioned was not fitted but made up


def refit(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    g: Transformation,
    spread: Mapping[str, Tensor] | None = None,
    votes: Mapping[str, float] | None = None,
) -> Transformation:
    """``g`` with its scales and matrices fitted so that the moved ``a`` meets ``b``.

    Balanced forms fix scales by norms, one vote per slice; here every weight has one, so that rounding averages out.

    Args:
        sym: The symmetry, batch norms folded.
        a: Tensors to move.
        b: Tensors to meet.
        g: An element that matches units.
        spread: Sizes of what was subtracted to give entries of ``b`` (``Folded.spread``): what cancels says little.
        votes: How much each tensor says; all alike by default.

    Returns:
        The fitted element.
    """
    said = dict.fromkeys(sym.layouts, 1.0) if votes is None else votes
    trust = {name: torch.full_like(b[name], said[name]) for name in sym.layouts}
    for name, size in (spread or {}).items():
        trust[name] = trust[name] * (b[name] / size.clamp_min(1e-300)).square()
    for space in sym.spaces:
        near = {**a, **moved(sym, g, a)}
        step = None
        if space.group.mixes:
            matrix = _matrix(sym, near, b, space, said)
            step = None if matrix is None else with_parts(identity(sym), space.name, linear=matrix)
        elif space.group.scales:
            step = with_parts(identity(sym), space.name, scales=_scales(sym, near, b, space, trust))
        g = g if step is None else step @ g
    return g


def _scales(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], space: Space, trust: Mapping[str, Tensor]
) -> Tensor:
    """Log scales ``(k, p..., n)`` by least squares on log ratios of slices, each weighted by its number of entries."""
    normal = right = None
    for (_, x, leaf), (_, y, _), (_, vote, _) in zip(*(slices(sym, t, space) for t in (a, b, trust))):
        squares, inner = x.square().sum(-1), (x * y).sum(-1)
        usable = (squares > 0) & (inner > 0)
        ratio = torch.where(usable, inner / squares.clamp_min(1e-300), 1.0).log()
        weight = ((x != 0) * vote).sum(-1) * usable
        e = torch.tensor([float(v) for v in leaf.scale] or [0.0] * space.group.scales, dtype=torch.float64)
        n = weight[..., None, None] * torch.outer(e, e)
        r = (weight * ratio)[..., None] * e
        normal, right = (n, r) if normal is None or right is None else (normal + n, right + r)
    if normal is None or right is None:
        return identity(sym)[space.name].scales
    return (torch.linalg.pinv(normal, rtol=1e-9, hermitian=True) @ right[..., None])[..., 0].movedim(-1, 0)


def _matrix(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], space: Space, votes: Mapping[str, float]
) -> Tensor | None:
    """Matrices ``(p..., n, n)`` that bring all slices of ``a`` closest to those of ``b``, every weight with its vote.

    With ``X`` of variance +1 and ``Y`` of variance -1 the errors ``M X_a - X_b`` and ``M^T Y_b - Y_a`` are both linear
    in ``M``, so their least squares are a Sylvester equation ``M X_a X_a^T + Y_b Y_b^T M = X_b X_a^T + Y_b Y_a^T``.
    """
    n = space.size
    written, read, right = (torch.zeros(n, n, dtype=torch.float64) for _ in range(3))
    for (name, x, leaf), (_, y, _) in zip(slices(sym, a, space), slices(sym, b, space)):
        vote = votes[name] / b[name].square().mean().clamp_min(1e-300)
        if space.group.is_orthogonal or leaf.variance == 1:
            written = written + vote * x @ x.mT
            right = right + vote * y @ x.mT
        elif leaf.variance == -1:
            read = read + vote * y @ y.mT
            right = right + vote * y @ x.mT
    if space.group.is_orthogonal:
        u, _, vh = torch.linalg.svd(right)
        return u @ vh
    fitted = _sylvester(written, read, right)
    return fitted if bool((torch.linalg.cond(fitted) < _CONDITION).all()) else None


def _sylvester(written: Tensor, read: Tensor, right: Tensor) -> Tensor:
    """The solution of ``M written + read M = right``; the identity along directions of which nothing is known."""
    l1, u1 = torch.linalg.eigh(written)
    l2, u2 = torch.linalg.eigh(read)
    sums = l2[..., :, None] + l1[..., None, :]
    known = sums > 1e-12 * sums.amax((-2, -1), keepdim=True)
    inner = torch.where(known, u2.mT @ right @ u1 / sums.clamp_min(1e-300), u2.mT @ u1)
    return u2 @ inner @ u1.mT
