"""How well an aligned network fits: distances and cosines of matched units, in balanced coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.canonical import slices

if TYPE_CHECKING:
    from ..symmetry import Transformation
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
    near = left.state
    before, after = (
        {**right.state, **moved(left.sym, left.to @ h @ ~right.to, right.state)} for h in (left.to.restrict(()), g)
    )
    cosines = {}
    for space in task.sym.spaces:
        inner = squares_a = squares_b = torch.zeros((), dtype=torch.float64)
        for (_, x, _), (_, y, _) in zip(slices(left.sym, near, space), slices(left.sym, after, space)):
            inner = inner + (x * y).sum(-1)
            squares_a, squares_b = squares_a + x.square().sum(-1), squares_b + y.square().sum(-1)
        cosines[space.name] = inner / (squares_a * squares_b).sqrt()
    return cosines, _distance(near, before), _distance(near, after)


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    size = sum(float(x.square().sum()) for x in a.values())
    gap = sum(float((x - b[name]).square().sum()) for name, x in a.items())
    return (gap / size) ** 0.5 if size else 0.0
