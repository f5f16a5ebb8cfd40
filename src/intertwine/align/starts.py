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
    from .parts import Joint
    from .problem import Member, Problem

__all__ = ["profiles"]

_MANY = 4  # kernel positions that tell units apart by Euclidean norms alone


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
    known = _profiles(stated)
    for space in stated.sym.spaces:
        if not space.permutable or space.parents or space.name in outer:
            continue
        members = [m for m in stated.parts.members[space.name] if not linear & set(m.block.spaces)]
        both = [
            *known[space.name],
            *(tuple(_profile(m, m.block.read(x[m.tensor])) for x in (stated.a, stated.b)) for m in members),
        ]
        if both:
            left, right = (torch.cat(some, -1) for some in zip(*both))
            cost = right.square().sum(-1)[..., None, :] - 2 * left @ right.mT
            g = with_parts(g, space.name, permutation=assign(-cost, fast))
    return g


def _profiles(stated: Problem) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Profiles of the units of both networks in the blocks of one space and between two, ``(n, F)``."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {s.name: [] for s in stated.sym.spaces}
    for alone in stated.parts.alone:
        found[alone.space].append((alone.a.abs(), alone.b.abs()) if any(alone.row) else (alone.a, alone.b))
    for joint in stated.parts.joints:
        for side in (0, 1) if all(joint.sides) else ():
            found[joint.spaces[side]].append(_norms_of(joint, side))
    return found


def _norms_of(joint: Joint, side: int) -> tuple[Tensor, Tensor]:
    ours, theirs = (x.sqrt() for x in joint.squares[side])
    if ours.shape[1] >= _MANY and bool(torch.isfinite(ours).all() & torch.isfinite(theirs).all()):
        return ours, theirs
    ours, theirs = (_norms(x, [2 if side == 0 else 0]) for x in (joint.a, joint.b))
    if side:
        ours, theirs = ours.movedim(1, 0), theirs.movedim(1, 0)
    return ours.flatten(1), theirs.flatten(1)


def _profile(m: Member, x: Tensor) -> Tensor:
    """Norms of the slices of a block ``(n, F)``, over all other units."""
    norms = _norms(x, [d for d, s in enumerate(m.block.spaces) if s is not None and d != m.dim])
    at = sum(s is None for s in m.block.spaces[: m.dim])
    return norms.movedim(at, 0).reshape(x.shape[m.dim], -1)


def _norms(x: Tensor, dims: list[int]) -> Tensor:
    """Power means ``(mean |x|^p)^(1/p)`` over some dimensions, times the root of their size, for p = 1, 2 and 4."""

    def powers(x: Tensor) -> Tensor:
        square = x * x
        means = x.abs().mean(dims), square.mean(dims).sqrt(), (square * square).mean(dims).sqrt().sqrt()
        return torch.stack(means, -1) * prod(x.shape[d] for d in dims) ** 0.5

    norms = powers(x)
    return norms if bool(torch.isfinite(norms).all()) else powers(x.double()).to(x)
