"""Likeness of the channels of two networks at one point of their runs, by responses or by gates; and these points."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...features import Point, layers, tap
from ...features.batches import head, size
from ...symmetry.action import transform
from ...symmetry.blocks import Block, carrying, map_leaves, parent_dims
from ...symmetry.spaces import Axis, Fixed, Layout, Leaf, Space, spaces_of
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation
from ..coordinates.problem import unscaled

_AT_ONCE = 1 << 20  # examples and positions whose agreements are exact in float32
_EXAMPLES = 4


@dataclass(frozen=True, eq=False)
class Likeness:
    """What two networks have in common at one point."""

    axis: Axis  # How the channels move, in the coordinates of a ``Problem``
    matrix: Tensor  # ``(C, C)``, channels of ``a`` first; its trace is what alignment maximises

    @staticmethod
    def of_responses(axis: Axis, sym: Symmetry, covariance: Tensor, variances: tuple[Tensor, Tensor]) -> "Likeness":
        """Correlations over the number of channels; covariances over total variances where a basis may rotate."""
        axis = _searched(axis, sym, signed=True)
        if any(sym.space(name).group.mixes for name in spaces_of([axis])):
            sizes = [v.sum().sqrt() for v in variances]
            return Likeness(axis, covariance / (sizes[0] * sizes[1]).clamp_min(1e-300))
        scale = torch.outer(*(v.sqrt() for v in variances))
        matrix = torch.where(scale > 0, covariance / scale.clamp_min(1e-300), 0.0) / len(covariance)
        return Likeness(axis, matrix)

    @staticmethod
    def of_gates(axis: Axis, sym: Symmetry, a: Tensor, b: Tensor) -> "Likeness":
        """How much more often channels ``(C, E)`` are both on or both off than not; no scale and no sign changes it."""
        x, y = (t.float() * 2 - 1 for t in (a, b))
        parts = ((p @ q.T).double().cpu() for p, q in zip(x.split(_AT_ONCE, 1), y.split(_AT_ONCE, 1)))
        counts = sum(parts, torch.zeros(len(a), len(b), dtype=torch.float64))  # exact
        return Likeness(_searched(axis, sym, signed=False), counts)

    @cached_property
    def spaces(self) -> tuple[str, ...]:
        """Names of the spaces seen here."""
        return spaces_of([self.axis])

    def _carrying(self, space: str) -> list[tuple[str, Block, int, Leaf]]:
        return list(carrying({"channels": Layout((self.axis,))}, space))

    def moved(self, g: Transformation | None) -> Tensor:
        """The matrix with the channels of ``b`` moved by ``g``."""
        if g is None:
            return self.matrix
        return transform(self.matrix, Layout((Fixed(len(self.matrix), "channels of a"), self.axis)), g)

    def gains(
        self, space: Space, g: Transformation | None = None, free: Collection[str] = ()
    ) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """How alike all pairs of units of a space are, ``(p..., n, n)``, by the parities of the space's signs.

        Other units are compared in order; over those of ``free`` spaces the Frobenius norm is taken, which no
        permutation, sign or rotation of them changes.
        """
        found = self._carrying(space.name)
        matrix = self.moved(g) if found else self.matrix
        for _, block, dim, leaf in found:
            gain, in_order = _gain(matrix, block, space, dim, free)
            yield (tuple(e % 2 for e in leaf.sign) if in_order and leaf.sign else (0,) * space.group.signs), gain

    def on_diagonal(self, space: str, g: Transformation | None = None) -> float:
        """The part of the trace that channels of one space make up."""
        diagonal = self.moved(g).diagonal()
        return sum(
            float((diagonal if block.rows[0] is None else diagonal[block.rows[0]]).sum())
            for _, block, _, _ in self._carrying(space)
        )


def _searched(axis: Axis, sym: Symmetry, signed: bool) -> Axis:
    """An axis without scales, as it moves in balanced coordinates."""
    signs = None if signed else 0
    return map_leaves(Layout((axis,)), lambda x: unscaled(x, sym.space(x.space).group.reduced(signs=signs))).axes[0]


def _gain(matrix: Tensor, block: Block, space: Space, dim: int, free: Collection[str]) -> tuple[Tensor, bool]:
    """How alike units of one space are in a block, ``(p..., n, n)``, and whether their signs count."""
    rows = block.rows[0]
    part = (matrix if rows is None else matrix[rows][:, rows]).reshape(*block.shape, *block.shape)
    parents = parent_dims(space, dim, block.spaces)[:-1]
    others = [d for d in range(len(block.shape)) if d != dim and d not in parents]
    loose = [d for d in others if block.spaces[d] in free]
    count = len(block.shape)
    left = list(range(count))
    right = [count + d if d == dim or d in loose else d for d in range(count)]
    kept = [*parents, dim, count + dim]
    if not loose:
        return torch.einsum(part, left + right, kept), True
    ordered = [d for d in others if d not in loose]
    norms = torch.einsum(part.square(), left + right, kept + ordered).clamp_min(0).sqrt()
    return (norms.sum(list(range(len(kept), norms.ndim))) if ordered else norms), False


@dataclass(frozen=True)
class Carrier:
    """A point of a model's run whose channels carry spaces."""

    point: Point  # The module's output
    axis: Axis  # How its channels are made of spaces, and how they move with them

    @property
    def spaces(self) -> frozenset[str]:
        """Names of the spaces that can be seen here."""
        return frozenset(spaces_of([self.axis]))


def carriers(model: nn.Module, sym: Symmetry, batch: Any) -> tuple[Carrier, ...]:
    """Find where the hidden features of a model move with its spaces.

    The engine wrote down how the output of every module moves (``Symmetry.features``; Proposition 3.4: written axes
    move by ``A``, read ones by ``phi(A)``); here these layouts meet the points at which features can be read.

    Returns:
        The carriers in running order; of points that hold the same features the first one only.

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(4, 4)
        >>> [(carrier.point.name, sorted(carrier.spaces)) for carrier in carriers(model, iw.symmetries(model, x), x)]
        [('0', ['0.weight[0]']), ('1', ['0.weight[0]'])]
    """
    example = head(batch, min(size(batch), _EXAMPLES))
    known_to_move = (point for point in layers(model, example) if point.name in sym.features)
    carrying = [p for p in known_to_move if spaces_of([sym.features[p.name].axes[p.channel_dim]])]
    known: list[Tensor] = []
    found = []
    with tap(model, [point.name for point in carrying]) as tapped:
        features = tapped(example)
    for point in carrying:
        x = features[point.name]
        if not any(x.shape == other.shape and torch.equal(x, other) for other in known):
            known.append(x)
            found.append(Carrier(point, sym.features[point.name].axes[point.channel_dim]))
    return tuple(found)
