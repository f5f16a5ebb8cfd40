"""Slices of terms: parts of them, carried to the parameters, or before operations of which nothing else is used.

Neighbouring slices put side by side again are what they were cut out of, in whatever order it was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, TypeAlias

from torch import zeros

from .terms import (
    Axis,
    ConflictError,
    Factor,
    Operand,
    Part,
    Term,
    View,
    grouped,
    join,
    leaves,
    letters_of,
    ordered,
    stored,
    term,
    volume,
)

SUNK = {"add", "mul", "contract", "map", "rows", "cat"}  # operations that a slice of what they return can pass
_DEPTH = 12  # operations that a slice passes

Cut: TypeAlias = tuple[Term, Axis | None, list[tuple[Axis, Axis]]]
"""A restricted term, the index over what is left, and other indices that became another's, beside these."""


class Slicer:
    """Slices of terms, each made once."""

    def __init__(self) -> None:
        self._made: dict[tuple, Cut | None] = {}
        self._recast: dict[tuple[int, ...], tuple[Term, list[tuple[Axis, Axis]], Axis]] = {}
        self._kept: list[Any] = []

    def part(self, view: View, dim: int, start: int, stop: int, step: int = 1) -> View:
        """``view[..., start:stop:step, ...]``, as a part of its term where that is one entry or neighbours of a row."""
        count = len(range(start, stop, step))
        dims, own, parts = list(view.dims), leaves(view.dims[dim]), view.parts
        if count == volume(own):
            return view
        known = next((p for p in parts if p.axis in own), None)
        if known is not None and (step > 1 or len(own) > 1):
            return self.part(self.plain(view), dim, start, stop, step)
        if step > 1 and count * step == volume(own):  # one entry of an inner index
            with suppress(ConflictError):
                outer, inner = grouped(own, [count, step])
                one = self.part(view.of([*dims[:dim], outer, inner, *dims[dim + 1 :]]), dim + 1, start, start + 1)
                return one.of([*one.dims[: dim + 1], *one.dims[dim + 2 :]])
        if count == 0:
            shape = (*view.shape[:dim], 0, *view.shape[dim + 1 :])
            return stored("constant", shape, zeros(shape))
        if all(axis.free for axis in own):
            dims[dim] = (Axis(count, True),) if count > 1 else ()
            return view.of(dims)
        if step > 1 or any(axis.free for axis in own):
            return self._sliced(self.plain(view), dim, start, stop, step)
        row, before = (tuple(own), 0) if known is None else (known.row, known.start)
        made = Part(row, before + start, before + stop, Axis(count) if count > 1 else None)
        dims[dim] = () if made.axis is None else (made.axis,)
        return View(view.term, tuple(dims), (*(p for p in parts if p is not known), made))

    def plain(self, view: View) -> View:
        """The same view of the parts alone, carried to the parameters where all operations on the way let them."""
        if not view.parts:
            return view
        axes = [p.axis for p in view.parts]
        kept = [x for x in leaves(a for dim in view.dims for a in dim) if x not in axes]
        flat = View(view.term, (*((x,) for x in kept), *(tuple(leaves(p.row)) for p in view.parts)))
        for k, p in enumerate(view.parts, len(kept)):
            flat = self._sliced(flat, k, p.start, p.stop, 1)
        new = {id(x): leaves(dim) for x, dim in zip([*kept, *axes], flat.dims) if x is not None}
        return View(flat.term, tuple(tuple(a for x in leaves(dim) for a in new[id(x)]) for dim in view.dims))

    def as_one(self, whole: Term, row: Sequence[Axis]) -> tuple[Term, list[tuple[Axis, Axis]], Axis]:
        """A term with a row of its indices as one, that splits in any way; its other indices by the old ones."""
        key = (id(whole), *map(id, row))
        if key not in self._recast:
            pairs, one = [(a, Axis(a.size)) for a in leaves(whole.out)], Axis(volume(row))
            for a, b in pairs:
                join([a], [b])
            roles = [(b, ("from", row.index(a))) for a, b in pairs if a in row]
            out = [b for a, b in pairs if a not in row]
            made = Term("reshape", (), [Operand(whole, pairs)], [*out, one], [*roles, (one, ("to",))])
            self._recast[key] = made, pairs, one
            self._kept.append((whole, row))
        return self._recast[key]

    def _sliced(self, view: View, dim: int, start: int, stop: int, step: int) -> View:
        """A slice of a view without parts."""
        own, region = leaves(view.dims[dim]), (start, stop, step)
        if any(axis.free for axis in own):
            return _cut_of(view, dim, start, step, len(range(*region)))
        new, fresh, renamed = self._cut(view.term, own, region, _DEPTH) or self._apart(view.term, own, region)
        names = _by_id(renamed)
        dims = [tuple(names.get(id(x), x) for x in leaves(axes)) for axes in view.dims]
        dims[dim] = () if fresh is None else (fresh,)
        return View(new, tuple(dims))

    def _apart(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int]) -> Cut:
        """A slice of a term as an operation of its own."""
        key = (None, id(old), tuple(map(id, xs)), region)
        if (known := self._made.get(key)) is None:
            others = [x for x in leaves(old.out) if x not in xs]
            view = View(old, (tuple(xs), *((x,) for x in others)))
            cut = _cut_of(view, 0, region[0], region[2], len(range(*region)))
            fresh = cut.dims[0][0] if cut.dims[0] else None
            self._made[key] = known = cut.term, fresh, [(x, axes[0]) for x, axes in zip(others, cut.dims[1:])]
            self._kept.append((old, xs))
        return known

    def _cut(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int], depth: int) -> Cut | None:
        """A term restricted along a row of its indices."""
        key = (id(old), tuple(map(id, xs)), region)
        if key not in self._made:
            self._kept.append((old, xs))
            passed = self.passed(old, xs, region, depth) if depth > 0 and not old.layout else None
            self._made[key] = self._leaf(old, xs, region) if old.layout else passed
        return self._made[key]

    def _leaf(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int]) -> Cut | None:
        start, stop, step = region
        if old.op == "input":
            return None
        fresh: Axis | None = None
        count = len(range(start, stop, step))
        layout: list[list[Factor]] = []
        for factors in old.layout:
            here: list[Factor] = []
            for f in factors:
                parts = [] if f.axis is None else f.axis.leaves()
                place = next((i for i, a in enumerate(parts) if a is xs[0]), None)
                if place is None:
                    here.append(f)
                    continue
                if [id(a) for a in parts[place : place + len(xs)]] != [id(a) for a in xs]:
                    return None
                fresh = Axis(count) if count > 1 else None
                head = len(xs) if place == 0 else 1  # what carries the region that was taken before
                rest = volume(parts[head:])
                if not f.whole and (f.full % rest or f.start % rest or (f.step != 1 and rest > 1)):
                    return None
                first, full = (f.start // rest, f.full // rest) if not f.whole else (0, volume(parts[:head]))
                if place == 0:
                    here.append(Factor(fresh, full, first + start * f.step, f.step * step))
                else:
                    here.append(Factor(parts[0], full, first, f.step))
                    here += [Factor(a, a.size) for a in parts[1:place]]
                    here.append(Factor(fresh, volume(xs), start, step))
                here += [Factor(a, a.size) for a in parts[place + len(xs) :]]
            layout.append(here)
        out = [f.axis for factors in layout for f in factors if f.axis is not None]
        return Term(old.op, old.attrs, [], out, [], layout, old.source, old.where), fresh, []

    def passed(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int], depth: int = 0) -> Cut | None:
        """A slice of what an operation returns, as that operation on slices; of operands alone without a depth."""
        bound = {id(leaf) for axis, _ in old.roles for leaf in axis.leaves()}
        if old.op not in (SUNK if depth else SUNK | {"along"}):
            return None
        if any(id(x) in bound for x in xs):
            return self._piece(old, xs, region) if old.op == "cat" and depth else None
        cut: list[Any] = []
        for operand in old.operands:
            inside = {id(b): a for a, b in operand.flat()}
            own = [inside[id(x)] for x in xs if id(x) in inside]
            if own and len(own) < len(xs):
                return None
            found = self._cut(operand.term, own, region, depth - 1) if own else ()
            cut.append(self._apart(operand.term, own, region) if found is None and not depth else found)
            if cut[-1] is None:
                return None
        count = len(range(*region))
        fresh = Axis(count) if count > 1 else None
        gone = {id(x) for x in xs}
        operands = []
        for operand, found in zip(old.operands, cut):
            read, left, others = found or (operand.term, None, [])
            names = _by_id(others)
            pairs = [(names.get(id(a), a), b) for a, b in operand.flat() if id(b) not in gone]
            if left is not None and fresh is not None:
                join([left], [fresh])
                pairs += list(zip(left.leaves(), fresh.leaves(), strict=True))
            operands.append(Operand(read, pairs))
        out = [a for a in leaves(old.out) if id(a) not in gone] + ([] if fresh is None else [fresh])
        return Term(old.op, old.attrs, operands, out, [*old.roles], where=old.where), fresh, []

    def _piece(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int]) -> Cut | None:
        """A slice that is one of the tensors that were put side by side."""
        whole = [leaf for axis, role in old.roles if role == "cat" for leaf in axis.leaves()]
        rest, ends = whole[len(xs) :], [0, *accumulate(old.attrs)]
        start, stop = (end * volume(rest) for end in region[:2])
        if whole[: len(xs)] != [*xs] or region[2] != 1 or (start, stop) not in pairwise(ends):
            return None
        k = ends.index(start)
        operand = old.operands[k]
        roles = {id(leaf): role for axis, role in old.roles for leaf in axis.leaves()}
        own = [a for a, b in operand.flat() if roles.get(id(b)) == ("piece", k)]
        names = [(b, a) for a, b in operand.flat() if id(b) not in roles]
        here = {id(b) for b, _ in names} | {id(x) for x in whole}
        if volume(whole) != ends[-1] or any(id(a) not in here for a in leaves(old.out)):
            return None  # a dimension along which that piece was repeated
        try:
            groups = grouped(own, [region[1] - region[0], *(x.size for x in rest)]) if own else []
        except ConflictError:
            return None
        if any(len(group) > 1 for group in groups):
            return None
        names += [(x, group[0]) for x, group in zip(rest, groups[1:])]
        return operand.term, groups[0][0] if groups and groups[0] else None, names


def _cut_of(view: View, dim: int, start: int, step: int, count: int) -> View:
    """A slice as an operation of its own."""
    spec = letters_of("d", len(view.dims))
    sizes = {**{x: n for (x,), n in zip(spec, view.shape)}, "out": count}
    out = [*spec[:dim], ("out",), *spec[dim + 1 :]]
    return term("cut", [(view, spec)], out, sizes, (start, step), {f"d{dim}": "in", "out": "out"})


def sink_slices(roots: Sequence[Term]) -> None:
    """Put slices before operations of which one slice is all that is used, in place: the norm of one token."""
    order = ordered(roots)
    users: dict[int, list[Term]] = {}
    for t in order:
        for operand in t.operands:
            users.setdefault(id(operand.term), []).append(t)
    kept, slicer = {id(t) for t in roots}, Slicer()
    for old in reversed(order):
        cuts = [*{id(t): t for t in users.get(id(old), ())}.values()]
        regions = {_region_of(t) for t in cuts}
        if id(old) in kept or len(regions) != 1 or (region := regions.pop()) is None:
            continue
        if (made := slicer.passed(old, *region)) is None:
            continue
        for t in cuts:
            _become(t, *made)
            for operand in t.operands:
                users.setdefault(id(operand.term), []).append(t)
                for inner in operand.term.operands if operand.term.op == "cut" else ():
                    users[id(inner.term)].append(operand.term)
        for operand in old.operands:
            users[id(operand.term)] = [t for t in users[id(operand.term)] if t is not old]


def _region_of(t: Term) -> tuple[tuple[Axis, ...], tuple[int, int, int]] | None:
    """What a cut takes: indices of what it reads, and which of their entries; ``None`` for what is no cut."""
    if t.op != "cut":
        return None
    inside = {id(leaf) for axis, role in t.roles if role == "in" for leaf in axis.leaves()}
    count, (start, step) = volume(axis for axis, role in t.roles if role == "out"), t.attrs
    xs = tuple(a for a, b in t.operands[0].flat() if id(b) in inside)
    return (xs, (start, start + (count - 1) * step + 1, step)) if xs else None


def _become(t: Term, new: Term, fresh: Axis | None, _: object) -> None:
    """Let a cut be the operation that it reads, on slices of what that reads, with indices of its own."""
    names = {id(a): b for a, b in t.operands[0].flat()}
    if fresh is not None:
        out = leaves(axis for axis, role in t.roles if role == "out")
        join([fresh], out)
        names |= {id(a): b for a, b in zip(fresh.leaves(), leaves(out), strict=True)}
    t.operands = [Operand(o.term, [(a, names.get(id(b), b)) for a, b in o.flat()]) for o in new.operands]
    t.roles = [(names.get(id(leaf), leaf), role) for axis, role in new.roles for leaf in axis.leaves()]
    t.op, t.attrs, t.where = new.op, new.attrs, new.where


def _by_id(renamed: Sequence[tuple[Axis, Axis]]) -> dict[int, Axis]:
    """The new axis by the id of the old one, both split as far as they are."""
    return {id(a): b for old, new in renamed for a, b in zip(old.leaves(), new.leaves(), strict=True)}


def side_by_side(views: Sequence[View], dim: int) -> list[View]:
    """What is put side by side along a dimension, neighbouring parts of one term as one."""
    found: list[View] = []
    for view in views:
        while found and (both := _both(found[-1], view, dim)) is not None:
            view = both
            found.pop()
        found.append(view)
    return found


def _both(one: View, other: View, dim: int) -> View | None:
    """Two parts of one term as one, where the second goes on where the first ends."""
    here, there = ({p.key: p for p in v.parts} for v in (one, other))
    apart = [k for k, p in here.items() if k in there and (p.start, p.stop) != (there[k].start, there[k].stop)]
    if one.term is not other.term or here.keys() != there.keys() or len(apart) != 1:
        return None
    first, last = here[apart[0]], there[apart[0]]
    rest, same = _without(one, dim, first), _without(other, dim, last)
    if first.stop != last.start or rest is None or same is None or _names(one, rest) != _names(other, same):
        return None
    row, parts = tuple(leaves(first.row)), [p for p in one.parts if p is not first]
    if first.start > 0 or last.stop < volume(row):
        whole, row = row, (Axis(last.stop - first.start),)
        parts.append(Part(whole, first.start, last.stop, row[0]))
    rest[dim] = (*row, *rest[dim])
    return View(one.term, tuple(rest), tuple(parts))


def _without(view: View, dim: int, part: Part) -> list[tuple[Axis, ...]] | None:
    """Dimensions without a part that is one entry, or that leads the given dimension."""
    rows = [tuple(leaves(axes)) for axes in view.dims]
    if part.axis is not None:
        if not rows[dim] or rows[dim][0] is not part.axis:
            return None
        rows[dim] = rows[dim][1:]
    return rows


def _names(view: View, rows: Sequence[Sequence[Axis]]) -> list[list]:
    names: dict[int, Any] = {id(p.axis): p.key for p in view.parts}
    return [[("free", x.size) if x.free else names.get(id(x), id(x)) for x in row] for row in rows]


def splittable(slicer: Slicer, view: View, dim: int, sizes: Sequence[int]) -> View:
    """The same, with a dimension that splits into given sizes: as one index where its own do not."""
    if any(p.axis in leaves(view.dims[dim]) for p in view.parts):
        view = slicer.plain(view)
    with suppress(ConflictError):
        grouped(view.dims[dim], sizes)
        return view
    row = leaves(view.dims[dim])
    if any(x.free for x in row):
        return view
    made, pairs, one = slicer.as_one(view.term, row)
    new = {id(x): y for a, b in pairs for x, y in zip(a.leaves(), b.leaves(), strict=True)}
    swapped = lambda axes: tuple(new.get(id(x), x) for x in leaves(axes))
    dims = tuple((one,) if d == dim else swapped(own) for d, own in enumerate(view.dims))
    return View(made, dims, tuple(replace(p, row=swapped(p.row)) for p in view.parts))


def reshaped(slicer: Slicer, x: View, shape: Sequence[int]) -> View:
    """The same entries, row by row in the same order; a dimension whose indices would be cut across is one index."""
    if [n for n in x.shape if n != 1] != [n for n in shape if n != 1]:
        x = slicer.plain(x)
    try:
        return x.reshaped(shape)
    except ConflictError:
        ends, before = [*accumulate(shape, mul)], 1
        for d, size in enumerate(x.shape):
            points = [before, *(end for end in ends if before < end < before * size), before * size]
            if any(b % a for a, b in pairwise(points)):
                raise
            x, before = splittable(slicer, x, d, [b // a for a, b in pairwise(points)]), before * size
        return x.reshaped(shape)
