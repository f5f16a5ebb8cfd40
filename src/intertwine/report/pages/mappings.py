"""The page of mappings: the network drawn, with each entry as a colour from modules that write to those that read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ..._words import counted
from ...exchange import Entry, Mappings
from ...programs import Vertex, Wire
from ..blocks import Block, Details, Heading, Listing, Network, Paragraph, Table
from ..network import Flow, network
from ..page import Page

_KINDS = {
    "norm": "scale of a norm",
    "linear": "scale of a linear map",
    "R1": "rotation of the residual stream (R1)",
    "R2": "rotation within heads (R2)",
    "permutation": "permutation of units",
}
_CAPTION = (
    "From top to bottom in order of the run; blocks that repeat are drawn once. A colour is an entry of the table "
    "below: it runs from the modules that write its channels to those that read them, through all that lies between."
)


def mappings_page(found: Mappings) -> Page:
    """Lay out mappings."""
    proved = sum(e.proof is not None and e.proof.passed for e in found.entries)
    blocks: list[Block] = [
        Paragraph(
            f"{counted(len(found.entries), 'entry')} for {found.format}, {proved} verified numerically; "
            f"{len(found.absent)} not listed.",
            "verdict",
        ),
        *([_drawn(found)] if found.entries else []),
        *(Paragraph(f"Note: {note}", "note") for note in found.notes),
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


def _drawn(found: Mappings) -> Network:
    graph = found.graph or _pairs(found)
    at: dict[str, list[int]] = {}
    for k, vertex in enumerate(graph):
        at.setdefault(vertex.module, []).append(k)
    readers: dict[int, list[int]] = {}
    carried: dict[str, list[tuple[int, int]]] = {}
    for k, vertex in enumerate(graph):
        for wire in vertex.inputs:
            readers.setdefault(wire.source, []).append(k)
            for space in wire.spaces:
                carried.setdefault(space, []).append((wire.source, k))
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
    return network(coloured, flows, f"Mappings of {found.model}", _CAPTION)


def _vertex(name: str, at: Mapping[str, list[int]]) -> str:
    """The module of a tensor axis, such as ``conv.weight[0]``, or the one that holds it."""
    module = name.rpartition(".")[0] or name if name.endswith("]") else name
    while module and module not in at:
        module = module.rpartition(".")[0]
    return module


def _between(
    graph: Sequence[Vertex], readers: Mapping[int, list[int]], writes: set[int], reads: set[int]
) -> Iterator[tuple[int, int]]:
    """Wires that lead from those that write to those that read, through vertices that keep channels apart."""
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


def _pairs(found: Mappings) -> tuple[Vertex, ...]:
    """A graph of the modules that are named, where nothing is known of what lies between."""
    pairs = [pair for e in found.entries for p in e.places for pair in product(p.writes, p.reads)]
    number = {name: k for k, name in enumerate(dict.fromkeys(name for pair in pairs for name in pair))}
    wires = {name: tuple(Wire(number[w]) for w in dict.fromkeys(w for w, r in pairs if r == name)) for name in number}
    return tuple(Vertex(name, "", (name,), wires[name]) for name in number)


def _error(entry: Entry) -> str:
    if entry.proof is None:
        return "not proved"
    if entry.proof.passed and not entry.proof.error:
        return "outputs equal in every digit"
    return f"{'error' if entry.proof.passed else 'FAILED:'} {entry.proof.error:.1e}"
