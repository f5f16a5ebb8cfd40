"""Balanced coordinates: scales and bases in which two networks can be compared weight by weight.

Of all copies that scales and bases connect, the balanced one has (almost) the smallest sum of squared weights
(``symmetry.gauge.balance``). Bases are left open up to rotations, which the canonical form fixes: those are searched.
"""

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor, nn

from ...symmetry.action import moved, tensors_of
from ...symmetry.gauge.balanced_bases import undetermined
from ...symmetry.gauge.canonical import balanced
from ...symmetry.gauge.folding import fold
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation


@dataclass(frozen=True, eq=False)
class Balanced:
    """A network in balanced coordinates.

    Attributes:
        sym: Acts on ``state``; batch norms are folded.
        state: The tensors, in float64 on the CPU.
        to: The element that brought the network here.
        undetermined: Linear spaces whose basis the weights do not determine.
    """

    sym: Symmetry
    state: dict[str, Tensor]
    to: Transformation
    undetermined: tuple[str, ...] = ()


def balance(model: nn.Module, sym: Symmetry, kinds: Collection[str] = ("scale", "linear")) -> Balanced:
    """Fold the batch norms of a network and bring it into balanced coordinates; the network is left as it is."""
    folded = fold(sym, tensors_of(model))
    to = balanced(folded, kinds=kinds, rotations=False)
    state = {**folded.state, **moved(folded.sym, to, folded.state)}
    return Balanced(folded.sym, state, to, undetermined(folded.sym, state) if "linear" in kinds else ())
