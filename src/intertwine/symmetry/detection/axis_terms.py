"""Axis terms: the structure of one tensor axis as far as the engine knows it, and the union-find of spaces.

An axis is a row-major product of factors. A factor is a ``Slot`` (it carries a space), ``Segments`` (a concatenation
of axes, ``Ordered`` if its rows are rearranged) or ``Flat`` (the tensor is constant along it). An axis of size one is
the empty product. Spaces split into products and sums, or acquire an order, as operations require.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class Expr:
    """The scaling of an axis, as linear forms in the unknown exponents of the parameters."""

    log: MappingProxyType | dict[int, Fraction]  # The exponent of positive scales: variable to rational coefficient
    sign: frozenset[int]  # The exponent of signs over F2: the set of variables whose coefficient is one
    # For linear spaces: the variable whose variance (with -1: the opposite variance) this axis has
    turn: tuple[int, int] | None = None

    def __add__(self, other: "Expr") -> "Expr":
        log = dict(self.log)
        for v, c in other.log.items():
            log[v] = log.get(v, Fraction(0)) + c
        return Expr(log, self.sign ^ other.sign, self.turn)

    def power(self, degree: Fraction | int, odd: bool) -> "Expr":
        """The expression of ``|x|^degree``, with the sign of ``x`` if ``odd``."""
        if degree == 1 and odd:
            return self
        return Expr({v: degree * c for v, c in self.log.items()} if degree else {}, self.sign if odd else frozenset())


UNIT = Expr(MappingProxyType({}), frozenset())


@dataclass(frozen=True, slots=True)
class Slot:
    """A factor that carries a space."""

    space: int
    size: int
    expr: Expr = UNIT


@dataclass(frozen=True, slots=True)
class Flat:
    """A factor along which the tensor is constant; ``zero`` if it is zero there."""

    size: int
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Segments:
    """A factor that is a concatenation of axes."""

    parts: tuple["Axis", ...]

    @property
    def size(self) -> int:
        """Total length."""
        return sum(axis_size(p) for p in self.parts)


@dataclass(frozen=True, slots=True)
class Ordered(Segments):
    """A factor whose row ``j`` is row ``order[j]`` of a concatenation or an axis: shuffled, reversed, interleaved."""

    order: tuple[int, ...]


Factor = Slot | Flat | Segments
Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class Names:
    """The meaning of an integer tensor that refers to units: its numbers change when the units move."""

    of: Axis  # The axis whose units are referred to
    # ``"units"``: each number is the position of a unit; ``"counts"``: how many rows chose each unit; ``"offsets"``:
    # where the rows that chose each unit end, with rows sorted by unit
    kind: Literal["units", "counts", "offsets"] = "units"
    rows: Axis = ()  # For counts and offsets: the rows in that order
    all: bool = False  # Whether every unit is named exactly once


@dataclass(frozen=True)
class Pick:
    """Rows of a tensor that were each selected from one unit of an axis that the tensor no longer has."""

    label: Hashable  # What chose the units: rows picked by the same numbers come from the same units
    rows: Axis  # The axis of the rows; empty if the whole tensor comes from one unit
    of: Axis  # The axis whose units were picked


@dataclass(frozen=True)
class Value:
    """Axes and properties of one tensor."""

    axes: tuple[Axis, ...]  # Its axes
    zero: bool = False  # Whether it is zero for all parameters and inputs
    square: bool = False  # Whether it is a square that has not been summed yet
    factors: "tuple[Value, Value] | None" = None  # The two tensors whose product it is, until it is summed
    names: Names | None = None  # What its integers stand for; ``None`` if they refer to no units
    via: tuple[Pick, ...] = ()  # Units of other axes that its rows come from
    # Whether only the units of its axes are known, not their scales: a state that starts as zeros
    loose: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(axis_size(a) for a in self.axes)

    def put(self, dim: int, *axes: Axis, via: tuple[Pick, ...] = ()) -> "Value":
        """The tensor with one axis replaced by others, or removed."""
        return Value((*self.axes[:dim], *axes, *self.axes[dim + 1 :]), self.zero, via=via)


def axis_size(axis: Axis) -> int:
    """Length of an axis."""
    return prod(f.size for f in axis)


def flat(size: int, zero: bool = False) -> Axis:
    """An axis along which a tensor is constant."""
    return (Flat(size, zero),) if size != 1 else ()


def slots(axis: Axis) -> Iterator[Slot]:
    """Every slot of an axis, including those in segments."""
    for factor in axis:
        if isinstance(factor, Slot):
            yield factor
        elif isinstance(factor, Segments):
            for part in factor.parts:
                yield from slots(part)


def has_flat(axis: Axis) -> bool:
    """Whether a tensor is constant along some part of an axis, including inside segments."""
    inside = lambda factor: isinstance(factor, Segments) and any(map(has_flat, factor.parts))
    return any(isinstance(factor, Flat) or inside(factor) for factor in axis)


def map_slots(axis: Axis, slot: Callable[[Slot], Slot], keeps_zero: bool = True) -> Axis:
    """``axis`` with every slot replaced; zeros are forgotten unless the operation keeps them."""

    def one(factor: Factor) -> Factor:
        if isinstance(factor, Slot):
            return slot(factor)
        if isinstance(factor, Flat):
            return factor if keeps_zero else Flat(factor.size)
        return replace(factor, parts=tuple(map_slots(p, slot, keeps_zero) for p in factor.parts))

    return tuple(one(f) for f in axis)


def forget_zeros(axis: Axis) -> Axis:
    """``axis`` after an operation that does not keep zero: what was zero is now only known to be constant."""
    return map_slots(axis, lambda s: s, keeps_zero=False)


def bare(axis: Axis) -> Axis:
    """``axis`` without exponents: its units move but do not scale."""
    return map_slots(axis, lambda s: Slot(s.space, s.size))


def concatenated(axis: Axis) -> tuple[Axis, ...]:
    """The axes whose concatenation an axis is; none if it is not a concatenation."""
    whole = axis[0] if len(axis) == 1 else None
    return whole.parts if isinstance(whole, Segments) and not isinstance(whole, Ordered) else ()


def ordered(axis: Axis) -> Ordered | None:
    """The axis as a rearrangement; ``None`` if it is not one."""
    whole = axis[0] if len(axis) == 1 else None
    return whole if isinstance(whole, Ordered) else None


def interleaved(parts: Sequence[Axis]) -> Axis:
    """The interleaved rows of axes of equal length: the first row of each, then the second of each."""
    size = axis_size(parts[0])
    return rearranged(segments([*parts]), [k * size + i for i in range(size) for k in range(len(parts))])


def rearranged(axis: Axis, order: Sequence[int]) -> Axis:
    """The axis whose row ``j`` is row ``order[j]`` of another axis, in its shortest form."""
    parts, source = list[Axis](), list[int]()
    for part in concatenated(axis) or (axis,):
        inner = ordered(part)
        source += [len(source) + k for k in (inner.order if inner else range(axis_size(part)))]
        parts += inner.parts if inner else (part,)
    whole, rows = segments(parts), tuple(source[k] for k in order)
    if rows == tuple(range(len(rows))) or all(isinstance(f, Flat) for f in whole):
        return whole
    if len(whole) > 1 and (factors := transposition(rows)) is not None:
        groups, rest = list[Axis](), whole
        for size in factors[0]:
            count = next((k for k in range(len(rest) + 1) if axis_size(rest[:k]) >= size), 0)
            groups, rest = [*groups, rest[:count]], rest[count:]
        if [axis_size(group) for group in groups] == factors[0]:
            return tuple(f for dim in factors[1] for f in groups[dim])
    return (Ordered(concatenated(whole) or (whole,), rows),)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The inverse of an order."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


@lru_cache(maxsize=4096)
def transposition(order: tuple[int, ...]) -> tuple[list[int], list[int]] | None:
    """Sizes of factors of an axis and their transposition that gives an order of its rows; ``None`` if there is none.

    Examples:
        >>> transposition((0, 3, 1, 4, 2, 5)), transposition((1, 0, 2))
        (([2, 3], [1, 0]), None)
    """
    strides, rows = list[tuple[int, int]](), [*order]  # stride and length of every factor of the new order
    while len(rows) > 1:
        run = next((k for k, row in enumerate(rows) if row != k * rows[1]), len(rows))
        if run < 2 or len(rows) % run:
            return None
        strides, rows = [(rows[1], run), *strides], rows[::run]
    outward = sorted(strides, reverse=True)
    sizes, dims = [run for _, run in outward], [outward.index(stride) for stride in strides]
    made = torch.arange(len(order), device="cpu").reshape(sizes).permute(dims).flatten() if sizes else None
    return (sizes, dims) if made is not None and tuple(made.tolist()) == order else None


def segments(parts: list[Axis]) -> Axis:
    """The concatenation of axes in its shortest form: nested concatenations flattened, adjacent zeros joined."""
    flat: list[Axis] = []
    for part in parts:
        inner = concatenated(part) or (part,)
        for axis in inner:
            if axis_size(axis) == 0:
                continue
            last = flat[-1] if flat else ()
            if len(last) == len(axis) == 1 and all(isinstance(f, Flat) and f.zero for f in (*last, *axis)):
                flat[-1] = (Flat(last[0].size + axis[0].size, True),)  # other flat neighbours need not be equal
            else:
                flat.append(axis)
    if not flat:
        return (Flat(0, True),)
    return flat[0] if len(flat) == 1 else (Segments(tuple(flat)),)


Kind = Literal["product", "sum", "order"]  # factors outermost first, consecutive segments, or one rearranged


@dataclass
class Node:
    """One space during the engine's search."""

    size: int  # Number of units
    same: int | None = None  # The space that it was merged into
    kind: Kind | Literal[""] = ""  # How it was split, if it was
    children: tuple[int, ...] = ()  # What it was split into: factors outermost first, or segments in order
    order: tuple[int, ...] = ()  # For an order: which of its units each unit of its child is
    held: bool = False  # Whether an axis of a parameter carries it
    # First reason for each restriction: ``"pinned"``: units may not be permuted; ``"monomial"``: no linear maps pass,
    # only one nonzero number per unit; ``"orthogonal"``: of all linear maps only orthogonal ones; ``"turned"``: of
    # these only those of determinant one; ``"scale"`` and ``"sign"``: fewer scales and signs
    lost: dict[str, str] = field(default_factory=dict)
    apart: bool = False  # Whether it must not be merged with a sibling segment
    # The sort that ordered its units, if any: the order follows from what was sorted
    sorted: int | None = None
    tied: bool = False  # Whether it was united with units in another order

    def why(self, what: str) -> str:
        """The first reason for a restriction; empty where there is none."""
        return self.lost.get(what, "")

    @property
    def pinned(self) -> str:
        """Why its units may not be permuted."""
        return self.why("pinned")


class Pool:
    """All spaces of one search; ``changes`` counts how often the structure changed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.changes = 0
        self.clashes: list[Axis] = []  # Axes that met their own spaces in another order, for the caller to fix

    def new(self, size: int, held: bool = False) -> int:
        """A new space."""
        self.nodes.append(Node(size, held=held))
        return len(self.nodes) - 1

    def find(self, space: int) -> int:
        """The representative of a space."""
        root = space
        while (up := self.nodes[root].same) is not None:
            root = up
        while space != root:
            self.nodes[space].same, space = root, self.nodes[space].same or root
        return root

    def node(self, space: int) -> Node:
        """The representative's record."""
        return self.nodes[self.find(space)]

    def unite(self, a: int, b: int) -> None:
        """Merge two unsplit spaces."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return
        keep, drop = self.nodes[a], self.nodes[b]
        drop.same = a
        keep.held |= drop.held
        keep.apart |= drop.apart
        keep.tied |= drop.tied or keep.sorted != drop.sorted
        keep.lost = {**drop.lost, **keep.lost}
        self.changes += 1

    def resolve(self, axis: Axis) -> Axis:
        """``axis`` with every split space replaced by its pieces, and without factors of size one.

        A slot that splits loses its scales. Every split causes another pass, and the last pass has none.
        """
        if self._stands(axis):
            return axis
        found: list = []
        for factor in axis:
            if factor.size == 1:
                continue
            if isinstance(factor, Ordered):
                found += rearranged(segments([self.resolve(p) for p in factor.parts]), factor.order)
            elif isinstance(factor, Segments):
                found += segments([self.resolve(p) for p in factor.parts])
            elif isinstance(factor, Slot):
                found += self._resolve_slot(factor)
            elif found and isinstance(found[-1], Flat) and found[-1].zero == factor.zero:
                found[-1] = Flat(found[-1].size * factor.size, factor.zero)
            else:
                found.append(factor)
        return tuple(found)

    def _stands(self, axis: Axis) -> bool:
        """Whether an axis resolves to itself, since its spaces are neither merged nor split."""
        nodes = self.nodes
        for factor in axis:
            if type(factor) is not Slot or factor.size == 1:
                return len(axis) == 1 and type(factor) is Flat and factor.size != 1
            node = nodes[factor.space]
            if node.same is not None or node.kind:
                return False
        return True

    def restrict(self, axis: Axis, what: str, why: str) -> None:
        """Set a restriction on every space of an axis; the first reason is kept."""
        for slot in slots(self.resolve(axis)):
            self.say(slot.space, what, why)

    def say(self, space: int, what: str, why: str) -> None:
        """Record the first reason why a space lost ``what``."""
        self.node(space).lost.setdefault(what, why)

    def _resolve_slot(self, slot: Slot) -> Axis:
        root = self.find(slot.space)
        node = self.nodes[root]
        if not node.kind:
            return (slot if root == slot.space else Slot(root, slot.size, slot.expr),)
        pieces = [(Slot(c, self.nodes[c].size, UNIT),) for c in node.children]
        if node.kind == "product":
            return self.resolve(tuple(s for piece in pieces for s in piece))
        if node.kind == "order":
            return rearranged(self.resolve(pieces[0]), inverse(node.order))
        return segments([self.resolve(piece) for piece in pieces])

    def expand(self, space: int, kind: Kind, sizes: tuple[int, ...]) -> None:
        """Split a space into factors, consecutive segments, or one with its units in another order (``sizes``)."""
        root = self.find(space)
        node = self.nodes[root]
        if kind == "order":
            node.order, sizes = sizes, (len({*sizes}),)
        if node.size != (prod(sizes) if kind == "product" else sum(sizes)):
            raise ValueError(f"pieces must make up the space of size {node.size}. Got a {kind} of {sizes}.")
        node.kind, node.children = kind, tuple(self.new(size, node.held) for size in sizes)
        for child in node.children:
            self.nodes[child].lost = dict(node.lost)
        self.changes += 1
