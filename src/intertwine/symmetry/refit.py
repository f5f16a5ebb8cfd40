"""Fitting what is continuous once units are matched: scales by log ratios, bases by least squares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .action import moved
from .canonical import slices
from .spaces import Space
from .transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from .symmetry import Symmetry

__all__ = ["refit"]


def refit(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    g: Transformation,
    spread: Mapping[str, Tensor] | None = None,
) -> Transformation:
    """``g`` with its scales and matrices fitted so that the moved ``a`` meets ``b``.

    Balanced forms fix scales by norms, one vote per slice; here every weight has one, so that rounding averages out.

    Args:
        sym: The symmetry, batch norms folded.
        a: Tensors to move.
        b: Tensors to meet.
        g: An element that matches units.
        spread: Sizes of what was subtracted to give entries of ``b`` (``Folded.spread``): what cancels says little.

    Returns:
        The fitted element.
    """
    trust = {name: (b[name] / size.clamp_min(1e-300)).square() for name, size in (spread or {}).items()}
    for space in sym.spaces:
        near = {**a, **moved(sym, g, a)}
        step = None
        if space.linear != "none":
            matrix = _matrix(sym, near, b, space)
            step = None if matrix is None else with_parts(identity(sym), space.name, linear=matrix)
        elif space.scales:
            step = with_parts(identity(sym), space.name, scales=_scales(sym, near, b, space, trust))
        g = g if step is None else step @ g
    return g


def _scales(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], space: Space, trust: Mapping[str, Tensor]
) -> Tensor:
    """Log scales ``(k, p..., n)`` by least squares on log ratios of slices, each weighted by its number of entries."""
    normal = right = None
    votes = {name: trust.get(name, torch.ones_like(b[name])) for name in sym.layouts}
    for (_, x, leaf), (_, y, _), (_, vote, _) in zip(*(slices(sym, t, space) for t in (a, b, votes))):
        squares, inner = x.square().sum(-1), (x * y).sum(-1)
        usable = (squares > 0) & (inner > 0)
        ratio = torch.where(usable, inner / squares.clamp_min(1e-300), 1.0).log()
        weight = ((x != 0) * vote).sum(-1) * usable
        e = torch.tensor([float(v) for v in leaf.scale] or [0.0] * space.scales, dtype=torch.float64)
        n = weight[..., None, None] * torch.outer(e, e)
        r = (weight * ratio)[..., None] * e
        normal, right = (n, r) if normal is None or right is None else (normal + n, right + r)
    if normal is None or right is None:
        return identity(sym)[space.name].scales
    return (torch.linalg.pinv(normal, rtol=1e-9, hermitian=True) @ right[..., None])[..., 0].movedim(-1, 0)


def _matrix(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], space: Space) -> Tensor | None:
    """Matrices ``(p..., n, n)`` that bring the slices of variance +1 of ``a`` closest to those of ``b``."""
    x, y = _stack(sym, a, space), _stack(sym, b, space)
    if x is None or y is None:
        return None
    cross = y @ x.mT
    if space.linear == "orthogonal":
        u, _, vh = torch.linalg.svd(cross)
        return u @ vh
    fitted = cross @ torch.linalg.pinv(x @ x.mT, rtol=1e-12, hermitian=True)
    return fitted if bool((torch.linalg.cond(fitted) < 1e6).all()) else None


def _stack(sym: Symmetry, state: Mapping[str, Tensor], space: Space) -> Tensor | None:
    parts = [x for _, x, leaf in slices(sym, state, space) if leaf.variance == 1]
    return torch.cat(parts, -1) if parts else None
