"""Axis operations for rules: which group elements pass an operation, and how result axes follow from its arguments.

An operation may restrict an axis (``hold`` its order, ``fix`` it altogether, ``monomial``, ``no_scale``, ``no_sign``).
Axes are combined leaf by leaf, and each combination adds its equations.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from ...programs import Call, Ref
from .axis_terms import UNIT, Axis, Factor, Flat, Pool, Slot, Value, axis_size, bare, map_slots, segments, slots
from .equations import System
from .unification import Misfit, slice_axis, split_axis, take, zip_axes

_COPIES = 16  # most copies of an axis that are kept apart when a product is read as a concatenation


class Algebra:
    """Axes over one pool of spaces, with the equations that arise from combining them."""

    def __init__(self) -> None:
        self.pool = Pool()  # the spaces
        self._begin()
        self.call: Call = Call("", {}, ())  # the call being processed
        self.index = -1
        self._fixed: list[Axis] = []  # axes that the current call fixed
        self._kept: dict[Any, Any] = {}  # axes of parameters, constants and fresh leaves: the same in every pass

    def _begin(self) -> None:
        """Forget what a pass found, except the structure of the spaces."""
        self.system = System()
        # axes along which an operation mixes units, with the tensor in which it mixes them
        self.mixed: list[tuple[tuple[Axis, ...], Axis]] = []
        # spaces that share one axis of a tensor but did not in all tensors that it was made from
        self.beside: set[tuple[int, int]] = set()
        # axes whose order results from a sort, with the axes that determine this order
        self.follows: list[tuple[Axis, tuple[Axis, ...]]] = []
        self.idle: dict[int, set[int]] = {}  # call number -> the spaces that the call multiplies by zeros
        self.skipped: dict[int, set[int]] = {}  # call number -> the tensors that the call learns nothing about
        self.parts: set[int] = set()  # numbers of calls that only pick given rows
        for node in self.pool.nodes:
            node.lost, node.apart = {}, False

    def fresh(self, size: int, why: str, tag: Any = 0) -> Axis:
        """A new fixed axis of this call's result (the same one in every pass)."""
        return self.fix(self.kept((self.index, tag, size), size), why)

    def kept(self, key: Any, size: int, make: Callable[[int], int] | None = None) -> Axis:
        """The axis of a key, the same one in every pass; ``make`` gives its space the first time."""
        if size <= 1:
            return () if size else (Flat(0, True),)
        if key not in self._kept:
            self._kept[key] = (make or self.pool.new)(size)
        return self.pool.resolve((Slot(self._kept[key], size),))

    def in_order(self, size: int, follows: Sequence[Axis]) -> Axis:
        """A new axis of rows whose order changes when other units move; if it is fixed, so are those units' axes."""
        axis = self.kept(key := (self.index, "order", size), size)
        if size > 1:
            self.pool.nodes[self._kept[key]].sorted = self._kept[key]
            self.follows.append((axis, tuple(follows)))
        return axis

    def settle_orders(self) -> None:
        """Hold the axes that determine the order of sorted rows, if that order matters."""
        waiting = list(self.follows)
        while held := [entry for entry in waiting if self._order_matters(entry[0])]:
            for rows, follows in held:
                why = self._order_matters(rows)
                for axis in (rows, *follows):
                    self.hold(self.pool.resolve(axis), why)
            waiting = [entry for entry in waiting if entry not in held]

    def _order_matters(self, rows: Axis) -> str:
        """The reason why rows have a fixed order; empty if they have none."""
        found = self.pool.resolve(rows)
        node = self.pool.node(found[0].space) if found and isinstance(found[0], Slot) else None
        free = not found or (node is not None and len(found) == 1 and node.sorted is not None and not node.tied)
        pinned = node.pinned if node is not None else ""
        return pinned if free or pinned else "sorted rows are used in their order"

    # ---- restrictions

    def hold(self, axis: Axis, why: str) -> Axis:
        """The order of the units matters: no permutations, no linear maps."""
        self.pool.restrict(axis, "pinned", why)
        self.pool.restrict(axis, "monomial", why)
        return axis

    def monomial(self, axis: Axis, why: str | None = None) -> Axis:
        """Units must not be mixed: no linear maps."""
        self.pool.restrict(axis, "monomial", why or self.call.where)
        return axis

    def orthogonal(self, axis: Axis) -> None:
        """Only sums of squares over the axis matter: of all linear maps, the orthogonal ones pass."""
        self.pool.restrict(axis, "orthogonal", self.call.where)

    def turned(self, plane: Axis, why: str) -> None:
        """Pairs of units are rotated together: only rotations pass, and elements that act alike on both units."""
        if len(plane) != 1 or not isinstance(plane[0], Slot):
            self.fix(plane, why)
        for what in ("pinned", "turned"):
            self.pool.restrict(plane, what, why)
        self.no_sign(self.no_scale(plane, why), why)

    def no_scale(self, axis: Axis, why: str | None = None) -> Axis:
        """No positive scales pass."""
        for slot in slots(axis):
            if self.system.log.add(slot.expr.log):
                self.pool.say(slot.space, "scale", why or self.call.where)
        return axis

    def no_sign(self, axis: Axis, why: str | None = None) -> Axis:
        """No signs pass."""
        for slot in slots(axis):
            if self.system.sign_is_zero(slot.expr):
                self.pool.say(slot.space, "sign", why or self.call.where)
        return axis

    def rigid(self, axis: Axis, why: str | None = None) -> Axis:
        """Only permutations pass."""
        return self.monomial(self.no_sign(self.no_scale(axis, why), why), why)

    def homogeneous(self, axis: Axis) -> Axis:
        """Permutations and positive scales pass."""
        return self.monomial(self.no_sign(axis))

    def unscaled(self, axis: Axis) -> Axis:
        """The axis of numbers that move with the units but do not scale."""
        return self.powered(axis, 0, False)

    def fix(self, axis: Axis, why: str) -> Axis:
        """Nothing passes; the axis is returned without exponents."""
        self.hold(self.rigid(axis, why), why)
        self._fixed.append(axis)
        return bare(axis)

    def fix_all(self, axes: Iterable[Axis], why: str) -> None:
        """Nothing passes along any of the axes."""
        for axis in axes:
            self.fix(axis, why)

    def drop(self, *tensors: Value) -> None:
        """Fix the units that these tensors name, since their indices are used as mere numbers."""
        for names in (tensor.names for tensor in tensors):
            if names is not None and names.kind != "counts":
                self.fix(self.pool.resolve(names.of), f"places of units are read as numbers at {self.call.where}")

    def mix(self, tensor: Sequence[Axis], axis: Axis) -> None:
        """Units of ``axis`` are mixed in ``tensor``: other spaces there share one element across all of them."""
        if any(True for _ in slots(axis)):
            self.mixed.append((tuple(tensor), axis))

    # ---- tensors that a call learns nothing about

    def skip(self, *arguments: Any) -> None:
        """The current call learns nothing about these tensors except their shapes."""
        refs = (argument for argument in arguments if isinstance(argument, Ref))
        self.skipped.setdefault(self.index, set()).update(ref.id for ref in refs)

    def times_zero(self, slot: Slot) -> None:
        """The current call multiplies the units by zero."""
        self.idle.setdefault(self.index, set()).add(slot.space)

    # ---- combining axes

    def zip(self, a: Axis, b: Axis, pair: Callable[[Any, Any], Factor]) -> Axis:
        """Align and combine two axes, if both are there; axes that do not line up are fixed."""
        if not a or not b:
            return a or b
        try:
            result = zip_axes(self.pool, a, b, pair)
            here, there = ({s.space for s in slots(self.pool.resolve(axis))} for axis in (a, b))
            for some, others in ((here, there - here), (there, here - there)):
                self.beside.update((other, space) for other in others for space in some)
            return result
        except Misfit:
            why = f"factors that do not line up at {self.call.where}"
            for axis in (a, b):
                self.fix(self.pool.resolve(axis), why)
            return self.fresh(axis_size(a), why, ("zip", axis_size(a)))

    def equal(self, a: Axis, b: Axis) -> Axis:
        """The common axis of two that are added, compared, or lie beside each other in a concatenation."""
        return self.zip(a, b, self._equal)

    def multiplied(self, a: Axis, b: Axis, divide: bool = False, summed: bool = False) -> Axis:
        """The axis of a unit-wise product (or quotient); linear maps pass only if it is then ``summed``."""

        def pair(x: Any, y: Any) -> Factor:
            if isinstance(x, Flat) and isinstance(y, Flat):
                return Flat(x.size, x.zero or (y.zero and not divide))
            if isinstance(y, Flat):
                # sibling segments may meet other numbers
                self.pool.node(x.space).apart |= not y.zero
                if y.zero and not divide:
                    self.times_zero(x)
                    return Flat(y.size, True)
                return x
            expr = y.expr.power(-1, True) if divide else y.expr
            if isinstance(x, Flat):
                if divide:
                    self.monomial((y,))
                self.pool.node(y.space).apart |= not x.zero
                if x.zero:
                    self.times_zero(y)
                    return x
                return Slot(y.space, y.size, expr)
            if not summed:
                self.monomial((x,))
            return Slot(x.space, x.size, x.expr + expr)

        return self.zip(a, b, pair)

    def contracted(self, a: Axis, b: Axis) -> None:
        """Contract two axes: they are summed against each other."""
        a = self.added_up(a)

        def pair(x: Any, y: Any) -> Factor:
            slot, other = (x, y) if isinstance(x, Slot) else (y, x)
            if isinstance(other, Slot):
                self.system.relate(x.expr, y.expr, -1)
            elif isinstance(slot, Slot) and other.zero:
                self.times_zero(slot)
            elif isinstance(slot, Slot):  # its units are summed, each times the same number
                self.rigid((slot,), f"sum over the units at {self.call.where}")
                self.pool.node(slot.space).apart = True
            return x

        self.zip(a, b, pair)

    def added_up(self, axis: Axis) -> Axis:
        """An axis whose units are about to be summed."""
        return axis

    def merged(self, axes: Iterable[Axis]) -> Axis:
        """The product of axes, outermost first."""
        return self.pool.resolve(tuple(factor for axis in axes for factor in axis))

    def split(self, axis: Axis, sizes: Sequence[int]) -> list[Axis]:
        """Write an axis as a product of the given sizes; if that is impossible, it is fixed."""
        try:
            places = lambda n: self.fresh(n, "parts that are used together", ("places", n))
            return split_axis(self.pool, axis, sizes, self._equal, places)
        except Misfit:
            why = f"factors that do not line up at {self.call.where}"
            self.fix(self.pool.resolve(axis), why)
            return [self.fresh(n, why, ("split", axis_size(axis), i)) for i, n in enumerate(sizes)]

    def unrolled(self, axis: Axis) -> Axis:
        """A product with few, fixed outer factors, rewritten as a concatenation of copies, each with its own gain."""
        rest = self.pool.resolve(axis)
        while len(rest) > 1 and isinstance(outer := rest[0], Slot) and self.pool.node(outer.space).pinned:
            rest = rest[1:] if outer.expr == UNIT else ()
        count = axis_size(axis) // axis_size(rest)
        moves = any(not self.pool.node(slot.space).pinned for slot in slots(rest))
        return segments([rest] * count) if moves and count <= _COPIES else axis

    def slice(self, axis: Axis, start: int, stop: int) -> Axis:
        """Rows of an axis; if they cut through a product, it is fixed."""
        try:
            return slice_axis(self.pool, axis, start, stop)
        except Misfit:
            why = f"rows {start}:{stop} cut through a unit at {self.call.where}"
            self.fix(self.pool.resolve(axis), why)
            return self.fresh(stop - start, why, ("slice", start, stop))

    def taken(self, axis: Axis, rows: Sequence[int]) -> Axis | None:
        """Some rows of an axis, none twice, in a given order; ``None`` if they cut through a product."""
        try:
            return take(self.pool, axis, rows)
        except Misfit:
            return None

    def may_move(self, axis: Axis) -> bool:
        """Whether some unit of an axis may move: it is neither an input nor newly made by an operation."""
        nodes = (self.pool.node(slot.space) for slot in slots(self.pool.resolve(axis)))
        return any(not node.pinned or node.held for node in nodes)

    def powered(self, axis: Axis, degree: Fraction | int, odd: bool, keeps_zero: bool | None = None) -> Axis:
        """The axis of ``|x|^degree``, with the sign of ``x`` if ``odd``; zeros are kept as by a power, unless told."""
        keeps_zero = degree > 0 if keeps_zero is None else keeps_zero
        return map_slots(axis, lambda s: Slot(s.space, s.size, s.expr.power(degree, odd)), keeps_zero)

    def _equal(self, x: Any, y: Any) -> Factor:
        if isinstance(x, Slot) and isinstance(y, Slot):
            self.system.relate(x.expr, y.expr, 1)
            return x
        if isinstance(x, Flat) and isinstance(y, Flat):
            return Flat(x.size, x.zero and y.zero)
        slot, flat = (x, y) if isinstance(x, Slot) else (y, x)
        if not flat.zero:
            self.rigid((slot,), f"a number common to all units at {self.call.where}")
            self.pool.node(slot.space).apart = True
        return slot
