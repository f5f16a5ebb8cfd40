"""Public description of what the engine found: spaces, fixed axes, and layouts (how axes are composed of spaces)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from ..._nested import by_key
from ...groups import GeneralLinear, Monomial, Orthogonal, Representation, Semidirect, SpaceGroup
from ...programs import Ref, Vertex, Wire, graph
from ...programs.operations import MAX_POOLS, gate_names, is_gate
from .. import spaces as public
from ..symmetry import Symmetry
from .axis_terms import Axis, Flat, Ordered, Segments, Slot, Value, inverse, slots
from .engine import Engine
from .parents import always_siblings, beside, demands, dependences, fix_unseen
from .rules.unit_indices import origins
from .unification import spans

_ZERO = Fraction(0)
_Ranges = tuple[tuple[int, int], ...]


@dataclass
class Candidate:
    """One space after the last pass."""

    name: str  # From the first parameter axis that carries it
    size: int  # Number of units
    unknowns: list[int] = field(default_factory=list)  # Its unknowns: (tensor, axis, place) to variable
    # Basis of positive scales, each mapping variables to exponents
    scales: list[dict[int, Fraction]] = field(default_factory=list)
    signs: list[set[int]] = field(default_factory=list)  # Basis of signs, each a set of variables
    linear: Literal["none", "turns", "orthogonal", "general"] = "none"  # Which linear maps pass
    why: str = ""  # Why it is not permuted; empty if it is
    variance: dict[int, int] = field(default_factory=dict)  # Variable to +1 or -1, for linear spaces

    @property
    def moves(self) -> bool:
        """Whether any element other than the identity acts on it."""
        return self.size > 1 and (not self.why or bool(self.scales or self.signs) or self.linear != "none")


def describe(engine: Engine) -> Symmetry:
    """The symmetry that an engine found."""
    program = engine.program
    states = _moving_states(engine)
    leaves = _leaves(engine, states)
    rank = {space: i for i, space in enumerate(leaves)}
    merged = _merge_siblings(engine, leaves, rank)
    still = {space for space, leaf in leaves.items() if not leaf.moves}
    vague = [v for v in engine.values.values() if v.loose]
    unsaid = {engine.pool.find(slot.space) for value in vague for axis in value.axes for slot in slots(axis)}
    # the spaces whose units keep their places, and whose scaling every tensor determines
    held = {space for space in rank if engine.pool.node(space).pinned} - unsaid
    parents = dependences(_tensors(engine), engine.mixed, rank, engine.beside, held, still)
    _settle(engine, leaves, parents)
    # a space held in place serves only as a parent, if its units distinguish copies
    carried = {s for s, leaf in leaves.items() if leaf.moves and s not in merged}
    carried |= {p for s in list(carried) for p in parents.get(s, ()) if p not in merged}
    writer, silent = (Writer(engine, leaves, merged, carried) for _ in range(2))
    layouts = {name: writer.layout(name, value, program.states[name]) for name, value in states.items()}
    calls = [c for c in program.calls if is_gate(c) and c.inputs[0].id in program.varying]
    hidden = {*MAX_POOLS, "aten::abs"}  # ``|q|`` hides the signs on which its gates depend
    relus = {n: c.outputs[0] for n, c in zip(gate_names(calls), calls) if c.outputs[0] and c.op not in hidden}
    features, gates = (dict(_features(engine, silent, refs)) for refs in (program.taps, relus))
    described = []
    for space, leaf in leaves.items():
        if space in carried:
            size = leaf.size + sum(leaves[s].size for s, into in merged.items() if into == space)
            above = tuple(leaves[p].name for p in parents.get(space, ()) if p in carried)
            found = _restrictions(engine, space, leaf)
            described.append(public.Space(leaf.name, _group(leaf, size), above, tuple(map(str, found)), found))
    # A norm of a single channel, along which nothing moves, has no layout and nothing to keep.
    norms = tuple(norm for norm in engine.batch_norms if norm.variance in layouts)
    return Symmetry(
        tuple(described), layouts, tuple(writer.fixed), norms, dict(program.aliases), program.dtype,
        bool(program.reads), program.notes, tuple(engine.unknown_ops), program.caches,
        features, gates, _graph(engine, silent, layouts),
    )  # fmt: skip


def _features(engine: Engine, writer: Writer, refs: Mapping[str, Ref]) -> Iterator[tuple[str, public.Layout]]:
    """Layouts of hidden features that move; features that a pass knows only in part are left out."""
    for tap, ref in refs.items():
        value = engine.values.get(ref.id)
        if value is None or value.square or value.factors or value.names or value.via or value.loose:
            continue
        try:
            layout = writer.layout(tap, engine.value(ref), ref)
        except UnknownBasisError:
            continue
        if layout.spaces:
            yield tap, layout


def _graph(engine: Engine, writer: Writer, layouts: Mapping[str, public.Layout]) -> tuple[Vertex, ...]:
    """The graph of the program, each wire with the spaces that move its tensor.

    If a pass knows these only in part, they are those of the weight that reads the tensor, without its outputs' spaces.
    """
    found = graph(engine.program)
    refs = {str(wire.value): Ref(wire.value) for vertex in found for wire in vertex.inputs}
    known = {name: public.spaces_of(layout.axes) for name, layout in _features(engine, writer, refs)}
    returned: dict[int, set[str]] = {}
    for vertex in found:
        for wire in vertex.inputs:
            returned.setdefault(wire.source, set()).update(known.get(str(wire.value), ()))

    def spaces(k: int, vertex: Vertex, wire: Wire) -> tuple[str, ...]:
        if str(wire.value) in known or vertex.inner:
            return known.get(str(wire.value), ())
        read = [space for name in vertex.tensors if name in layouts for space in public.spaces_of(layouts[name].axes)]
        return tuple(dict.fromkeys(space for space in read if space not in returned.get(k, ())))

    return tuple(
        replace(v, inputs=tuple(replace(wire, spaces=spaces(k, v, wire)) for wire in v.inputs))
        for k, v in enumerate(found)
    )


def _group(leaf: Candidate, size: int) -> SpaceGroup:
    """The group of a space; for a mixed space, with the one way in which scales and signs follow the matrices."""
    monomial = Monomial(size, len(leaf.scales), len(leaf.signs), permutes=not leaf.why)
    if leaf.linear == "none":
        return monomial
    charges = {
        Representation(
            scale=tuple(basis.get(v, Fraction(0)) * variance for basis in leaf.scales),
            sign=tuple(int(v in basis) for basis in leaf.signs),
        )
        for v, variance in leaf.variance.items()
        if variance
    }
    bent = Orthogonal(size, special=leaf.linear == "turns")
    linear = GeneralLinear(size) if leaf.linear == "general" else bent
    return Semidirect(linear, monomial, charges.pop() if len(charges) == 1 else None)


def _settle(engine: Engine, leaves: dict[int, Candidate], parents: dict[int, list[int]]) -> None:
    """Remove linear maps from spaces whose units each hold their own bases or scales: together these form no group."""
    for space, above in parents.items():
        if not leaves[space].moves:
            continue
        rich = leaves[space].linear != "none" or bool(leaves[space].scales)
        for parent in [p for p in above if leaves[p].linear != "none"]:
            if rich:
                leaves[parent].linear = "none"
                leaves[parent].variance.clear()
                why = f"every unit has its own {leaves[space].name}"
                engine.pool.restrict((Slot(parent, leaves[parent].size),), "monomial", why)
            else:
                above.remove(parent)
    open_ended = lambda above: [p for p in above if not set(parents.get(p, ())) <= set(above)]
    while lost := [(above, p) for above in parents.values() for p in open_ended(above)]:
        for above, parent in lost:  # whose own parents were dropped
            above.remove(parent)


def _moving_states(engine: Engine) -> dict[str, Value]:
    """Parameters and moving buffers as the last pass knew them; what it does not read, or zeroes, is fixed."""
    asked = demands(engine)
    states = {name: ref for name, ref in engine.program.states.items() if engine.moves(ref)}
    for name, ref in states.items():
        wanted, idle = asked.get(ref.id, (set(), set()))
        for axis in engine.state(name).axes:
            engine.fix_all(((slot,) for slot in slots(axis) if slot.space not in wanted), public.UNREAD)
        for axis in engine.state(name).axes if idle - wanted else ():
            engine.fix_all(((slot,) for slot in beside(axis, idle - wanted)), "multiplied by zeros in this run")
    fix_unseen(engine, [name for name, ref in states.items() if ref.id not in asked])
    return {name: engine.state(name) for name in states}


def labelled(states: Mapping[str, Value]) -> Iterator[tuple[str, Slot]]:
    """Every space that parameters carry, named after the first axis that carries it."""
    seen: set[int] = set()
    for name, value in states.items():
        for dim, axis in enumerate(value.axes):
            for place, slot in _placed(axis):
                if slot.space not in seen:
                    seen.add(slot.space)
                    yield f"{name}[{dim}]{place}", slot


def _leaves(engine: Engine, states: dict[str, Value]) -> dict[int, Candidate]:
    """Every space that parameters carry, in the order of the state dict."""
    leaves = {slot.space: Candidate(label, slot.size) for label, slot in labelled(states)}
    owner = {}
    for v, (_, _, space) in enumerate(engine.system.unknowns):
        owner[v] = engine.pool.find(space)
        leaves[owner[v]].unknowns.append(v)
    for scales in engine.system.log.solutions(owner):
        if len(spaces := {owner[v] for v in scales}) == 1:
            leaves[spaces.pop()].scales.append(scales)
    for signs in engine.system.sign.solutions(owner):
        if len(spaces := {owner[v] for v in signs}) == 1:
            leaves[spaces.pop()].signs.append(signs)
    contradictory = {engine.system.root(v)[0] for v in engine.system.contradictory}
    for space, leaf in leaves.items():
        node = engine.pool.node(space)
        leaf.why = node.pinned
        if (node.pinned and not node.why("turned")) or node.why("monomial") or leaf.size < 2:
            continue
        roots = [engine.system.root(v) for v in leaf.unknowns]
        bent = bool(node.why("orthogonal") or node.why("turned")) or any(root in contradictory for root, _ in roots)
        leaf.linear = "turns" if node.why("turned") else "orthogonal" if bent else "general"
        first: dict[int, int] = {}
        for v, (root, parity) in zip(leaf.unknowns, roots):
            leaf.variance[v] = 1 if bent else parity * first.setdefault(root, parity)
    return leaves


def _placed(axis: Axis, place: str = "") -> Iterator[tuple[str, Slot]]:
    """Every slot of an axis with its place: ``.1`` for the second factor or segment, empty if there is only one."""
    alone = len(axis) == 1
    for i, factor in enumerate(axis):
        here = place if alone else f"{place}.{i}"
        if isinstance(factor, Slot):
            yield here, factor
        elif isinstance(factor, Segments):
            for k, part in enumerate(factor.parts):
                yield from _placed(part, f"{here}.{k}" if len(factor.parts) > 1 else here)


def _tensors(engine: Engine) -> Iterator[tuple[Axis, ...]]:
    """Axes of every tensor of the run."""
    for value in engine.values.values():
        axes = tuple(engine.pool.resolve(a) for a in value.axes)
        yield (*axes, *origins(engine, axes, value.via))
    for axes in engine.met:
        yield tuple(engine.pool.resolve(a) for a in axes)


def _merge_siblings(engine: Engine, leaves: dict[int, Candidate], rank: dict[int, int]) -> dict[int, int]:
    """Spaces to describe as part of another one: always siblings of it, and alike in every exponent."""
    merged: dict[int, int] = {}
    for group in always_siblings(_tensors(engine)):
        kept: list[int] = []
        for space in sorted(rank.keys() & set(group), key=rank.__getitem__):
            node = engine.pool.node(space)
            if node.apart or node.pinned or not node.why("monomial"):
                continue
            twin = next((k for k in kept if _alike(engine, leaves[k], leaves[space])), None)
            if twin is None:
                kept.append(space)
            else:
                merged[space] = twin
    return merged


def _alike(engine: Engine, a: Candidate, b: Candidate) -> bool:
    """Whether the exponents of two sibling spaces correspond one to one."""
    where = lambda v: engine.system.unknowns[v][:2]
    log = lambda leaf: [[basis.get(v, 0) for v in leaf.unknowns] for basis in leaf.scales]
    sign = lambda leaf: [[v in basis for v in leaf.unknowns] for basis in leaf.signs]
    return log(a) == log(b) and sign(a) == sign(b) and [where(v) for v in a.unknowns] == [where(v) for v in b.unknowns]


def _restrictions(engine: Engine, space: int, leaf: Candidate) -> tuple[public.Restriction, ...]:
    """The restrictions of a space; each cause is named once."""
    node = engine.pool.node(space)
    lost = (
        ("no permutations", node.pinned),
        ("no linear maps", node.why("monomial")),
        ("only orthogonal maps", node.why("orthogonal") if leaf.linear == "orthogonal" else ""),
        ("only turns", node.why("turned") if leaf.linear == "turns" else ""),
        ("fewer scales" if leaf.scales else "no scales", node.why("scale")),
        ("fewer signs" if leaf.signs else "no signs", node.why("sign")),
    )
    causes = by_key((why, what) for what, why in lost if why).items()
    kind = lambda why: why.kind if isinstance(why, public.Cause) else ""
    return tuple(public.Restriction(tuple(what), str(why), kind(why)) for why, what in causes)


class UnknownBasisError(Exception):
    """An axis that carries a mixed space without saying how its matrices act."""


class Writer:
    """Writer of layouts, which notes what is fixed."""

    def __init__(self, engine: Engine, leaves: dict[int, Candidate], merged: dict[int, int], carried: set[int]) -> None:
        self.fixed: list[public.FixedAxis] = []
        self._engine, self._leaves, self._merged, self._carried = engine, leaves, merged, carried
        self._order: dict[int | None, int] = {space: i for i, space in enumerate(leaves)}

    def layout(self, name: str, value: Value, ref: Ref) -> public.Layout:
        """The layout of one tensor."""
        shape = self._engine.program.values[ref.id].shape
        whole = enumerate(zip(value.axes, shape, strict=True))
        axes = (self._axis(name, d, axis) if axis else self._fixed(name, d, n, "size 1") for d, (axis, n) in whole)
        return public.Layout(tuple(axes))

    def _axis(self, name: str, dim: int, axis: Axis) -> public.Axis:
        written = [self._factor(name, dim, factor) for factor in axis]
        return written[0] if len(written) == 1 else public.Product(tuple(written))

    def _factor(self, name: str, dim: int, factor: Any) -> public.Axis:
        if isinstance(factor, Slot):
            return self._leaf(name, dim, factor)
        if isinstance(factor, Flat):
            return self._fixed(name, dim, factor.size, "empty")
        pieces: list[tuple[public.Axis, dict[int | None, _Ranges]]] = []  # with the rows of each space merged into one
        places = inverse(factor.order) if isinstance(factor, Ordered) else ()
        for at, end, part in spans(factor.parts):
            axis = self._axis(name, dim, part) if part else self._fixed(name, dim, 1, "size 1")
            rows = tuple((i, i + 1) for i in places[at:end]) or ((at, end),)
            own = next(slots(part)).space if isinstance(axis, public.Leaf) else None
            alike = lambda other, axis=axis: isinstance(axis, public.Leaf) and getattr(other, "space", "") == axis.space
            begun = (ranges for other, ranges in pieces if alike(other) and own not in ranges)
            if (ranges := next(begun, None)) is None:
                pieces.append((axis, ranges := {}))
            ranges[own] = rows
        return public.Sum(tuple(self._part(*piece) for piece in pieces))

    def _leaf(self, name: str, dim: int, slot: Slot) -> public.Axis:
        if slot.space not in self._leaves:
            return self._fixed(name, dim, slot.size, "no parameter carries it")
        space = self._merged.get(slot.space, slot.space)
        leaf = self._leaves[slot.space]
        if not leaf.moves:
            fixed = self._fixed(name, dim, slot.size, leaf.why or "size 1")
            if space not in self._carried:
                return fixed
        elif leaf.why:
            self.fixed.append(public.FixedAxis(name, dim, f"{leaf.why} (scales or signs pass)"))
        log = slot.expr.log.items()
        scale = tuple(sum((c * basis[v] for v, c in log if v in basis), start=_ZERO) for basis in leaf.scales)
        sign = tuple(len(slot.expr.sign & basis) % 2 for basis in leaf.signs)
        variance: Any = 0
        if leaf.linear != "none":
            turn, parity = slot.expr.turn or (-1, 1)
            if turn not in leaf.variance:
                raise UnknownBasisError
            variance = parity * leaf.variance[turn] if leaf.linear == "general" else 1
        return public.Leaf(self._leaves[space].name, slot.size, scale=scale, sign=sign, variance=variance)

    def _part(self, axis: public.Axis, ranges: Mapping[int | None, _Ranges]) -> public.Part:
        """A part of a concatenation, with its rows in the order in which spaces were merged."""
        found = tuple(r for s in sorted(ranges, key=lambda s: self._order.get(s, 0)) for r in ranges[s])
        size = sum(stop - start for start, stop in found)
        return public.Part(found, replace(axis, size=size) if isinstance(axis, public.Leaf) else axis)

    def _fixed(self, name: str, dim: int, size: int, reason: str) -> public.Fixed:
        self.fixed.append(public.FixedAxis(name, dim, reason))
        return public.Fixed(size, reason)
