"""Bases of heads: the singular vectors of the maps that pass through their values, or through queries and keys."""

from ..action import moved
from ..find import symmetries_of
from ..gauge.balanced_bases import general_bases
from ..transformation import identity, with_parts
from .workshop import Outcome, Workshop


def balance_heads(workshop: Workshop) -> Outcome:
    """Bring every general linear space of the network into its balanced basis, an element of its symmetry group."""
    sym = symmetries_of(workshop.program)
    g = identity(sym)
    for name, basis in general_bases(sym, workshop.graph.state).items():
        g = with_parts(g, name, linear=basis)
    new = moved(sym, g, workshop.graph.state)
    workshop.write(new)
    workshop.recapture()
    return Outcome({"heads"} if new else set())
