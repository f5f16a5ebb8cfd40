"""Axis terms: the structure of one tensor axis, as far as the engine knows it.

An axis is a row-major product of factors. A factor is a ``Slot`` (it carries a space), ``Segments`` (a concatenation
of axes, or their rows in turn) or ``Flat`` (the tensor is the same all along it). An axis of size one is the empty
product.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Expr:
    """The scaling of an axis, as linear forms in the unknown exponents of the parameters."""

    log: MappingProxyType | dict[int, Fraction]  # The exponent of positive scales: variable to rational coefficient
    sign: frozenset[int]  # The exponent of signs over F2: the set of variables whose coefficient is one
    # For linear spaces: the variable whose variance (or, with -1, whose opposite variance) this axis has
    turn: tuple[int, int] | None = None

    def __add__(self, other: "Expr") -> "Expr":
        log = dict(self.log)
        for v, c in other.log.items():
            log[v] = log.get(v, Fraction(0)) + c
        return Expr(log, self.sign ^ other.sign, self.turn)

    def power(self, degree: Fraction | int, odd: bool) -> "Expr":
        """The expression of ``|x|^degree``, with the sign of ``x`` where ``odd``."""
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
    """A factor along which the tensor does not change; ``zero`` where it is zero all along."""

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
class Interleaved(Segments):
    """A factor whose rows come from axes of one length in turn: the first row of each, then the second of each."""


Factor = Slot | Flat | Segments
Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class Names:
    """The meaning of a tensor of integers that refer to units: they change where the units move."""

    of: Axis  # The axis whose units are meant
    # ``"units"``: each number is the place of a unit; ``"counts"``: how many rows chose each unit; ``"offsets"``: where
    # the rows that chose each unit end, with the rows in the order of the units
    kind: Literal["units", "counts", "offsets"] = "units"
    rows: Axis = ()  # For counts and offsets, the rows in that order
    all: bool = False  # Whether every unit is named exactly once


@dataclass(frozen=True)
class Pick:
    """Rows of a tensor that were each selected from one unit of an axis that the tensor no longer has."""

    label: Hashable  # By what the units were chosen: rows picked by the same numbers come from the same units
    rows: Axis  # The axis of the rows; empty where the whole tensor comes from one unit
    of: Axis  # The axis whose units were picked


@dataclass(frozen=True)
class Value:
    """Axes and properties of one tensor."""

    axes: tuple[Axis, ...]  # Its axes
    zero: bool = False  # Whether it is zero whatever the parameters and inputs are
    square: bool = False  # Whether it is a square not summed yet
    factors: "tuple[Value, Value] | None" = None  # The two tensors whose product it is, as long as it is not summed
    names: Names | None = None  # What its whole numbers stand for; ``None`` where no unit is meant
    via: tuple[Pick, ...] = ()  # Units of other axes that its rows come from
    # Whether only the units of its axes are known, not their scales: a state that begins with zeros
    loose: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(axis_size(a) for a in self.axes)

    def put(self, dim: int, *axes: Axis, via: tuple[Pick, ...] = ()) -> "Value":
        """The tensor with other axes, or none, in the place of one."""
        return Value((*self.axes[:dim], *axes, *self.axes[dim + 1 :]), self.zero, via=via)

    def inserted(self, dim: int, axis: Axis = ()) -> "Value":
        """The tensor with one axis more."""
        return Value((*self.axes[:dim], axis, *self.axes[dim:]), self.zero)


def axis_size(axis: Axis) -> int:
    """Length of an axis."""
    return prod(f.size for f in axis)


def flat(size: int, zero: bool = False) -> Axis:
    """An axis along which a tensor does not change."""
    return (Flat(size, zero),) if size != 1 else ()


def slots(axis: Axis) -> Iterator[Slot]:
    """Every slot of an axis, segments included."""
    for factor in axis:
        if isinstance(factor, Slot):
            yield factor
        elif isinstance(factor, Segments):
            for part in factor.parts:
                yield from slots(part)


def map_slots(axis: Axis, slot: Callable[[Slot], Slot], keeps_zero: bool = True) -> Axis:
    """``axis`` with every slot replaced, and zeros forgotten unless the operation keeps them."""

    def one(factor: Factor) -> Factor:
        if isinstance(factor, Slot):
            return slot(factor)
        if isinstance(factor, Flat):
            return factor if keeps_zero else Flat(factor.size)
        return type(factor)(tuple(map_slots(p, slot, keeps_zero) for p in factor.parts))

    return tuple(one(f) for f in axis)


def forget_zeros(axis: Axis) -> Axis:
    """``axis`` after an operation that does not keep zero: what was zero is only known to be the same all along."""
    return map_slots(axis, lambda s: s, keeps_zero=False)


def bare(axis: Axis) -> Axis:
    """``axis`` without exponents: its units move, and do not scale."""
    return map_slots(axis, lambda s: Slot(s.space, s.size))


def concatenated(axis: Axis) -> tuple[Axis, ...]:
    """The axes that an axis is the concatenation of; none where it is none."""
    whole = axis[0] if len(axis) == 1 else None
    return whole.parts if isinstance(whole, Segments) and not isinstance(whole, Interleaved) else ()


def interleaved(parts: Sequence[Axis]) -> Axis:
    """The rows of axes of one length in turn."""
    if axis_size(parts[0]) == 1:
        return segments(list(parts))
    if all(len(p) == 1 and isinstance(p[0], Flat) and p[0].zero for p in parts):
        return (Flat(sum(axis_size(p) for p in parts), True),)
    return (Interleaved(tuple(parts)),)


def segments(parts: list[Axis]) -> Axis:
    """The concatenation of axes in its shortest form: nested concatenations opened, neighbouring zeros joined."""
    flat: list[Axis] = []
    for part in parts:
        inner = concatenated(part) or (part,)
        for axis in inner:
            if axis_size(axis) == 0:
                continue
            if flat and (joined := _joined(flat[-1], axis)):
                flat[-1] = joined
            else:
                flat.append(axis)
    if not flat:
        return (Flat(0, True),)
    return flat[0] if len(flat) == 1 else (Segments(tuple(flat)),)


def _joined(a: Axis, b: Axis) -> Axis | None:
    """Two runs of zeros as one; ``None`` for any others: flat neighbours need not hold the same number."""
    if len(a) == len(b) == 1 and isinstance(a[0], Flat) and isinstance(b[0], Flat) and a[0].zero and b[0].zero:
        return (Flat(a[0].size + b[0].size, True),)
    return None
