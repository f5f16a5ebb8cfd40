"""The page of mappings: the model drawn as blocks with an arrow from each module that writes to each that reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._words import counted
from ..blocks import Arrow, Block, Box, Details, Diagram, Heading, Listing, Paragraph, Table, Tag
from ..folding import folded
from ..page import Page

if TYPE_CHECKING:
    from ...exchange import Entry, Mappings

__all__ = ["mappings_page"]

_KINDS = {
    "norm": ("scale of a norm", "#3b7dd8"),
    "linear": ("scale of a linear map", "#e07b39"),
    "R1": ("rotation of the residual stream (R1)", "#2f9e75"),
    "R2": ("rotation within heads (R2)", "#a05fc0"),
    "permutation": ("permutation of units", "#d1495b"),
}
_CAPTION = (
    "Modules from top to bottom in order of the run; layers that are alike are one block. An arrow goes from a module "
    "that writes the channels to one that reads them; one that goes up, or back to its own box, reads in a later "
    "layer. Numbers are those of the entries below, each with the relative error of its proof. Hover for names."
)
_UNITS = (
    "Channels that are permuted together: an arrow goes from every tensor whose first axis they are to every tensor "
    "with them on another axis, whichever of the two writes."
)
_ROW, _GAP, _LANE, _LETTER, _TAG = 30, 14, 18, 7.2, 150
_Pair = tuple[tuple[str, str], tuple[str, str]]  # block and role of a writer and of a reader


def mappings_page(found: Mappings) -> Page:
    """Lay out mappings."""
    proved = sum(e.proof is not None and e.proof.passed for e in found.entries)
    blocks: list[Block] = [
        Paragraph(
            f"{counted(len(found.entries), 'entry')} for {found.format}, {proved} proved on numbers; "
            f"{len(found.absent)} not listed.",
            "verdict",
        ),
        *(Paragraph(f"Note: {note}", "note") for note in found.notes),
    ]
    if found.entries:
        blocks += [Heading("The model and its mappings"), _drawn(found)]
    blocks += [Heading("Entries, and what is not listed"), _table(found), Details("As text", [Listing(str(found))])]
    return Page(f"Mappings for {found.format}", blocks, found.model)


def _table(found: Mappings) -> Table:
    rows: list[list[object]] = [
        [str(k), str(e), len(e.places), _error(e), f"{e.proof.control:.1e}" if e.proof else "", e.note]
        for k, e in enumerate(found.entries, 1)
    ]
    rows += [["", a.pattern, len(a.modules), "not listed", "", a.reason] for a in found.absent]
    return Table(["entry", "modules", "places", "proof", "control", "note"], rows)


def _drawn(found: Mappings) -> Diagram:
    uses: dict[str, set[tuple[int, int]]] = {}
    for k, entry in enumerate(found.entries):
        for place in entry.places:
            for side, names in enumerate((place.writes, place.reads)):
                for name in names:
                    uses.setdefault(_module(name), set()).add((k, side))
    order = list(dict.fromkeys([*(name for name in found.modules if name in uses), *uses]))
    at = folded({name: frozenset(uses[name]) for name in order})
    boxes, rows = _boxes(order, at)
    right = max(box.x + box.width for box in boxes)
    pairs = [_pairs(entry, at) for entry in found.entries]
    lanes = _lanes([[rows[key] for pair in joined for key in pair] for joined in pairs])
    far = right + _LANE * (max(lanes) + 2)
    arrows, tags = [], []
    below = 0.0
    for k in sorted(range(len(pairs)), key=lambda k: min((rows[w] for w, _ in pairs[k]), default=0.0)):
        entry, colour = found.entries[k], _KINDS.get(found.entries[k].kind, ("", "#7d6b5d"))[1]
        lane = right + _LANE * (lanes[k] + 1)
        for (writer, reader), names in pairs[k].items():
            title = f"{k + 1}. {names[0]} \u2192 {names[1]} ({_said(entry)})"
            arrows.append(Arrow(right, rows[writer] + 5, lane, rows[reader] - 5, colour, title))
        below = max(below + 15, min((rows[w] for w, _ in pairs[k]), default=0.0) + 5)
        tags.append(Tag(far, below, f"{k + 1}: {_error(entry)}", colour, str(entry)))
    height = max(below, *(box.y + box.height for box in boxes)) + _GAP
    legend = {_said(entry): _KINDS[entry.kind][1] for entry in found.entries if entry.kind in _KINDS}
    caption = f"{_CAPTION} {_UNITS}" if any(e.kind == "permutation" for e in found.entries) else _CAPTION
    return Diagram(boxes, arrows, tags, legend, far + _TAG, height, f"Mappings of {found.model}", caption)


def _module(name: str) -> str:
    """The module of a tensor axis, such as ``conv.weight[0]``; a module itself."""
    return name.rpartition(".")[0] or name if name.endswith("]") else name


def _boxes(order: list[str], at: dict[str, tuple[str, str]]) -> tuple[list[Box], dict[tuple[str, str], float]]:
    """Frames of blocks with the boxes of their modules, and the middle of each box."""
    held: dict[object, dict[str, list[str]]] = {}
    for name in order:
        block, role = at[name]
        held.setdefault(block or name, {}).setdefault(role, []).append(name)
    width = max(_LETTER * len(text) for block, role in at.values() for text in (f"{block} (repeated)", role)) + 44
    boxes, rows, y = [], {}, float(_GAP)
    for roles in held.values():
        block = at[next(iter(roles.values()))[0]][0]
        if block:
            top, y = y, y + 26
            times = max(map(len, roles.values()))
            head = f"{block} ({times} times)" if times > 1 else block
            boxes.append(Box(8, top, width, 26 + _ROW * len(roles) + 4, head, "", framed=True))
        for role, names in roles.items():
            title = ", ".join(names) if len(names) < 9 else f"{', '.join(names[:8])} and {len(names) - 8} more"
            inset = 10 if block else 0
            boxes.append(Box(8 + inset, y, width - 2 * inset, _ROW - 6, role, title))
            rows[block, role] = y + (_ROW - 6) / 2
            y += _ROW
        y += _GAP
    return boxes, rows


def _pairs(entry: Entry, at: dict[str, tuple[str, str]]) -> dict[_Pair, tuple[str, str]]:
    """Boxes that an entry joins, with the names of modules that are the first example."""
    found: dict[_Pair, tuple[str, str]] = {}
    for place in entry.places:
        for w in dict.fromkeys(map(_module, place.writes)):
            for r in dict.fromkeys(map(_module, place.reads)):
                if w != r:
                    found.setdefault((at[w], at[r]), (w, r))
    return found


def _lanes(heights: list[list[float]]) -> list[int]:
    """A lane for each entry, so that those in one lane do not overlap."""
    ends: list[float] = []
    found = [0] * len(heights)
    for k in sorted((k for k, spans in enumerate(heights) if spans), key=lambda k: min(heights[k])):
        low, high = min(heights[k]) - 5, max(heights[k]) + 5
        found[k] = next((lane for lane, end in enumerate(ends) if end < low), len(ends))
        ends[found[k] : found[k] + 1] = [high]
    return found


def _said(entry: Entry) -> str:
    return _KINDS[entry.kind][0] if entry.kind in _KINDS else entry.kind


def _error(entry: Entry) -> str:
    if entry.proof is None:
        return "not proved"
    return f"{'error' if entry.proof.passed else 'FAILED:'} {entry.proof.error:.1e}"
