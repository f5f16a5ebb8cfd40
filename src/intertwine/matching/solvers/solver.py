"""Template of a solver: its options as fields, one method that searches, and the judgement of the result."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...features.batches import check_repeatable
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity
from ..coordinates.networks import Networks


@dataclass(frozen=True, eq=False)
class Findings:
    """The result of a search, in its own coordinates."""

    sym: Symmetry  # The symmetry whose elements were searched
    value: Callable[[Transformation], float]  # The objective of an element, which is maximised
    found: tuple[Transformation, ...]  # The elements found, the best first, then those that it must not fall below
    finish: Callable[[Transformation], Transformation]  # Maps such an element to the one that moves the network ``b``
    history: tuple[float, ...]  # The objective along the path of the best start
    starts: tuple[float, ...] = ()  # The objective that each start reached, if there are several
    notes: tuple[str, ...] = ()  # Remarks for the reader


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of a solver."""

    transformation: Transformation  # The element that moves ``b`` into the basis of ``a``
    objective: float  # The solver's own objective at ``transformation``
    history: tuple[float, ...]  # As in ``Findings``, like the next fields
    starts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    start: float = float("nan")  # The objective of the identity; ``objective`` is never below it


@dataclass(frozen=True)
class Solver(ABC):
    """An alignment method. Subclasses are frozen dataclasses whose fields are the options."""

    name: ClassVar[str]  # Name of the solver in ``align(method=...)``
    by_weights: ClassVar[bool] = True  # Whether it minimises the distance of weights
    # Whether it refuses networks that no symmetry moves; other solvers leave them unchanged
    needs_units: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False  # Whether it uses batches of data, which it reads several times

    @abstractmethod
    def search(self, networks: Networks) -> Findings:
        """The result of the solver's search."""

    def solve(self, networks: Networks) -> Solution:
        """The best element found; its objective is never worse than leaving ``b`` as it is.

        Raises:
            ValueError: If the solver needs batches and there is no loader.
        """
        if self.needs_batches:
            if networks.loader is None:
                raise ValueError(f"loader must yield batches, with or without labels, for {self.name!r}. Got None.")
            check_repeatable(networks.loader)
        search = self.search(networks)
        still = identity(search.sym)
        values = [search.value(g) for g in (*search.found, still)]
        best = max(range(len(values)), key=lambda k: (values[k] == values[k], values[k]))  # NaN is worst
        worse = best and values[best] != values[0]
        notes = (*search.notes, *(["the search ended worse than it started, so its start was kept"] if worse else []))
        g = search.finish((*search.found, still)[best])
        if networks.gauge is not None:
            g = networks.gauge.kept(g)
        return Solution(g, values[best], search.history, search.starts, notes, values[-1])
