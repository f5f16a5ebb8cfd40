"""A drawing of a model's graph: repeated blocks are folded into one, and colours show what runs along its wires."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from .._nested import by_key
from .._words import beginning, counted
from ..programs import Vertex
from ..symmetry.coupling import Joined
from .blocks import Network

_RUNS = 4  # most runs of numbers listed
_LONGEST = 160  # most vertices of a repeated block


@dataclass(frozen=True)
class Flow:
    """A flow along wires in one colour, such as a space: its title and further details."""

    title: str
    detail: str = ""


def network(graph: Sequence[Vertex], flows: Mapping[str, Flow], title: str, caption: str = "") -> Network:
    """Draw a graph.

    Args:
        graph: Vertices, each after those that it reads; the names in ``Wire.spaces`` are those of flows.
        flows: The flows along the wires. Blocks count as equal if the details of their flows are.
        title: Title for screen readers.
        caption: Text below the drawing.
    """
    blocks = _blocks([_signature(k, vertex, flows) for k, vertex in enumerate(graph)], graph)
    slot, copy, frame = _slots(len(graph), blocks)
    joined = _joined_flows(graph, slot, flows)
    members = by_key((s, k) for k, s in enumerate(slot))
    edges: dict[tuple[int, int], list[str]] = {}
    for k, vertex in enumerate(graph):
        for wire in vertex.inputs:
            a, b = wire.source, k
            if frame[a] == frame[b] != -1 and copy[a] != copy[b]:
                continue  # from one copy of a block to the next
            found = edges.setdefault((slot[a], slot[b]), [])
            found += [flow for flow in map(joined.__getitem__, wire.spaces) if flow not in found]
    number = {s: i for i, s in enumerate(members)}
    alike = by_key((first, name) for name, first in joined.items())
    used = Counter(flow for found in edges.values() for flow in found)
    colours = {flow: i for i, (flow, _) in enumerate(used.most_common())}
    shown = []
    for same in ([flows[name] for name in alike[flow]] for flow in colours):
        times = f", {len(same)} times" if len(same) > 1 else ""
        shown.append(Flow(generalised([one.title for one in same]), f"{same[0].detail}{times}"))
    modules = [vertex.module for vertex in graph]
    spec = {
        "nodes": [_node(s, found, graph, frame, edges, shown, colours) for s, found in members.items()],
        "edges": [
            {"from": number[a], "to": number[b], "flows": [colours[f] for f in found]}
            for (a, b), found in edges.items()
        ],
        "frames": [_frame([modules[i : i + p] for i in range(start, start + p * n, p)]) for start, p, n in blocks],
        "flows": [asdict(one) for one in shown],
    }
    return Network(spec, title, caption)


def generalised(texts: Sequence[str]) -> str:
    """One text for texts that differ only in numbers, with ranges in their place; else the first and the last.

    Examples:
        >>> generalised(["h.0.mlp", "h.1.mlp", "h.3.mlp"]), generalised(["a", "b"])
        ('h.0–1, 3.mlp', 'a … b')
    """
    parts = [re.split(r"(\d+)", text) for text in dict.fromkeys(texts)]
    if len(parts) == 1:
        return texts[0]
    if any(len(part) != len(parts[0]) or part[::2] != parts[0][::2] for part in parts):
        return f"{texts[0]} … {texts[-1]}"
    columns = [list(dict.fromkeys(column)) for column in zip(*parts)]
    return "".join(column[0] if len(column) == 1 else _ranges(map(int, column)) for column in columns)


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as ``0–3, 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join(texts) if len(texts) <= _RUNS else f"{texts[0]}, {texts[1]} … {texts[-1]}"


def _signature(k: int, vertex: Vertex, flows: Mapping[str, Flow]) -> tuple[object, ...]:
    """The part that repeated vertices share: everything except numbers in names, and spaces without their sizes."""
    plain = [re.sub(r"\d+", "#", text) for text in (vertex.module, *vertex.tensors)]
    wires = [(k - wire.source, *(flows[name].detail for name in wire.spaces)) for wire in vertex.inputs]
    return (vertex.text, *plain, vertex.inner, tuple(wires))


def _blocks(signatures: Sequence[object], graph: Sequence[Vertex]) -> list[tuple[int, int, int]]:
    """Repeated runs of vertices, left to right, choosing those that save most: start, length and number of copies."""
    codes = {signature: i for i, signature in enumerate(dict.fromkeys(signatures))}
    row = [codes[signature] for signature in signatures]
    found, start = [], 0
    while start < len(row):
        best = (0, 1, 1)
        if graph[start].tensors:  # a block begins with a module that has weights
            for period in range(1, min(_LONGEST, (len(row) - start) // 2) + 1):
                if row[start + period] != row[start]:
                    continue
                block, n = row[start : start + period], 1
                while row[start + n * period : start + (n + 1) * period] == block:
                    n += 1
                best = max(best, (period * (n - 1), period, n), key=lambda one: (one[0], -one[1]))
        saved, period, n = best
        if saved:
            found.append((start, period, n))
        start += period * n
    return found


def _slots(count: int, blocks: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int]]:
    """For each vertex: its representative, the number of its copy, and its frame (-1 outside)."""
    slot, copy, frame = list(range(count)), [0] * count, [-1] * count
    for f, (start, period, n) in enumerate(blocks):
        for k in range(start, start + period * n):
            copy[k], within = divmod(k - start, period)
            slot[k], frame[k] = start + within, f
    return slot, copy, frame


def _joined_flows(graph: Sequence[Vertex], slot: Sequence[int], flows: Mapping[str, Flow]) -> dict[str, str]:
    """For each flow, the first of the flows at the same position in all copies of its block."""
    first: dict[tuple[int, int, int], str] = {}
    joined = Joined(flows)
    for k, vertex in enumerate(graph):
        for i, wire in enumerate(vertex.inputs):
            for j, name in enumerate(wire.spaces):
                other = first.setdefault((slot[k], i, j), name)
                if flows[other].detail == flows[name].detail:
                    joined.join((other, name))
    return {name: joined.root(name) for name in flows}


def _node(
    s: int, members: Sequence[int], graph: Sequence[Vertex], frame: Sequence[int],
    edges: Mapping[tuple[int, int], list[str]], shown: Sequence[Flow], colours: Mapping[str, int],
) -> dict[str, object]:  # fmt: skip
    vertex, names = graph[s], [graph[k].module for k in members]
    given, returned = (
        list(dict.fromkeys(colours[f] for pair, found in edges.items() if pair[side] == s for f in found))
        for side in (1, 0)
    )
    lines = [f"{generalised(names)}: {vertex.text}" if vertex.module else vertex.text]
    if vertex.tensors:
        lines.append("reads " + ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in vertex.tensors)))
    for word, found in (("in", given), ("out", returned)):
        lines += [f"{word}: {shown[i].title}, {shown[i].detail}" for i in found]
    kind = "join" if vertex.inputs and vertex.module else "end"
    kind = "weights" if vertex.tensors and not vertex.inner else kind
    passes = next((i for i in given if i in returned), None) if not set(given) ^ set(returned) else None
    text = _text(vertex, frame[s] >= 0)
    return {"text": text, "title": "\n".join(lines), "frame": frame[s], "kind": kind, "passes": passes}


def _text(vertex: Vertex, folded: bool) -> str:
    if vertex.inner or not vertex.module:
        return vertex.text
    *path, role = vertex.module.split(".")
    if role.isdigit():
        return vertex.text if folded else f"{vertex.module}: {vertex.text}"
    return ".".join([*(part for part in path[-1:] if not part.isdigit()), role]) if folded else vertex.module


def _frame(copies: Sequence[Sequence[str]]) -> str:
    """The title of a block: the prefix of its modules' names, and the number of its copies."""
    heads = []
    for names in copies:
        paths = [name.split(".") for name in names if name]
        numbers = [i for i, part in enumerate(beginning(*paths)) if part.isdigit()]
        heads.append(".".join(paths[0][: numbers[-1] + 1]) if numbers else "")
    flat = f"{copies[0][0]} to {copies[0][-1]} … {copies[-1][0]} to {copies[-1][-1]}"
    return f"{generalised(heads) if all(heads) else flat}, {counted(len(copies), 'time')}"
