"""Bases of heads: the singular vectors of the maps that pass through their values, or through queries and keys."""

from ..action import moved
from ..find import symmetries_of
from ..gauge.balanced_bases import general_bases
from ..transformation import identity, with_parts
from .rewriter import Outcome, Rewriter


def balance_heads(rewriter: Rewriter) -> Outcome:
    """Bring every general linear space of the network into its balanced basis, an element of its symmetry group."""
    sym = symmetries_of(rewriter.program)
    g = identity(sym)
    for name, basis in general_bases(sym, rewriter.graph.state).items():
        g = with_parts(g, name, linear=basis)
    new = moved(sym, g, rewriter.graph.state)
    rewriter.write(new)
    rewriter.recapture()
    return Outcome({"heads"} if new else set())
