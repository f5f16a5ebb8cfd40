"""A start for every space at once: units whose weights have similar profiles.

The sizes of a unit's weights, sorted, do not depend on where the units of other spaces are. So exact and nearly exact
copies are matched before anything else is known; for unrelated networks this is as good as any start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.transformation import Transformation, identity, with_parts
from .assignment import assign

if TYPE_CHECKING:
    from .problem import Problem

__all__ = ["profiles"]

_QUANTILES = 64  # points of a profile


def profiles(stated: Problem, fast: bool = False) -> Transformation:
    """Permutations that match units by the sorted sizes of their weights.

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
            torch.cat([_profile(m.view(m.block.read(state[m.tensor]))) for m in known], -1)
            for state in (stated.a, stated.b)
        )
        cost = right.square().sum(-1)[..., None, :] - 2 * left @ right.mT
        g = with_parts(g, space.name, permutation=assign(-cost, fast))
    return g


def _profile(x: Tensor) -> Tensor:
    """Quantiles of the sizes of a slice, weighted by its length, ``(n, at most 64)``."""
    size = x.abs().sort(-1).values
    count = size.shape[-1]
    if count > _QUANTILES:
        size = size[..., torch.linspace(0, count - 1, _QUANTILES, device=x.device).round().long()]
    return size * (count / size.shape[-1]) ** 0.5
