"""Template of a solver: its options as fields, and one method that finds an element."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ...symmetry.transformation import Transformation
from ..coordinates.networks import Networks


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found.

    Attributes:
        transformation: The element that moves ``b`` into the basis of ``a``.
        objective: What the solver maximised, at ``transformation``; its unit is the solver's.
        history: The objective along the way of the best start.
        starts: The objective that every start reached, where there are several.
        notes: What a reader must know.
    """

    transformation: Transformation
    objective: float
    history: tuple[float, ...]
    starts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Solver(ABC):
    """A way to align two networks. Subclasses are frozen dataclasses whose fields are the options.

    Attributes:
        name: Name of the solver in ``align(method=...)``.
        by_weights: Whether its aim is a small distance of weights.
        needs_units: Whether it refuses networks that no symmetry moves; others leave them as they are.
    """

    name: ClassVar[str]
    by_weights: ClassVar[bool] = True
    needs_units: ClassVar[bool] = False

    @abstractmethod
    def solve(self, networks: Networks) -> Solution:
        """The element that the solver finds."""
