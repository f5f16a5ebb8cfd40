"""Pages of provenance: the changes between two networks, their descent, and the tree of many networks."""

from dataclasses import replace
from math import log

from ..._words import counted, sentence
from ...programs import Vertex, Wire
from ...provenance import Diff, Lineage, Tree
from ..blocks import Block, Details, Facts, Heading, Listing, Network, Paragraph, Table, noted
from ..figures import cut, heatmap, strip
from ..network import Flow, network
from ..page import Page


def diff_page(found: Diff) -> Page:
    """Lay out the page of a difference."""
    frame = found.to_frame()
    if (frame["source"] == frame["tensor"]).all():
        frame = frame.drop(columns="source")
    blocks: list[Block] = [
        Paragraph(sentence(f"{found.verdict}: {found.reason}"), "verdict"),
        *_strips(found),
        Heading("What was done"),
        Table(["kind", "in words", "tensors"], [[f.kind, f.text, len(f.tensors)] for f in found.findings]),
        *(Paragraph(f"Ambiguous: {said}", "note") for said in found.ambiguous),
        *_units(found),
        Heading("Tensor by tensor"),
        Table.of(frame, "The first network is brought into the basis of the second; changes are what remains."),
        Details("The difference as text", [Listing(found.summary())]),
    ]
    if found.output_error is not None:
        blocks.append(Facts({"difference of the outputs, relative": f"{found.output_error:.2e}"}, "On the example"))
    return Page("What changed", blocks, f"{counted(len(found.tensors), 'tensor')} in {len(found.blocks)} blocks")


def _strips(found: Diff) -> list[Block]:
    """Relative change by block, and by block and role."""
    names, sizes = list(found.blocks), list(found.blocks.values())
    if not names:
        return []
    caption = "The size of the change over that of the weights, all tensors of a block together."
    title, row = "Relative change of each block", "relative change"
    blocks = strip(sizes, names, row=row, title=title, places="block", caption=caption)
    roles: dict[str, dict[str, float]] = {}
    for t in found.tensors:
        if t.relative < float("inf"):
            role = t.name.removeprefix(t.block).removeprefix(".") or t.name
            roles.setdefault(role, {})[t.block] = t.relative
    most = max((v for row in roles.values() for v in row.values()), default=0.0)
    grid = heatmap(
        [[row.get(name) for name in names] for row in roles.values()], list(roles), names,
        title="Relative change of each tensor", caption="Blank where a block has no such tensor.",
        row_title="tensor", column_title="block", name="relative change", limits=(0.0, max(most, 1e-12)),
    )  # fmt: skip
    return [blocks, replace(grid, height=min(900, 160 + 22 * len(roles)))]


def _units(found: Diff) -> list[Block]:
    if not found.units:
        return []
    rows = [[u.space, ", ".join(map(str, u.unit)), u.relative] for u in found.units]
    return [Heading("Units that changed most"), Table(["space", "unit", "relative change"], rows)]


_LETTERS = 34  # longest shown name of a network
_TOLD, _UNTOLD, _MERGED = "made from", "related, which came first is not told", "holds weights of"
_ALIGNED = "units in one order, weights far apart"
_UNSURE = "related, or one was aligned to the other"
_CAPTION = (
    "Lines join the closest networks of a family, a parent above its children where that is told, and families of "
    "which one was aligned to the other."
)
_LIMITS = (
    "A small p-value refutes that the trainings were independent. It does not say which came first, nor whether "
    "both come from a third; and a large one does not prove independence."
)


def lineage_page(found: Lineage) -> Page:
    """Lay out the page of a verdict on descent."""
    names, cosines = [b.block for b in found.by_block], [b.cosine for b in found.by_block]
    parts = [[b.block, found.told(b), found.ground(b), b.cosine, f"{b.equal} of {b.tensors}"] for b in found.by_block]
    spaces = [
        [s.space, s.units, f"{s.agreeing:.0%}", _power(s.log_p), f"{s.spearman:.3f}", s.note] for s in found.by_space
    ]
    title = "How alike the weights of each block are"
    caption = (
        "Cosines between tensors in both networks, the mean over those of a block: 1 for equal directions, 0 for "
        "unrelated ones. Gains near 1 agree in any two networks."
    )
    blocks: list[Block] = [
        Paragraph(sentence(f"{found.headline}. {found.reason}"), "verdict"),
        strip(cosines, names, row="cosine", places="block", title=title, limits=(0.0, 1.0), caption=caption),
        Paragraph(_LIMITS, "note"),
        *noted(found.notes),
        Heading("Parts"),
        Table(["Block", "Verdict", "Ground", "Cosine", "Tensors unchanged"], parts),
    ]
    if spaces:
        columns = ["Space", "Units", "Agreeing", "log10 p", "Rank correlation", "Note"]
        blocks += [Heading("Hidden spaces"), Table(columns, spaces)]
    return Page("Descent of two networks", blocks, f"{counted(len(found.by_tensor), 'tensor')} in common")


def tree_page(found: Tree) -> Page:
    """Lay out the page of families of many networks."""
    top = max((-p / log(10) for row in found.log_p for p in row if p == p), default=1.0) or 1.0
    matrix = [[min(max(-p / log(10), 0.0), top) if p == p else None for p in row] for row in found.log_p]
    names = list(found.names)
    heat = heatmap(matrix, names, names, title="-log10 p", name="-log10 p", limits=(0.0, top))
    links = [
        [k.parent, "to" if k.directed else "with", k.child, f"{k.distance:.3f}", _power(k.log_p, "none"), k.ground]
        for k in found.links
    ]
    sums = [[m.child, m.sum, f"{m.residual:.2%}", m.told] for m in found.merges]
    blocks: list[Block] = [
        Paragraph(sentence(found.summary().partition("\n")[0]), "verdict"),
        *([_drawn(found)] if links else []),
        Paragraph(_LIMITS, "note"),
        *noted(found.notes),
    ]
    if links:
        blocks += [Heading("Branches"), Table(["From", "", "Network", "Distance", "log10 p", "Direction"], links)]
    if sums:
        columns = ["Network", "Weights of", "Left, of the parents' distance", "Ground"]
        blocks += [Heading("Merges"), Table(columns, sums)]
    families = Table(["Networks", "Names"], [[len(members), ", ".join(members)] for members in found.families])
    blocks += [Heading("Families"), families, Heading("All pairs"), heat]
    return Page("Families of networks", blocks, counted(len(names), "network"))


def _drawn(found: Tree) -> Network:
    """The drawing of the families: lines from each network to those made from it, or closest to it."""
    joined = {name for link in found.links for name in (link.parent, link.child)}
    wires: dict[str, list[tuple[str, str]]] = {
        name: [] for family in found.families for name in family if name in joined
    }
    for link in found.links:
        doubted = _ALIGNED if link.aligned else "" if link.calibrated else _UNSURE
        kind = doubted or (_TOLD if link.directed else _UNTOLD)
        wires[link.child].append((link.parent, kind))
    for merge in found.merges:
        known = {parent for parent, _ in wires[merge.child]}
        wires[merge.child] += [(parent, _MERGED) for parent in merge.parents if parent not in known]
    number = {name: k for k, name in enumerate(wires)}
    graph = [
        Vertex("", cut(name, _LETTERS), (), tuple(Wire(number[p], (kind,)) for p, kind in wires[name]))
        for name in wires
    ]
    flows = {kind: Flow(kind) for kind in (_TOLD, _UNTOLD, _UNSURE, _MERGED, _ALIGNED)}
    return network(graph, flows, "Families of networks", _CAPTION)


def _power(log_p: float | None, absent: str = "not tested") -> str:
    return absent if log_p is None else f"{log_p / log(10):.1f}"
