"""Pages of descent: two networks, or the tree of many."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING

from ..._words import counted
from ..blocks import Arrow, Block, Box, Diagram, Heading, Paragraph, Table
from ..figures import heatmap
from ..page import Page

if TYPE_CHECKING:
    from ...provenance import Lineage, Link, Tree

__all__ = ["lineage_page", "tree_page"]

_ROW, _INDENT, _WIDTH, _LANE, _LANES, _LETTERS = 34, 28, 260, 14, 6, 34  # pixels, pixels, ..., lanes, characters
_TOLD, _UNTOLD, _MERGED = "made from", "related, which came first is not told", "merged from"
_COLOURS = {_TOLD: "#3b7dd8", _UNTOLD: "#8b919c", _MERGED: "#2f9e75"}
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
        [k.parent, "to" if k.directed else "with", k.child, f"{k.distance:.3f}", _power(k.log_p, "none"), k.ground]
        for k in found.links
    ]
    families = [[len(members), ", ".join(members)] for members in found.families]
    heat = heatmap(matrix, names, names, title="-log10 p", name="-log10 p", limits=(0.0, top))
    sums = [
        [m.child, f"{m.weights[0]:.2f} {m.parents[0]} + {m.weights[1]:.2f} {m.parents[1]}", f"{m.residual:.2%}", m.told]
        for m in found.merges
    ]
    blocks: list[Block] = [
        Paragraph(found.summary().partition("\n")[0] + ".", "verdict"),
        Paragraph(_LIMITS, "note"),
    ]
    if links:
        blocks += [
            Heading("Branches"),
            _drawn(found),
            Table(["From", "", "Network", "Distance", "log10 p", "Direction"], links),
        ]
    if sums:
        columns = ["Network", "Weights of", "Left, of the parents' distance", "Ground"]
        blocks += [Heading("Merges"), Table(columns, sums)]
    blocks += [Heading("Families"), Table(["Networks", "Names"], families), Heading("All pairs"), heat]
    return Page("Families of networks", blocks, f"{counted(len(names), 'network')}")


def _drawn(found: Tree) -> Diagram:
    """The families as trees: a network under the one that it is linked to, arrows from parents to children."""
    rows = [row for family in found.families if len(family) > 1 for row in _rows(family, found.links)]
    at = {name: (k * _ROW + _ROW / 2, depth) for k, (name, depth) in enumerate(rows)}
    wide = max(depth for _, depth in rows) * _INDENT + _WIDTH
    boxes = [Box(d * _INDENT, y - _ROW / 2 + 4, wide - d * _INDENT, _ROW - 8, _short(n), n) for n, (y, d) in at.items()]
    drawn = [(k.parent, k.child, _TOLD if k.directed else _UNTOLD, k.ground) for k in found.links]
    known = {(parent, child) for parent, child, *_ in drawn}
    drawn += [(p, m.child, _MERGED, m.told) for m in found.merges for p in m.parents if (p, m.child) not in known]
    arrows = [
        Arrow(wide, at[parent][0], wide + _LANE * (1 + k % _LANES), at[child][0], _COLOURS[kind], f"{child}: {ground}")
        for k, (parent, child, kind, ground) in enumerate(drawn)
    ]
    legend = {kind: _COLOURS[kind] for kind in dict.fromkeys(kind for _, _, kind, _ in drawn)}
    caption = "The tree of smallest distances within each family; grey arrows have no known direction."
    return Diagram(boxes, arrows, (), legend, wide + _LANE * (_LANES + 1), len(rows) * _ROW, "Families", caption)


def _rows(family: Sequence[str], links: Sequence[Link]) -> list[tuple[str, int]]:
    """Networks of a family with their depth, each below the one that it hangs on; roots are told parents first."""
    told = {k.child for k in links if k.directed}
    order = sorted(family, key=lambda name: name in told)
    rows: list[tuple[str, int]] = []

    def visit(name: str, depth: int) -> None:
        rows.append((name, depth))
        for k in links:
            other = k.child if k.parent == name else k.parent if k.child == name else None
            if other is not None and other not in {n for n, _ in rows}:
                visit(other, depth + 1)

    visit(order[0], 0)
    return rows


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS // 2]}…{name[-_LETTERS // 2 + 1 :]}"


def _power(log_p: float | None, absent: str = "not tested") -> str:
    return absent if log_p is None else f"{log_p / log(10):.1f}"
