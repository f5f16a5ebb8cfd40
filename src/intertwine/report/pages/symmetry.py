"""Pages of symmetries: the position of each space in the network, and mappings for other tools."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log

from ..._nested import by_key
from ..._words import counted, sentence
from ...exchange import Entry, Mappings
from ...programs import Vertex
from ...symmetry import Symmetry
from ..blocks import Block, Details, Facts, Heading, Listing, Network, Paragraph, Table, noted
from ..network import Flow, network
from ..page import Page

_CAPTION = (
    "The run goes from top to bottom; repeated blocks are drawn once. Boxes with corners have weights, round ones "
    "combine outputs of others. A colour is a space: its units may change together wherever it runs. No space is "
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
    """Lay out the page of a symmetry."""
    log_size = sym.log_size
    about = (
        f"about 10{f'{log_size / log(10):.0f}'.translate(_RAISED)}" if log_size > 20 else f"{round(exp(log_size)):,}"
    )
    flows = {s.name: Flow(sym.titles[s.name], s.group.symbol) for s in sym.spaces}
    unknown = f"Operations without a rule, so that what they touch is fixed: {', '.join(sym.unknown_ops)}."
    fixed = Table(["tensor", "axis", "reason"], [[f.tensor, f.axis, f.reason] for f in sym.fixed])
    columns = ["space", "size", "copies", "group", "axes", "restricted by", "name"]
    found = {
        "lowest precision": str(sym.dtype).removeprefix("torch."), "path only": "yes" if sym.path_only else "no",
        "tensors": len(sym.layouts), "tied names": len(sym.aliases),
    }  # fmt: skip
    blocks: list[Block] = [
        Paragraph(
            f"{counted(len(sym.spaces), 'hidden space')} can move without changing the function: "
            f"{counted(sym.dim, 'continuous dimension')} and {about} discrete elements.",
            "verdict",
        ),
        *([network(sym.graph, flows, "The network and its spaces", _CAPTION)] if sym.graph else []),
        *noted(sym.notes),
        *([Paragraph(unknown, "note")] if sym.unknown_ops else []),
        Heading("The group of each space, and what restricts it"),
        Table(columns, [[row[c] for c in columns] for row in sym._rows()], _NOTATION),
        Details("Every axis that stays where it is", [fixed]),
        Facts(found, "How this was found"),
    ]
    sizes = f"{counted(len(sym.layouts), 'tensor')}, {counted(len(sym.spaces), 'space')}"
    return Page("Symmetries of an architecture", blocks, sizes)


_KINDS = {
    "norm": "scale of a norm",
    "linear": "scale of a linear map",
    "R1": "rotation of the residual stream (R1)",
    "R2": "rotation within heads (R2)",
    "permutation": "permutation of units",
}
_CAPTION_of_mappings = (
    "From top to bottom in order of the run; blocks that repeat are drawn once. A colour is an entry of the table "
    "below: it runs from the modules that write its channels to those that read them, through all that lies between."
)


def mappings_page(found: Mappings) -> Page:
    """Lay out the page of mappings."""
    blocks: list[Block] = [
        Paragraph(sentence(found.summary().partition("\n")[0].partition(": ")[2]), "verdict"),
        *([_drawn_of_mappings(found)] if found.entries and found.graph else []),
        *noted(found.notes),
        Heading("Entries, and what is not listed"),
        _table(found),
        Details("As text", [Listing(str(found))]),
    ]
    return Page(f"Mappings for {found.format}", blocks, "" if found.networks else found.model)


def _table(found: Mappings) -> Table:
    rows: list[list[object]] = [
        [str(k), str(e), len(e.places), _error(e), f"{e.proof.control:.1e}" if e.proof else "", e.note]
        for k, e in enumerate(found.entries, 1)
    ]
    rows += [["", a.pattern, len(a.modules), "not listed", "", a.reason] for a in found.absent]
    return Table(["entry", "modules", "places", "proof", "control", "note"], rows)


def _drawn_of_mappings(found: Mappings) -> Network:
    graph = found.graph
    at = by_key((vertex.module, k) for k, vertex in enumerate(graph))
    wires = [(wire, k) for k, vertex in enumerate(graph) for wire in vertex.inputs]
    readers = by_key((wire.source, k) for wire, k in wires)
    carried = by_key((space, (wire.source, k)) for wire, k in wires for space in wire.spaces)
    runs: dict[tuple[int, int], list[str]] = {}
    for k, entry in enumerate(found.entries):
        for place in entry.places:
            writes, reads = (
                {i for name in names for i in at.get(_vertex(name, at), ())} for names in (place.writes, place.reads)
            )
            exact = entry.kind == "permutation"
            for pair in carried.get(place.space, ()) if exact else _between(graph, readers, writes, reads):
                runs.setdefault(pair, []).append(str(k))
    coloured = [
        replace(
            vertex,
            inputs=tuple(replace(w, spaces=tuple(dict.fromkeys(runs.get((w.source, k), ())))) for w in vertex.inputs),
        )
        for k, vertex in enumerate(graph)
    ]
    flows = {
        str(k): Flow(f"{k + 1}. {_KINDS.get(entry.kind, entry.kind)}", f"{entry}; {_error(entry)}")
        for k, entry in enumerate(found.entries)
    }
    return network(coloured, flows, f"Mappings of {found.model}", _CAPTION_of_mappings)


def _vertex(name: str, at: Mapping[str, list[int]]) -> str:
    """The module of a tensor axis, such as ``conv.weight[0]``, or the module that contains it."""
    module = name.rpartition(".")[0] or name if name.endswith("]") else name
    while module and module not in at:
        module = module.rpartition(".")[0]
    return module


def _between(
    graph: Sequence[Vertex], readers: Mapping[int, list[int]], writes: set[int], reads: set[int]
) -> Iterator[tuple[int, int]]:
    """Wires that lead from writers to readers, through vertices that keep channels apart."""
    forward, backward = set(writes), set(reads)
    queue = list(writes)
    while queue:
        for b in readers.get(queue.pop(), ()):
            if b not in forward and b not in reads and not graph[b].mixes:
                forward.add(b)
                queue.append(b)
    queue = list(reads)
    while queue:
        k = queue.pop()
        for wire in graph[k].inputs:
            if wire.source in forward:
                yield wire.source, k
                if wire.source not in backward and not (wire.source in writes and graph[wire.source].mixes):
                    backward.add(wire.source)
                    queue.append(wire.source)


def _error(entry: Entry) -> str:
    if entry.proof is None:
        return "not proved"
    if entry.proof.passed and not entry.proof.error:
        return "outputs equal in every digit"
    return f"{'error' if entry.proof.passed else 'FAILED:'} {entry.proof.error:.1e}"
