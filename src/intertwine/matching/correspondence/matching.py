"""Matching of two graphs of terms: by colours from both ends, then step by step from the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph import COMMUTATIVE, Colours, Graph, Painted
from .terms import View

NOTHING = "nothing like it"
_ROUNDS = 4
_TRIES = 10_000  # choices between equal colours that are taken back


@dataclass(eq=False)
class Parting:
    """The first operation of one graph that the other has not, and the nearest one there, in words."""

    ours: str
    theirs: str


def described(graph: Graph, n: int) -> str:
    """An operation with its module and line."""
    v = graph.vertices[n]
    module, line = v.term.where
    name = str(v.attrs[0]) if v.op in ("map", "other", "along", "reduce", "pool") and v.attrs else v.op
    if v.op in ("add", "mul") and len(v.operands) == 1:
        name = f"{v.op} {v.attrs[0]:g}"
    if v.op == "state":
        name = f"{v.term.source} {tuple(size for size, *_ in v.letters)}"
    if v.op == "conv":
        name = f"conv with stride {v.attrs[0]}, padding {v.attrs[1]}, dilation {v.attrs[2]}"
    return " ".join(x for x in (name, f"in {module}" if module else "", f"({line})" if line else "") if x)


@dataclass(eq=False)
class Pairing:
    """Which vertex of one graph is which of the other, and which index."""

    a: Graph
    b: Graph
    vertices: dict[int, int]
    letters: dict[int, dict[int, int]]


def pairing(a: Graph, b: Graph, strict: bool = True) -> Pairing | None:
    """The pairing of two graphs with the same outputs, or ``None``."""
    colours: Colours = {}
    painted: list[Painted | None] = [None, None]
    count = 0
    for _ in range(_ROUNDS):
        painted = [Painted.forward(g, colours, strict, p).backward(g, colours) for g, p in zip((a, b), painted)]
        ours, theirs = (p for p in painted if p is not None)
        tops = [[p.vertices[n] for n in g.outputs] for g, p in ((a, ours), (b, theirs))]
        if tops[0] != tops[1]:
            return None
        now = len(set(ours.vertices)) + sum(len(set(x)) for x in ours.letters)
        if now == count:
            break
        count = now
    vertices = _descend(a, b, ours, theirs)
    return None if vertices is None else Pairing(a, b, vertices, _letters(a, b, ours, theirs, vertices))


def _descend(a: Graph, b: Graph, ours: Painted, theirs: Painted) -> dict[int, int] | None:
    """Pair operands of paired vertices; where several have one colour, choose, and take back what leads nowhere."""
    mapped: dict[int, int] = {}
    taken: dict[int, int] = {}
    todo = [([n], [m]) for n, m in zip(a.outputs, b.outputs)]
    trail: list[tuple[dict[int, int], dict[int, int], list, list[int], list[int], int]] = []
    tries = 0
    while todo:
        left, right = todo.pop()
        start = 0
        while True:
            made = _paired(left, right, start, mapped, taken, ours, theirs)
            if made is not None:
                break
            tries += 1
            if not trail or tries > _TRIES:
                return None
            mapped, taken, todo, left, right, start = trail.pop()
        n, m, k = made
        ties = sum(theirs.vertices[x] == theirs.vertices[m] and x not in taken for x in right) - 1
        if ties > 0 and n not in mapped and len(trail) < _TRIES:
            trail.append((dict(mapped), dict(taken), list(todo), left, right, k + 1))
        rest = [x for i, x in enumerate(right) if i != k]
        if left[1:]:
            todo.append((left[1:], rest))
        if mapped.get(n) == m:
            continue
        mapped[n], taken[m] = m, n
        one, other = ([u for u, _ in g.vertices[x].operands] for g, x in ((a, n), (b, m)))
        if a.vertices[n].op in COMMUTATIVE:
            todo.append((one, other)) if one else None
        else:
            todo += [([u], [w]) for u, w in zip(one, other)]
    return mapped


def _paired(
    left: Sequence[int], right: Sequence[int], start: int, mapped: dict[int, int], taken: dict[int, int],
    ours: Painted, theirs: Painted,
) -> tuple[int, int, int] | None:  # fmt: skip
    """The first of ``left``, its partner among ``right`` and the partner's place."""
    n = left[0]
    if n in mapped:
        place = next((k for k, m in enumerate(right) if m == mapped[n] and k >= start), None)
        return None if place is None else (n, mapped[n], place)
    for k in range(start, len(right)):
        m = right[k]
        if m not in taken and ours.vertices[n] == theirs.vertices[m]:
            return n, m, k
    return None


def _letters(a: Graph, b: Graph, ours: Painted, theirs: Painted, vertices: dict[int, int]) -> dict[int, dict[int, int]]:
    """Indices of paired vertices: those that come from operands first, then by colour, stored tensors by readers."""
    found: dict[int, dict[int, int]] = {n: {} for n in vertices}
    for n in sorted(vertices):
        v, w = a.vertices[n], b.vertices[vertices[n]]
        if v.term.layout and v.op != "input":
            continue
        own = found[n]
        partner = _partners(v.operands, w.operands, vertices)
        for (u, pairs), others in partner:
            for j, i in pairs.items():
                if j in found[u] and found[u][j] in others and i not in own and others[found[u][j]] not in own.values():
                    own[i] = others[found[u][j]]
        _by_colour(own, ours.letters[n], theirs.letters[vertices[n]])
        for (u, pairs), others in partner:
            if a.vertices[u].term.layout:
                back = {i: j for j, i in others.items()}
                for j, i in pairs.items():
                    if i in own and own[i] in back:
                        found[u].setdefault(j, back[own[i]])
    for n in vertices:
        _by_colour(found[n], ours.letters[n], theirs.letters[vertices[n]])
    return found


def _partners(one: list, other: list, vertices: dict[int, int]) -> list[tuple[tuple[int, dict], dict]]:
    found, rest = [], list(other)
    for u, pairs in one:
        k = next((k for k, (w, x) in enumerate(rest) if w == vertices.get(u) and len(x) == len(pairs)), None)
        if k is not None:
            found.append(((u, pairs), rest.pop(k)[1]))
    return found


def _by_colour(own: dict[int, int], ours: list[int], theirs: list[int]) -> None:
    for i, colour in enumerate(ours):
        if i not in own:
            k = next((k for k, c in enumerate(theirs) if c == colour and k not in own.values()), None)
            if k is not None:
                own[i] = k


def inside(a: Graph, views: dict[int, View], whole: Sequence[View]) -> list[tuple[int, View]] | None:
    """Values of another program that are computed as the outputs of ``a`` are, the last ones first.

    Args:
        a: The graph.
        views: Values of the other program by number.
        whole: Outputs of the other program.
    """
    numbers = list(views)
    b = Graph.of(whole, [views[number] for number in numbers])
    colours: Colours = {}
    ours, theirs = (Painted.forward(g, colours, True) for g in (a, b))
    tops = zip(numbers, b.outputs[len(whole) :])
    by_colour = {theirs.vertices[n]: number for number, n in tops}
    found = [by_colour.get(ours.vertices[n]) for n in a.outputs]
    return None if None in found else [(number, views[number]) for number in found if number is not None]


def parting(a: Graph, b: Graph) -> Parting:
    """Where two graphs part: the first operation of ``a`` whose operands ``b`` has and that it has not."""
    colours: Colours = {}
    ours, theirs = (Painted.forward(g, colours, True) for g in (a, b))
    here, there = set(ours.vertices), {c: n for n, c in reversed(list(enumerate(theirs.vertices)))}
    first = next((n for n, c in enumerate(ours.vertices) if c not in there and a.vertices[n].users), None)
    nearest = None
    if first is not None:
        read = {there.get(ours.vertices[u]) for u, _ in a.vertices[first].operands} - {None}
        near = [m for u in read for m, _ in b.vertices[u].users if theirs.vertices[m] not in here]  # type: ignore[index]
        nearest = min(near, default=None)
    if nearest is None:
        nearest = next((n for n, c in enumerate(theirs.vertices) if c not in here and b.vertices[n].users), None)
    say = lambda graph, n: NOTHING if n is None else described(graph, n)
    return Parting(say(a, first), say(b, nearest))
