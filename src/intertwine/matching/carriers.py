"""Outputs of modules on which the spaces of a symmetry act, located by a random element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._evaluation import copied
from .._examples import widened
from ..features import Point, layers, tap
from ..features.batches import head, size
from ..symmetry.action import act_on_features, tensors_of
from ..symmetry.admissible import admissible
from ..symmetry.blocks import blocks, map_leaves
from ..symmetry.spaces import Axis, Layout, Leaf, axis_size

if TYPE_CHECKING:
    from ..symmetry import Symmetry

__all__ = ["Place", "places"]

_EXAMPLES = 4
_POSITIONS = 16


@dataclass(frozen=True)
class Place:
    """A point of a model's run whose channels carry spaces.

    Attributes:
        point: The module's output.
        axis: How its channels are made of spaces, and how they move with them.
    """

    point: Point
    axis: Axis

    @property
    def spaces(self) -> frozenset[str]:
        """Names of the spaces that can be seen here."""
        found = (
            leaf.space for block in blocks(Layout((self.axis,))) for leaf in block.leaves if isinstance(leaf, Leaf)
        )
        return frozenset(found)


def places(model: nn.Module, sym: Symmetry, batch: Any, seed: int = 0) -> tuple[Place, ...]:
    """Find where the hidden features of a model move with its spaces.

    A random element is applied to a copy of the model. Wherever the features of both are related exactly as an axis of
    some weight is moved by that element (Proposition 3.4: written axes move by ``A``, read ones by ``phi(A)``), the
    channels carry the spaces of that axis. So no table of layers is needed, and nothing wrong can be found: what does
    not move so is no place.

    Args:
        model: Any module. It is left as it is.
        sym: Its symmetry.
        batch: Inputs; a few of the first examples are run, in float64 where the model can.
        seed: Of the element.

    Returns:
        The places in running order; of points that hold the same features the first one only.

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(4, 4)
        >>> [(place.point.name, sorted(place.spaces)) for place in places(model, iw.symmetries(model, x), x)]
        [('0', ['0.weight[0]']), ('1', ['0.weight[0]'])]
    """
    example = head(batch, min(size(batch), _EXAMPLES))
    wide, example = _widened(model, example)
    g = admissible(sym, sym.random(seed=seed, scale_std=0.3), tensors_of(wide))
    points = layers(wide, example)
    before, after = (_features(one, points, example) for one in (wide, sym.act(g, wide)))
    known: list[Tensor] = []
    found = []
    for point in points:
        x, y = before[point.name], after[point.name]
        if any(x.shape == other.shape and torch.equal(x, other) for other in known):
            continue
        known.append(x)
        for like, axis, dual in _candidates(sym, x.shape[1]):
            try:
                moved = act_on_features(sym, g, x, like, dual=dual)
            except ValueError:  # the axis moves only together with others of its tensor
                continue
            if _near(moved, y):
                moves = map_leaves(Layout((axis,)), _inverse_transpose).axes[0] if dual else axis
                found.append(Place(point, moves))
                break
    return tuple(found)


def _candidates(sym: Symmetry, channels: int) -> Iterator[tuple[tuple[str, int], Axis, bool]]:
    """Different axes of that size that carry a space, each as written and as read."""
    seen = set()
    for dual in (False, True):
        for name, layout in sym.layouts.items():
            for k, axis in enumerate(layout.axes):
                if axis_size(axis) != channels or (axis, dual) in seen:
                    continue
                seen.add((axis, dual))
                if any(block.moved for block in blocks(Layout((axis,)))):
                    yield (name, k), axis, dual


def _features(model: nn.Module, points: Sequence[Point], example: Any) -> dict[str, Tensor]:
    """Some of the features at every point, ``(N, C, P)``: a few positions tell as much as all."""
    with tap(model, [point.name for point in points]) as tapped:
        found = tapped(example)
    rows = {point.name: found[point.name].movedim(point.channel_dim, 1) for point in points}
    return {name: x.reshape(*x.shape[:2], -1)[..., :_POSITIONS] for name, x in rows.items()}


def _widened(model: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """A copy in float64 with inputs to match, or in its own type where it cannot run so."""
    try:
        wide, inputs = copied(model).double().eval(), widened(example)
        layers(wide, inputs)
        return wide, inputs
    except Exception:  # a type written into the model's code, or a device without float64
        return copied(model).eval(), example


def _near(x: Tensor, y: Tensor) -> bool:
    scale = float(y.abs().max())
    return scale > 0 and float((x - y).abs().max()) <= 1e3 * torch.finfo(y.dtype).eps ** 0.75 * scale


def _inverse_transpose(leaf: Leaf) -> Leaf:
    return replace(leaf, scale=tuple(-e for e in leaf.scale), variance=-leaf.variance)
