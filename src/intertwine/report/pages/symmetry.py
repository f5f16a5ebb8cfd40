"""The page of a symmetry: where each hidden space lives in the network, its group, and what restricts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._words import counted
from ..blocks import Block, Details, Facts, Figure, Heading, Paragraph, Table
from ..figures import label
from ..page import Page

if TYPE_CHECKING:
    from ...symmetry import Symmetry

__all__ = ["symmetry_page"]

_COLOURS = {"GL": "#b5179e", "O": "#7209b7", "S and scales": "#1f6feb", "S": "#2a9d8f", "held in place": "#8d99ae"}
_NOTATION = (
    "Sₙ are the permutations of n channels, R₊ⁿ positive scales for each of them, Z₂ⁿ signs, GLₙ all invertible "
    "and Oₙ all orthogonal maps; ⋉ says that scales and signs change places with their channels, R₊ᵏ that each "
    "has k that move independently. Axes counts the tensor axes that "
    "move together. Copies: a space inside another, as in a head of attention, has one element for each of its units."
)


def symmetry_page(sym: Symmetry) -> Page:
    """Lay out a symmetry."""
    from ...symmetry.explain import rows

    columns = ["space", "size", "copies", "group", "axes", "restricted by", "name"]
    table = [[row[c] for c in columns] for row in rows(sym)]
    blocks: list[Block] = [
        Paragraph(
            f"{counted(len(sym.spaces), 'hidden space')} can move without changing the function: "
            f"{counted(sym.dim, 'continuous dimension')} and {_power_of_ten(sym.log_size)} discrete elements.",
            "verdict",
        ),
        *(Paragraph(f"Note: {note}", "note") for note in sym.notes),
    ]
    if sym.unknown_ops:
        text = f"Operations without a rule, so that what they touch is fixed: {', '.join(sym.unknown_ops)}."
        blocks.append(Paragraph(text, "note"))
    blocks += [
        Heading("Where the spaces live"),
        _graph(sym),
        Heading("The group of each space, and what restricts it"),
        Table(columns, table, caption=_NOTATION),
        Details("Every axis that stays where it is", [_fixed(sym)]),
        Facts(
            {
                "captured by": sym.front, "lowest precision": str(sym.dtype).removeprefix("torch."),
                "path only": "yes" if sym.path_only else "no",
                "tensors": len(sym.layouts), "tied names": len(sym.aliases),
            },
            "How this was found",
        ),
    ]  # fmt: skip
    return Page(
        "Symmetries of an architecture",
        blocks,
        f"{counted(len(sym.layouts), 'tensor')}, {counted(len(sym.spaces), 'space')}",
    )


def _power_of_ten(log_size: float) -> str:
    return f"about 10^{log_size / 2.302585:.0f}" if log_size > 20 else f"{round(2.718281828459045**log_size):,}"


def _graph(sym: Symmetry) -> Figure:
    """One row for each space, one column for each tensor; a dot where the space moves an axis of the tensor."""
    from ...symmetry.spaces import Leaf, leaves

    tensors = list(sym.layouts)
    found: dict[str, list[tuple[int, str]]] = {}
    for x, name in enumerate(tensors):
        for dim, axis in enumerate(sym.layouts[name].axes):
            for place, leaf in leaves(axis):
                if isinstance(leaf, Leaf):
                    found.setdefault(leaf.space, []).append((x, f"{name}[{dim}]{place}"))
    kinds = {s.name: _kind(s) for s in sym.spaces}
    traces: list[dict[str, Any]] = []
    for y, space in enumerate(sym.spaces):
        dots = found.get(space.name, [])
        colour = _COLOURS[kinds[space.name]]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": label(sym.titles[space.name]), "showlegend": False,
                "x": [x for x, _ in dots], "y": [y] * len(dots), "line": {"color": colour, "width": 1.5},
                "marker": {"color": colour, "size": 7}, "text": [label(text) for _, text in dots],
                "hovertemplate": f"%{{text}}<br>{label(space.symbol)}<extra></extra>",
            }
        )  # fmt: skip
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": label(kind),
            "x": [None],
            "y": [None],
            "marker": {"color": colour},
        }
        for kind, colour in _COLOURS.items()
        if kind in kinds.values()
    ]
    step = max(1, -(-len(tensors) // 40))
    layout = {
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "xaxis": {"tickmode": "array", "tickvals": list(range(0, len(tensors), step)), "tickangle": -60,
                  "automargin": True, "ticktext": [label(t, 30) for t in tensors[::step]], "zeroline": False},
        "yaxis": {"tickmode": "array", "tickvals": list(range(len(sym.spaces))), "autorange": "reversed",
                  "automargin": True, "ticktext": [label(t, 34) for t in sym.titles.values()], "zeroline": False},
    }  # fmt: skip
    return Figure(
        {"data": traces, "layout": layout},
        caption="Columns are the tensors of the state dict in order. A line joins all axes that must move together.",
        height=220 + 24 * len(sym.spaces),
    )


def _kind(space: Any) -> str:
    if space.group.mixes:
        return "GL" if space.group.is_general else "O"
    if not space.group.permutes:
        return "held in place"
    return "S and scales" if space.group.scales else "S"


def _fixed(sym: Symmetry) -> Table:
    return Table(["tensor", "axis", "reason"], [[f.tensor, f.axis, f.reason] for f in sym.fixed])
