"""A start for every space at once: units whose weights have similar profiles.

Norms of a unit's weights, taken over the units of all other spaces, do not depend on where those are. So exact and
nearly exact copies are matched before anything else is known; for unrelated networks this is as good as any start.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.transformation import Transformation, identity, with_parts
from .assignment import assign

if TYPE_CHECKING:
    from .problem import Member, Problem

__all__ = ["profiles"]


def profiles(stated: Problem, fast: bool = False) -> Transformation:
    """Permutations that match units by norms of their weights.

    Norms are taken over the units of other spaces; weights along fixed axes (inputs, kernel positions) stay apart.

    Args:
        stated: The problem.
        fast: As in ``assign``.

    Returns:
        An element without signs and matrices; spaces that are not permuted, or lie in or around others, stay.
    """
    g = identity(stated.sym)
    outer = {parent for s in stated.sym.spaces for parent in s.parents}
    linear = {s.name for s in stated.sym.spaces if s.linear != "none"}
    for space in stated.sym.spaces:
        if not space.permutable or space.parents or space.name in outer:
            continue
        known = [m for m in stated.members[space.name] if not linear & set(m.block.spaces)]
        if not known:
            continue
        left, right = (
            torch.cat([_profile(m, m.block.read(state[m.tensor])) for m in known], -1) for state in (stated.a, stated.b)
        )
        cost = right.square().sum(-1)[..., None, :] - 2 * left @ right.mT
        g = with_parts(g, space.name, permutation=assign(-cost, fast))
    return g


def _profile(m: Member, x: Tensor) -> Tensor:
    """Norms of the slices of a block ``(n, F)``; signed values where neither other units nor signs stand between."""
    units = [d for d, s in enumerate(m.block.spaces) if s is not None and d != m.dim]
    if not units:
        x = x.movedim(m.dim, 0).reshape(x.shape[m.dim], -1)
        return x.abs() if any(m.row) else x
    norms = _norms(x, units)
    if not bool(torch.isfinite(norms).all()):
        norms = _norms(x.double(), units).to(x)
    at = sum(d not in units for d in range(m.dim))
    return norms.movedim(at, 0).reshape(x.shape[m.dim], -1)


def _norms(x: Tensor, dims: list[int]) -> Tensor:
    """Power means ``(mean |x|^p)^(1/p)`` over some dimensions, times the root of their size, for p = 1, 2 and 4."""
    square = x * x
    means = x.abs().mean(dims), square.mean(dims).sqrt(), (square * square).mean(dims).sqrt().sqrt()
    return torch.stack(means, -1) * prod(x.shape[d] for d in dims) ** 0.5
