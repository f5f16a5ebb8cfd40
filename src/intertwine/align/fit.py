"""How well an aligned network fits: distances and cosines of matched units, in balanced coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..symmetry.action import moved, tensors_of
from ..symmetry.canonical import slices
from ..symmetry.folding import fold
from ..symmetry.transformation import Transformation
from .balanced import balanced_coordinates

if TYPE_CHECKING:
    from ..symmetry import Symmetry

__all__ = ["fit"]


def fit(
    a: nn.Module, b: nn.Module, sym: Symmetry, g: Transformation
) -> tuple[dict[str, Tensor], float, float]:
    """Compare ``a`` with the moved ``b`` in the coordinates in which ``a`` is balanced.

    Args:
        a: The network that stayed.
        b: The network that moves.
        sym: The symmetry of both.
        g: The element that moves ``b``.

    Returns:
        By space the cosine of every unit with its partner, ``(p..., n)``, NaN where one has no weights; and the
        distances ``|a - b| / |a|`` before and after.
    """
    left, right = fold(sym, tensors_of(a)), fold(sym, tensors_of(b))
    to_a = balanced_coordinates(left.sym, left.state)
    near_a = {**left.state, **moved(left.sym, to_a, left.state)}
    before = {**right.state, **moved(left.sym, to_a, right.state)}
    after = {**right.state, **moved(left.sym, to_a @ g, right.state)}
    cosines = {}
    for space in sym.spaces:
        pairs = list(zip(slices(left.sym, near_a, space), slices(left.sym, after, space)))
        inner, left_squares, right_squares = (
            sum(((x[1] * y[1]).sum(-1) for x, y in chosen), start=torch.zeros((), dtype=torch.float64))
            for chosen in (pairs, [(x, x) for x, _ in pairs], [(y, y) for _, y in pairs])
        )
        cosines[space.name] = inner / (left_squares * right_squares).sqrt()
    return cosines, _distance(near_a, before), _distance(near_a, after)


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    size = sum(float(x.square().sum()) for x in a.values())
    gap = sum(float((x - b[name]).square().sum()) for name, x in a.items())
    return (gap / size) ** 0.5 if size else 0.0
