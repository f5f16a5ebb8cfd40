"""Balanced coordinates: scales and bases in which two networks can be compared weight by weight.

Of all copies that scales and bases connect, the balanced one has (almost) the smallest sum of squared weights
(``symmetry.gauge.scales``). Rotations are either fixed, as in the canonical form, or left open to be searched.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...symmetry.action import moved
from ...symmetry.gauge.bases import least_passing, undetermined
from ...symmetry.gauge.batch_norms import Folded
from ...symmetry.gauge.canonical import balanced
from ...symmetry.gauge.signs import signing
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation

PRECISION = {torch.float32: 1e-7, torch.float64: 1e-12}  # log scales: the rounding of weights in that precision


@dataclass(eq=False)
class Balanced:
    """A network in balanced coordinates."""

    folded: Folded  # Its weights, batch norms folded
    to: Transformation  # The element that brings them into balanced coordinates
    tolerance: float = 1e-12  # To which scales were found

    @classmethod
    def upright(cls, folded: Folded, kinds: Collection[str], tolerance: float = 1e-12) -> "Balanced":
        """Scales and bases of some kinds in balance, rotations left open: bases stay as near as can be."""
        return cls(folded, balanced(folded, tolerance, kinds, rotations=False), tolerance)

    @classmethod
    def normal(cls, folded: Folded) -> "Balanced":
        """Scales and bases in normal form, and signs of spaces that others lie inside: those are matched without."""
        dtype = next((t.dtype for t in folded.state.values()), torch.float64)
        found = cls(folded, balanced(folded, PRECISION[dtype]))
        outer = {parent for s in folded.sym.spaces for parent in s.parents}
        if any(s.group.signs and s.name in outer for s in folded.sym.spaces):
            found = cls(folded, signing(folded.sym, found.state).restrict(spaces=outer) @ found.to)
        return found

    @cached_property
    def state(self) -> Mapping[str, Tensor]:
        """The weights there; those that ``to`` leaves as they are, are shared."""
        return {**self.folded.state, **moved(self.sym, self.to, self.folded.state)}

    def forget(self) -> None:
        """Free the weights there; they are made again when they are asked for."""
        self.__dict__.pop("state", None)

    @property
    def sym(self) -> Symmetry:
        """The symmetry of the folded weights."""
        return self.folded.sym

    @property
    def undetermined(self) -> tuple[str, ...]:
        """Linear spaces whose basis the weights do not determine."""
        return undetermined(self.sym, self.folded.state, least_passing(self.tolerance))
