"""Layouts: how the axes of a tensor are made of the spaces that were found."""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from ...programs import Ref
from .. import spaces as public
from .axis_terms import Axis, Flat, Interleaved, Slot, Value
from .engine import Engine

_ZERO = Fraction(0)


@dataclass
class Candidate:
    """One space as the last pass leaves it."""

    name: str  # From the first parameter axis that carries it
    size: int  # Number of units
    unknowns: list[int] = field(default_factory=list)  # Its unknowns: (tensor, axis, place) to variable
    # Basis of positive scales, each from variable to exponent
    scales: list[dict[int, Fraction]] = field(default_factory=list)
    signs: list[set[int]] = field(default_factory=list)  # Basis of signs, each a set of variables
    linear: Literal["none", "orthogonal", "general"] = "none"  # Which linear maps pass
    why: str = ""  # Why it is not permuted; empty where it is
    variance: dict[int, int] = field(default_factory=dict)  # Variable to +1 or -1, for linear spaces

    @property
    def moves(self) -> bool:
        """Whether any element other than the identity acts on it."""
        return self.size > 1 and (not self.why or bool(self.scales or self.signs) or self.linear != "none")


class UnknownBasisError(Exception):
    """An axis that carries a mixed space without saying how its matrices act."""


class Writer:
    """Writes layouts, noting what is fixed."""

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
        parts: list[_Piece] = []
        at = 0
        for k, part in enumerate(factor.parts):
            axis = self._axis(name, dim, part) if part else self._fixed(name, dim, 1, "size 1")
            size = public.axis_size(axis)
            if isinstance(factor, Interleaved):
                rows = tuple((i, i + 1) for i in range(k, factor.size, len(factor.parts)))
            else:
                rows = ((at, at + size),)
            _append(parts, axis, rows, part[0].space if isinstance(axis, public.Leaf) else None)
            at += size
        return public.Sum(tuple(piece.written(self._order) for piece in parts))

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

    def _fixed(self, name: str, dim: int, size: int, reason: str) -> public.Fixed:
        self.fixed.append(public.FixedAxis(name, dim, reason))
        return public.Fixed(size, reason)


@dataclass
class _Piece:
    """A part of a concatenation while it is written: its axis, and where each of the spaces merged into it lies."""

    axis: public.Axis
    ranges: dict[int | None, tuple[tuple[int, int], ...]]

    def written(self, order: dict[int | None, int]) -> public.Part:
        """The part, its rows in the order in which spaces were merged."""
        found = tuple(r for s in sorted(self.ranges, key=lambda s: order.get(s, 0)) for r in self.ranges[s])
        if isinstance(self.axis, public.Leaf):
            self.axis = replace(self.axis, size=sum(stop - start for start, stop in found))
        return public.Part(found, self.axis)


def _append(parts: list[_Piece], axis: public.Axis, rows: tuple[tuple[int, int], ...], space: int | None) -> None:
    """Append a part, or lengthen the part that another space of the same merger began."""
    if isinstance(axis, public.Leaf):
        for piece in parts:
            if isinstance(piece.axis, public.Leaf) and piece.axis.space == axis.space and space not in piece.ranges:
                piece.ranges[space] = rows
                return
    parts.append(_Piece(axis, {space: rows}))
