"""How well an aligned network fits: distances and cosines of matched units, in balanced coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.blocks import blocks
from ..symmetry.element import parent_dims

if TYPE_CHECKING:
    from ..symmetry import Symmetry, Transformation
    from .task import Task

__all__ = ["fit"]


def fit(task: Task, g: Transformation) -> tuple[dict[str, Tensor], float, float]:
    """Compare ``a`` with the moved ``b`` in the coordinates in which ``a`` is balanced.

    Args:
        task: The networks.
        g: The element that moves ``b``.

    Returns:
        By space the cosine of every unit with its partner, ``(p..., n)``, NaN where one has no weights; and the
        distances ``|a - b| / |a|`` before and after.
    """
    left, right = task.balanced
    back = left.to @ ~right.to
    before, after = (
        right.state if h.is_identity(0.0) else {**right.state, **moved(left.sym, h, right.state)}
        for h in (back, left.to @ g @ ~right.to)
    )
    inner, ours, theirs = ({space.name: torch.zeros(()) for space in task.sym.spaces} for _ in range(3))
    for name in left.sym.layouts:
        x, y = left.state[name], after[name]
        for found, product in ((inner, x * y), (ours, x * x), (theirs, y * y)):
            _add_sums(found, left.sym, name, product)
    cosines = {s.name: inner[s.name] / (ours[s.name] * theirs[s.name]).sqrt() for s in task.sym.spaces}
    return cosines, _distance(left.state, before), _distance(left.state, after)


def _add_sums(found: dict[str, Tensor], sym: Symmetry, name: str, x: Tensor) -> None:
    """Add to each space the sums ``(p..., n)`` of the entries along its units in one tensor."""
    spaces = {s.name: s for s in sym.spaces}
    for block in blocks(sym.layouts[name]):
        piece, names = block.read(x), block.spaces
        for dim, space in enumerate(names):
            if space is None:
                continue
            dims = parent_dims(spaces[space], dim, names)
            rest = [d for d in range(piece.ndim) if d not in dims]
            kept = sorted(dims)
            total = (piece.sum(rest) if rest else piece).permute([kept.index(d) for d in dims])
            found[space] = found[space] + total


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    size, gap = (
        sum(float(torch.linalg.vector_norm(x)) ** 2 for x in some)
        for some in (a.values(), (x - b[name] for name, x in a.items()))
    )
    return (gap / size) ** 0.5 if size else 0.0
