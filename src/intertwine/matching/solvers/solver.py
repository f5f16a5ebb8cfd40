"""Template of a solver: its options as fields, one method that searches, and the judgement of what was found."""

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
    """What a search came to, in coordinates of its own."""

    sym: Symmetry  # The symmetry whose elements were searched
    value: Callable[[Transformation], float]  # The objective of an element, which is maximised
    found: tuple[Transformation, ...]  # The elements that it came to, the best first, then what it must not fall below
    finish: Callable[[Transformation], Transformation]  # From such an element to the one that moves the network ``b``
    history: tuple[float, ...]  # The objective along the way of the best start
    starts: tuple[float, ...] = ()  # The objective that every start reached, where there are several
    notes: tuple[str, ...] = ()  # What a reader must know


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found."""

    transformation: Transformation  # The element that moves ``b`` into the basis of ``a``
    objective: float  # What the solver maximised, at ``transformation``; its unit is the solver's
    history: tuple[float, ...]  # As in ``Findings``, like what follows
    starts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    start: float = float("nan")  # The objective of the identity, which ``objective`` is never below


@dataclass(frozen=True)
class Solver(ABC):
    """A way to align two networks. Subclasses are frozen dataclasses whose fields are the options."""

    name: ClassVar[str]  # Name of the solver in ``align(method=...)``
    by_weights: ClassVar[bool] = True  # Whether its aim is a small distance of weights
    # Whether it refuses networks that no symmetry moves; others leave them as they are
    needs_units: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False  # Whether it looks at batches of data, which it reads several times

    @abstractmethod
    def search(self, networks: Networks) -> Findings:
        """What the solver's search comes to."""

    def solve(self, networks: Networks) -> Solution:
        """The best element that was seen: none is worse in the objective than leaving ``b`` as it is.

        Raises:
            ValueError: If the solver needs batches and there is no loader.
        """
        if self.needs_batches:
            if networks.loader is None:
                raise ValueError(f"loader must yield batches, with labels or not, for {self.name!r}. Got None.")
            check_repeatable(networks.loader)
        search = self.search(networks)
        still = identity(search.sym)
        values = [search.value(g) for g in (*search.found, still)]
        best = max(range(len(values)), key=lambda k: (values[k] == values[k], values[k]))  # NaN is worst
        worse = best and values[best] != values[0]
        notes = (*search.notes, *(["the search ended worse than where it started, which was kept"] if worse else []))
        g = search.finish((*search.found, still)[best])
        if networks.gauge is not None:
            g = networks.gauge.kept(g)
        return Solution(g, values[best], search.history, search.starts, notes, values[-1])
