"""The page of a symmetry: where each hidden space lives in the network, its group, and what restricts it."""

from ..._words import counted
from ...symmetry import Symmetry
from ..blocks import Block, Details, Facts, Heading, Paragraph, Table
from ..network import Flow, network
from ..page import Page

_CAPTION = (
    "From top to bottom in order of the run; blocks that repeat are drawn once. Boxes with corners have weights, round "
    "ones join what others return. A colour is a space: its units may change together wherever it runs. No space is "
    "known to run along a dotted wire."
)
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_NOTATION = (
    "Sₙ are the permutations of n channels, R₊ⁿ positive scales for each of them, Z₂ⁿ signs, GLₙ all invertible "
    "and Oₙ all orthogonal maps; ⋉ says that scales and signs change places with their channels, R₊ᵏ that each "
    "has k that move independently. Axes counts the tensor axes that "
    "move together. Copies: a space inside another, as in a head of attention, has one element for each of its units."
)


def symmetry_page(sym: Symmetry) -> Page:
    """Lay out a symmetry."""
    from ...symmetry.explanation.explain import rows

    columns = ["space", "size", "copies", "group", "axes", "restricted by", "name"]
    table = [[row[c] for c in columns] for row in rows(sym)]
    blocks: list[Block] = [
        Paragraph(
            f"{counted(len(sym.spaces), 'hidden space')} can move without changing the function: "
            f"{counted(sym.dim, 'continuous dimension')} and {_power_of_ten(sym.log_size)} discrete elements.",
            "verdict",
        ),
        *_drawn(sym),
        *(Paragraph(f"Note: {note}", "note") for note in sym.notes),
    ]
    if sym.unknown_ops:
        text = f"Operations without a rule, so that what they touch is fixed: {', '.join(sym.unknown_ops)}."
        blocks.append(Paragraph(text, "note"))
    blocks += [
        Heading("The group of each space, and what restricts it"),
        Table(columns, table, caption=_NOTATION),
        Details("Every axis that stays where it is", [_fixed(sym)]),
        Facts(
            {
                "lowest precision": str(sym.dtype).removeprefix("torch."),
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
    power = f"{log_size / 2.302585:.0f}".translate(_RAISED)
    return f"about 10{power}" if log_size > 20 else f"{round(2.718281828459045**log_size):,}"


def _drawn(sym: Symmetry) -> list[Block]:
    """The network with every space as one colour."""
    flows = {s.name: Flow(sym.titles[s.name], s.group.symbol) for s in sym.spaces}
    return [network(sym.graph, flows, "The network and its spaces", _CAPTION)] if sym.graph else []


def _fixed(sym: Symmetry) -> Table:
    return Table(["tensor", "axis", "reason"], [[f.tensor, f.axis, f.reason] for f in sym.fixed])
