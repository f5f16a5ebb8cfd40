"""Graphs of terms, with sums and products flattened and dead terms removed; their colourings and matching.

Two graphs are matched by colours computed from both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .terms import Axis, Term, View, leaves, ordered, told

COMMUTATIVE = {"add", "mul", "contract"}
Colours: TypeAlias = dict[Hashable, int]
"""Numbers of colours, assigned in the order encountered; shared by all graphs that are compared."""
NOTHING = "nothing like it"


@dataclass(eq=False)
class Vertex:
    """A term whose indices are numbered."""

    op: str
    attrs: tuple
    operands: list[tuple[int, dict[int, int]]]  # Vertices that it reads, with the reader's index for each of theirs
    letters: list[tuple[int, Any, bool]]  # For each index: size, role, and whether the result has it
    term: Term
    users: list[tuple[int, int]] = field(default_factory=list)  # Its readers, with its place among their operands


@dataclass(eq=False)
class Graph:
    """Vertices, each after those that it reads; the outputs are vertices too."""

    vertices: list[Vertex]
    outputs: list[int]  # Numbers of the vertices for outputs
    place: dict[Term, tuple[int, dict[Axis, int]]]  # The vertex of each term, and the numbers of its indices
    live: list[int] = field(default_factory=list)  # Numbers of the outputs and of all vertices that they depend on
    _known: dict[Hashable, int] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Sequence[View]) -> Graph:
        """The graph of everything that some views need, with nested sums and nested products flattened."""
        graph = cls([], [], {})
        for t in ordered([view.term for view in outputs]):
            graph._add(t)
        for k, view in enumerate(outputs):
            number, letters = graph.place[view.term]
            axes = {letters[a]: (a.size, (d, i), True) for d, dim in enumerate(view.dims)
                    for i, a in enumerate(leaves(dim)) if a in letters}  # fmt: skip
            read = number, {j: i for i, j in enumerate(axes)}
            graph.outputs.append(len(graph.vertices))
            graph.vertices.append(
                Vertex("output", (k,), [read], [*axes.values()], Term("output", where=view.term.where))
            )
        live = set(graph.outputs)
        for n, v in reversed([*enumerate(graph.vertices)]):
            live |= {u for u, _ in v.operands} if n in live else set()
        graph.live = sorted(live)
        for number in graph.live:
            for k, (u, _) in enumerate(graph.vertices[number].operands):
                graph.vertices[u].users.append((number, k))
        return graph

    def _add(self, t: Term) -> None:
        axes = leaves([*t.out, *(b for o in t.operands for _, b in o.pairs), *(a for a, _ in t.roles)])
        if isinstance(t.source, Tensor):
            axes = told(t)[1]
        index = {axis: i for i, axis in enumerate(dict.fromkeys(axes))}
        roles: dict[Axis, Any] = {leaf: role for axis, role in t.roles for leaf in axis.leaves()}
        if t.op == "input":
            roles = {leaf: (d, k) for d, dim in enumerate(t.layout) for f in dim if f.axis is not None
                     for k, leaf in enumerate(f.axis.leaves())}  # fmt: skip
        shown = set(leaves(t.out))
        operands, attrs = [], t.attrs
        for operand in t.operands:
            number, known = self.place[operand.term]
            own = {known[a]: index[b] for a, b in operand.flat() if a in known}
            inner = self.vertices[number]
            if inner.op == t.op in ("add", "mul") and len(own) == len(inner.letters):
                attrs = (attrs[0] + inner.attrs[0] if t.op == "add" else attrs[0] * inner.attrs[0],)
                operands += [(u, {i: own[j] for i, j in pairs.items()}) for u, pairs in inner.operands]
            else:
                operands.append((number, own))
        neutral = {"add": 0.0, "mul": 1.0}.get(t.op)
        if attrs and attrs[0] == neutral and len(operands) == 1 and len(operands[0][1]) == len(index):
            number, own = operands[0]  # nothing is computed
            back = {i: j for j, i in own.items()}
            self.place[t] = number, {key: back[i] for key, i in index.items()}
            return
        if neutral is not None:
            attrs = (float(f"{attrs[0]:.5g}"),)
        row = [(a.size, roles.get(a), a in shown) for a in index]
        key = t.op, attrs, tuple((u, tuple(sorted(pairs.items()))) for u, pairs in operands), tuple(row), _origin(t)
        if key not in self._known:  # else computed before
            self._known[key] = len(self.vertices)
            self.vertices.append(Vertex(t.op, attrs, operands, row, t))
        self.place[t] = self._known[key], index


def _origin(t: Term) -> Hashable:
    """The key that distinguishes one stored tensor, or part of it, from another."""
    if t.op not in ("input", "state", "constant"):
        return None
    if isinstance(t.source, Tensor):
        return hash(told(t)[0].contiguous().cpu().numpy().tobytes())
    place = tuple((d, f.full, f.start, f.step, f.axis is None) for d, dim in enumerate(t.layout) for f in dim)
    return t.source, place


def _label(v: Vertex, strict: bool) -> Hashable:
    t = v.term
    if t.op == "input":
        return "input", t.source
    if t.op in ("constant", "output"):
        return ("constant", *_contents(t)) if strict and t.op == "constant" else t.op
    numbers = v.op in ("add", "mul", "conv", "pool", "cut", "along", "contract")
    return (v.op, v.attrs) if strict or not numbers else v.op


def _contents(t: Term) -> tuple:
    if not isinstance(t.source, Tensor):
        return ("unknown",)
    x = told(t)[0].double()
    finite = x[x.isfinite()]
    mean, spread = (float(finite.mean()), float(finite.std(correction=0))) if finite.numel() else (0.0, 0.0)
    size = float(finite.abs().max()) if finite.numel() else 0.0
    near = [0.0 if abs(y) < 1e-6 * size else float(f"{y:.3g}") for y in (mean, spread)]
    return int(x.numel()), *near, int(torch.isneginf(x).sum())


@dataclass(eq=False)
class Painted:
    """Colours of a graph's vertices and their indices: equal colours are not distinguished by anything seen so far."""

    vertices: list[int]
    letters: list[list[int]]

    @classmethod
    def forward(cls, graph: Graph, colours: Colours, strict: bool, before: Painted | None = None) -> Painted:
        """Colours by everything that a vertex is computed from."""
        found = cls([], [])
        for n, v in enumerate(graph.vertices):
            own = None if before is None else before.vertices[n]
            entries: list[list] = [[] for _ in v.letters]
            keys = []
            for k, (u, pairs) in enumerate(v.operands):
                key = (-1 if v.op in COMMUTATIVE else k, found.vertices[u])
                keys.append(key)
                for j, i in pairs.items():
                    entries[i].append((key, found.letters[u][j]))
            letters = [
                _number(colours, (*letter, tuple(sorted(entry)), before and before.letters[n][i]))
                for i, (letter, entry) in enumerate(zip(v.letters, entries))
            ]
            colour = _number(colours, (_label(v, strict), tuple(sorted(keys)), tuple(sorted(letters)), own))
            found.vertices.append(colour)
            found.letters.append([_number(colours, (colour, letter)) for letter in letters])
        return found

    def backward(self, graph: Graph, colours: Colours) -> Painted:
        """Colours that also reflect everything that a vertex is used for."""
        count = len(graph.vertices)
        found = Painted([0] * count, [[] for _ in range(count)])
        for n in range(count - 1, -1, -1):
            v = graph.vertices[n]
            uses, entries = [], [[] for _ in v.letters]  # type: list, list[list]
            for user, k in v.users:
                reader = graph.vertices[user]
                key = (-1 if reader.op in COMMUTATIVE else k, found.vertices[user])
                uses.append(key)
                for j, i in reader.operands[k][1].items():
                    entries[j].append((key, found.letters[user][i]))
            top = v.attrs if v.op == "output" else ()
            found.vertices[n] = colour = _number(colours, (self.vertices[n], tuple(sorted(uses)), top))
            found.letters[n] = [
                _number(colours, (colour, old, tuple(sorted(entry)))) for old, entry in zip(self.letters[n], entries)
            ]
        return found

    def cells(self, graph: Graph) -> list[tuple[int, int, int | None]]:
        """Colours of the stored tensors that are read, with their numbers, and of their indices."""
        states = [n for n in graph.live if graph.vertices[n].op == "state"]
        indices = [(c, n, i) for n in states for i, c in enumerate(self.letters[n])]
        return [*((self.vertices[n], n, None) for n in states), *indices]

    def marked(self, colour: int, vertex: int, letter: int | None) -> Painted:
        """The colouring with a new colour for one vertex or index."""
        vertices, letters = [*self.vertices], [[*x] for x in self.letters]
        if letter is None:
            vertices[vertex] = colour
        else:
            letters[vertex][letter] = colour
        return Painted(vertices, letters)


def _number(colours: Colours, key: Hashable) -> int:
    return colours.setdefault(key, len(colours))


def _described(graph: Graph, n: int) -> str:
    """An operation with its module and line."""
    v = graph.vertices[n]
    module, line = v.term.where
    name = str(v.attrs[0]) if v.op in ("map", "other", "along", "reduce", "pool") and v.attrs else v.op
    if v.op in ("add", "mul") and len(v.operands) == 1:
        name = f"{v.op} {v.attrs[0]:g}"
    if v.op == "state":
        name = f"{v.term.source} {tuple(size for size, *_ in v.letters)}"
    read = [graph.vertices[u].term.source for u, _ in v.operands if graph.vertices[u].op == "state"]
    if v.op in COMMUTATIVE and read:
        name += f" of {' and '.join(map(str, read))}"
    if v.op == "conv":
        name = f"conv with stride {v.attrs[0]}, padding {v.attrs[1]}, dilation {v.attrs[2]}"
    return " ".join(x for x in (name, f"in {module}" if module else "", f"({line})" if line else "") if x)


@dataclass(eq=False)
class Pairing:
    """A pairing of the vertices of two graphs, and of the indices of their stored tensors."""

    a: Graph
    b: Graph
    vertices: dict[int, int]
    letters: dict[int, dict[int, int]]


def pairing(a: Graph, b: Graph, strict: bool = True) -> Pairing | None:
    """The pairing of two graphs with the same outputs, or ``None``."""
    painted = _told_apart((a, b), (None, None), {}, strict)
    if painted is None:
        return None
    ours, theirs = painted
    first, second = (sorted(g.live, key=p.vertices.__getitem__) for g, p in zip((a, b), painted))
    vertices = dict(zip(first, second))
    places = {n: {c: i for i, c in enumerate(theirs.letters[m])} for n, m in vertices.items()}
    letters = {n: {i: places[n][c] for i, c in enumerate(ours.letters[n]) if c in places[n]} for n in vertices}
    return Pairing(a, b, vertices, letters)


def _told_apart(
    graphs: tuple[Graph, Graph], painted: Sequence[Painted | None], colours: Colours, strict: bool
) -> list[Painted] | None:
    """Stable colours that distinguish all stored tensors, and all indices of each of them.

    If some share a colour, one of each graph gets its own colour; choices that lead nowhere are undone.
    """
    count = 0
    while True:
        painted = found = [Painted.forward(g, colours, strict, p).backward(g, colours) for g, p in zip(graphs, painted)]
        ours, theirs = (sorted(p.vertices[n] for n in g.live) for g, p in zip(graphs, found))
        if ours != theirs:
            return None
        before, count = count, len(set(found[0].vertices)) + sum(len(set(x)) for x in found[0].letters)
        if count == before:
            break
    cells, others = (p.cells(g) for g, p in zip(graphs, found))
    alike = Counter(colour for colour, *_ in cells)
    tie = next((cell for cell in cells if alike[cell[0]] > 1), None)
    if tie is None:
        return found
    own = _number(colours, ("own", len(colours)))
    choices = ([found[0].marked(own, *tie[1:]), found[1].marked(own, *o[1:])] for o in others if o[0] == tie[0])
    return next((made for some in choices if (made := _told_apart(graphs, some, colours, strict))), None)


def inside(a: Graph, views: dict[int, View], whole: Sequence[View]) -> list[tuple[int, View]] | None:
    """Values, by number, of a program with ``whole`` outputs that are computed like those of ``a``, the last first."""
    b = Graph.of([*whole, *views.values()])
    colours: Colours = {}
    ours, theirs = (Painted.forward(g, colours, True) for g in (a, b))
    by_colour = {theirs.vertices[n]: number for number, n in zip(views, b.outputs[len(whole) :])}
    found = [by_colour.get(ours.vertices[n]) for n in a.outputs]
    return None if None in found else [(number, views[number]) for number in found if number is not None]


def parting(a: Graph, b: Graph) -> tuple[str, str]:
    """The first operation of ``a`` that ``b`` lacks although it has those before it, and the nearest one of ``b``."""
    colours: Colours = {}
    ours, theirs = (Painted.forward(g, colours, True) for g in (a, b))
    here, there = set(ours.vertices), {c: n for n, c in reversed(list(enumerate(theirs.vertices)))}
    other = [n for n, c in enumerate(ours.vertices) if c not in there and a.vertices[n].users]
    first = next((n for n in other if a.vertices[n].operands), next(iter(other), None))
    nearest = None
    if first is not None:
        read = {there.get(ours.vertices[u]) for u, _ in a.vertices[first].operands} - {None}
        near = [m for u in read for m, _ in b.vertices[u].users if theirs.vertices[m] not in here]  # type: ignore[index]
        nearest = min(near, default=None)
    if nearest is None:
        nearest = next((n for n, c in enumerate(theirs.vertices) if c not in here and b.vertices[n].users), None)
    say = lambda graph, n: NOTHING if n is None else _described(graph, n)
    return say(a, first), say(b, nearest)
