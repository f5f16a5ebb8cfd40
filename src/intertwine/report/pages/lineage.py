"""Pages of descent: two networks, or the tree of many."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from ..._words import counted
from ..blocks import Block, Heading, Paragraph, Table
from ..figures import heatmap
from ..page import Page

if TYPE_CHECKING:
    from ...provenance import Lineage, Tree

__all__ = ["lineage_page", "tree_page"]

_LIMITS = (
    "A small p-value refutes that the trainings were independent. It does not say which came first, nor whether "
    "both come from a third; and a large one does not prove independence."
)


def lineage_page(found: Lineage) -> Page:
    """Lay out a verdict on descent.

    Args:
        found: The result of ``lineage``.
    """
    parts = [
        [
            b.block,
            "derived" if b.derived else "no sign",
            found.ground(b),
            f"{b.cosine:.3f}",
            f"{b.equal} of {b.tensors}",
        ]
        for b in found.by_block
    ]
    spaces = [
        [s.space, s.units, f"{s.agreeing:.0%}", _power(s.log_p), f"{s.spearman:.3f}", s.note] for s in found.by_space
    ]
    blocks: list[Block] = [
        Paragraph(f"{found.headline}. {found.reason}.", "verdict"),
        Paragraph(_LIMITS, "note"),
        *(Paragraph(f"Note: {note}", "note") for note in found.notes),
        Heading("Parts"),
        Table(["Block", "Verdict", "Ground", "Cosine", "Tensors unchanged"], parts),
    ]
    if spaces:
        columns = ["Space", "Units", "Agreeing", "log10 p", "Rank correlation", "Note"]
        blocks += [Heading("Hidden spaces"), Table(columns, spaces)]
    return Page("Descent of two networks", blocks, f"{counted(len(found.by_tensor), 'tensor')} in common")


def tree_page(found: Tree) -> Page:
    """Lay out the families of many networks.

    Args:
        found: The result of ``lineage.tree``.
    """
    top = max((-p / log(10) for row in found.log_p for p in row if p == p), default=1.0) or 1.0
    matrix = [[min(max(-p / log(10), 0.0), top) if p == p else None for p in row] for row in found.log_p]
    names = list(found.names)
    links = [
        [k.parent, "to" if k.directed else "with", k.child, f"{k.distance:.3f}", _power(k.log_p), k.ground]
        for k in found.links
    ]
    families = [[len(members), ", ".join(members)] for members in found.families]
    heat = heatmap(matrix, names, names, title="-log10 p", name="-log10 p", limits=(0.0, top))
    return Page(
        "Families of networks",
        [
            Paragraph(found.summary().partition("\n")[0] + ".", "verdict"),
            Paragraph(_LIMITS, "note"),
            Heading("Branches"),
            Table(["From", "", "Network", "Distance", "log10 p", "Direction"], links),
            Heading("Families"),
            Table(["Networks", "Names"], families),
            Heading("All pairs"),
            heat,
        ],
        f"{counted(len(names), 'network')}",
    )


def _power(log_p: float | None) -> str:
    return "not tested" if log_p is None else f"{log_p / log(10):.1f}"
