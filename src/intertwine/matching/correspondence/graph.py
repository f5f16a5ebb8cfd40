"""Graphs of terms: sums and products flattened, nothing left that no output reads; and their colours."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .axes import leaves
from .terms import Factor, Term, View, ordered

COMMUTATIVE = {"add", "mul", "contract"}
Colours: TypeAlias = dict[Hashable, int]
"""Numbers of colours, given in the order in which they are met; shared by all graphs that are compared."""


@dataclass(eq=False)
class Vertex:
    """A term whose indices are numbered.

    Attributes:
        op: Kind of operation.
        attrs: Its settings.
        operands: Vertices that it reads, each with the reader's index by the operand's.
        letters: Size, role and whether the result has it, for each index.
        term: The term.
        users: Vertices that read it, with the place among their operands.
    """

    op: str
    attrs: tuple
    operands: list[tuple[int, dict[int, int]]]
    letters: list[tuple[int, Any, bool]]
    term: Term
    users: list[tuple[int, int]] = field(default_factory=list)
    shared: bool = False  # whether it stands for several terms


@dataclass(eq=False)
class Graph:
    """Vertices, each behind those that it reads; the outputs are vertices, too.

    Attributes:
        vertices: The vertices.
        outputs: Numbers of those that stand for outputs.
        place: Number of a term's vertex and its indices by the id of the axis, by the id of the term.
    """

    vertices: list[Vertex]
    outputs: list[int]
    place: dict[int, tuple[int, dict[int, int]]]
    _known: dict[Hashable, int] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Sequence[View], beside: Sequence[View] = ()) -> Graph:
        """The graph of what some views need; those ``beside`` are outputs that nobody reads."""
        graph = cls([], [], {})
        uses: dict[int, int] = {}
        order = ordered([view.term for view in (*outputs, *beside)])
        for t in order:
            for operand in t.operands:
                uses[id(operand.term)] = uses.get(id(operand.term), 0) + 1
        for view in outputs:
            uses[id(view.term)] = uses.get(id(view.term), 0) + 1
        for t in order:
            graph._add(t, uses)
        for k, view in enumerate((*outputs, *beside)):
            number, letters = graph.place[id(view.term)]
            axes = [(letters[id(a)], d, i) for d, dim in enumerate(view.dims) for i, a in enumerate(leaves(dim))
                    if id(a) in letters]  # fmt: skip
            sizes = graph.vertices[number].letters
            read = number, {j: i for i, (j, _, _) in enumerate(axes)}
            roles = [(sizes[j][0], (d, i), True) for j, d, i in axes]
            graph.outputs.append(len(graph.vertices))
            graph.vertices.append(Vertex("output", (k,), [read], roles, Term("output", where=view.term.where)))
        for number in graph._live():
            for k, (u, _) in enumerate(graph.vertices[number].operands):
                graph.vertices[u].users.append((number, k))
        return graph

    def _live(self) -> list[int]:
        seen, todo = set(self.outputs), list(self.outputs)
        while todo:
            for u, _ in self.vertices[todo.pop()].operands:
                if u not in seen:
                    seen.add(u)
                    todo.append(u)
        return sorted(seen)

    def _add(self, t: Term, uses: dict[int, int]) -> None:
        axes = leaves([*t.out, *(b for o in t.operands for _, b in o.pairs), *(a for a, _ in t.roles)])
        index: dict[int, int] = {}
        for axis in axes:
            index.setdefault(id(axis), len(index))
        roles: dict[int, Any] = {id(leaf): role for axis, role in t.roles for leaf in axis.leaves()}
        if t.op == "input":
            roles = {id(leaf): (d, k) for d, dim in enumerate(t.layout) for f in dim if f.axis is not None
                     for k, leaf in enumerate(f.axis.leaves())}  # fmt: skip
        shown = {id(a) for a in leaves(t.out)}
        letters: dict[int, tuple[int, Any, bool]] = {}
        for axis in axes:
            letters[index[id(axis)]] = axis.size, roles.get(id(axis)), id(axis) in shown
        operands, attrs = [], t.attrs
        for operand in t.operands:
            if t.op in ("add", "mul") and (c := operand.term.number) is not None and len(t.operands) > 1:
                attrs = (attrs[0] + c if t.op == "add" else attrs[0] * c,)
                continue
            number, known = self.place[id(operand.term)]
            own = {known[id(a)]: index[id(b)] for a, b in operand.flat() if id(a) in known}
            inner = self.vertices[number]
            alone = (
                uses.get(id(operand.term), 0) == 1 and not inner.shared and inner.op == t.op and t.op in ("add", "mul")
            )
            if alone and len(own) == len(inner.letters):
                attrs = (attrs[0] + inner.attrs[0] if t.op == "add" else attrs[0] * inner.attrs[0],)
                operands += [(u, {i: own[j] for i, j in pairs.items()}) for u, pairs in inner.operands]
            else:
                operands.append((number, own))
        neutral = {"add": 0.0, "mul": 1.0}.get(t.op)
        if attrs and attrs[0] == neutral and len(operands) == 1 and len(operands[0][1]) == len(index):
            number, own = operands[0]  # nothing is done
            back = {i: j for j, i in own.items()}
            self.place[id(t)] = number, {key: back[i] for key, i in index.items()}
            if uses.get(id(t.operands[0].term), 0) > 1:
                uses[id(t)] = 2
            return
        if neutral is not None:
            attrs = (float(f"{attrs[0]:.5g}"),)
        row = [letters[i] for i in range(len(index))]
        key = t.op, attrs, tuple((u, tuple(sorted(pairs.items()))) for u, pairs in operands), tuple(row), _origin(t)
        if key in self._known:  # computed before
            self.place[id(t)] = self._known[key], index
            self.vertices[self._known[key]].shared = True
            return
        self._known[key] = len(self.vertices)
        self.place[id(t)] = len(self.vertices), index
        self.vertices.append(Vertex(t.op, attrs, operands, row, t))


def _origin(t: Term) -> Hashable:
    """What tells one stored tensor, or part of it, from another."""
    if not t.layout:
        return None
    if t.op == "constant" and isinstance(t.source, Tensor) and not t.source.is_meta:
        return hash(held(t.layout, t.source).contiguous().cpu().numpy().tobytes())
    place = tuple((d, f.full, f.start, f.step, f.axis is None) for d, dim in enumerate(t.layout) for f in dim)
    return (_contents(t) if isinstance(t.source, Tensor) else t.source), place


def held(layout: Sequence[Sequence[Factor]], tensor: Tensor) -> Tensor:
    """The part of a stored tensor that a leaf reads, a dimension for each factor that is not one entry."""
    factors = [f for dim in layout for f in dim]
    spread = tensor.reshape([f.full for f in factors])
    return spread[tuple(f.start if f.axis is None else slice(f.start, f.start + f.step * f.axis.size, f.step)
                        for f in factors)]  # fmt: skip


def _label(v: Vertex, strict: bool) -> Hashable:
    t = v.term
    if t.op == "input":
        return "input", t.source
    if t.op in ("constant", "output"):
        return ("constant", *_contents(t)) if strict and t.op == "constant" else t.op
    numbers = v.op in ("add", "mul", "conv", "pool", "cut", "along", "contract")
    return (v.op, v.attrs) if strict or not numbers else v.op


def _contents(t: Term) -> tuple:
    if not isinstance(t.source, Tensor) or t.source.is_meta:
        return ("unknown",)
    x = held(t.layout, t.source).double()
    finite = x[x.isfinite()]
    mean, spread = (float(finite.mean()), float(finite.std(correction=0))) if finite.numel() else (0.0, 0.0)
    size = float(finite.abs().max()) if finite.numel() else 0.0
    near = [0.0 if abs(y) < 1e-6 * size else float(f"{y:.3g}") for y in (mean, spread)]
    return int(x.numel()), *near, int(torch.isneginf(x).sum())


@dataclass(eq=False)
class Painted:
    """Colours of a graph's vertices and of their indices: equal ones are not told apart by what was looked at."""

    vertices: list[int]
    letters: list[list[int]]

    @classmethod
    def forward(cls, graph: Graph, colours: Colours, strict: bool, before: Painted | None = None) -> Painted:
        """Colours by all that a vertex is computed from."""
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
        """Colours by all that a vertex is used for, too."""
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


def _number(colours: Colours, key: Hashable) -> int:
    return colours.setdefault(key, len(colours))
