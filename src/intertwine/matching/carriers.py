"""Outputs of modules on which the spaces of a symmetry act."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..features import Point, layers, tap
from ..features.batches import head, size
from ..symmetry import Symmetry
from ..symmetry.spaces import Axis, spaces_of

_EXAMPLES = 4


@dataclass(frozen=True)
class Carrier:
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
    carrying = [point for point in layers(model, example) if _moves(sym, point)]
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


def _moves(sym: Symmetry, point: Point) -> bool:
    """Whether a space acts on the channels of a point."""
    layout = sym.features.get(point.name)
    return layout is not None and bool(spaces_of([layout.axes[point.channel_dim]]))
