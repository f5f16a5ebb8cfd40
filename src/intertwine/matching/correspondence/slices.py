"""Slices of terms, carried to the parameters, or before operations of which only the slice is used."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise, permutations, product
from typing import Any, TypeAlias

from torch import zeros

from ..._nested import by_key
from .terms import (
    Axis,
    ConflictError,
    Factor,
    Operand,
    Term,
    View,
    flat,
    grouped,
    join,
    leaves,
    letters_of,
    ordered,
    stored,
    term,
    volume,
)

SUNK = {"add", "mul", "contract", "map", "rows", "cat"}  # operations that a slice of their result can pass
_DEPTH = 12  # most operations that a slice passes

Cut: TypeAlias = tuple[Term, Axis | None, list[tuple[Axis, Axis]]]
"""A restricted term, the index over the remaining entries, and pairs of other indices that were replaced."""
Bounds: TypeAlias = dict[int, tuple[int, int, int]]
"""Start, step and number of entries of a slice along each dimension that it cuts."""


class Slicer:
    """Slices of terms, each made once."""

    def __init__(self) -> None:
        self._made: dict[tuple, Cut | None] = {}
        self._taken: dict[View, tuple[View, Bounds]] = {}  # of slices: their source

    def sliced(self, x: View, dim: int, start: int, stop: int, step: int = 1) -> View:
        """``x[..., start:stop:step, ...]``, which ``joined`` knows."""
        dim %= len(x.dims)
        found = self._part(x, dim, start, stop, step)
        if found is not x:
            base, bounds = self._taken.get(x, (x, {}))
            first, by, _ = bounds.get(dim, (0, 1, 0))
            here = first + start * by, step * by, len(range(start, stop, step))
            self._taken[found] = base, {**bounds, dim: here}
        return found

    def joined(self, views: Sequence[View], dim: int, shape: Sequence[int]) -> View | None:
        """The source of concatenated slices: adjacent ones, or all strides of some dimensions in an order."""
        known = [self._taken[v] for v in views if v in self._taken]
        whole = {(base.term, *(tuple(leaves(axes)) for axes in base.dims)) for base, _ in known}
        if len(known) < len(views) or len(whole) > 1:
            return None
        base, bounds = known[0][0], [own for _, own in known]
        if all(dim in own for own in bounds):
            return self._adjacent(base, bounds, dim)
        return _interleaved(base, bounds, dim, shape)

    def _adjacent(self, base: View, bounds: Sequence[Bounds], dim: int) -> View | None:
        """The one slice that slices make, each of which begins along ``dim`` where the last one ends."""
        rest = [{d: cut for d, cut in own.items() if d != dim} for own in bounds]
        if any(own != rest[0] for own in rest) or any(own[dim][1] > 1 for own in bounds):
            return None
        ends = [(own[dim][0], own[dim][0] + own[dim][2]) for own in bounds]
        if any(end != start for (_, end), (start, _) in pairwise(ends)):
            return None
        for d, (start, step, count) in {**rest[0], dim: (ends[0][0], 1, ends[-1][1] - ends[0][0])}.items():
            base = self.sliced(base, d, start, start + (count - 1) * step + 1, step)
        return base

    def _part(self, view: View, dim: int, start: int, stop: int, step: int = 1) -> View:
        """``view[..., start:stop:step, ...]``, carried to the parameters if all operations on the way let it pass."""
        region, count = (start, stop, step), len(range(start, stop, step))
        dims, own = list(view.dims), leaves(view.dims[dim])
        if count == volume(own):
            return view
        if step > 1 and count * step == volume(own):  # one entry of an inner index
            with suppress(ConflictError):
                outer, inner = grouped(own, [count, step])
                one = self._part(view.of([*dims[:dim], outer, inner, *dims[dim + 1 :]]), dim + 1, start, start + 1)
                return one.of([*one.dims[: dim + 1], *one.dims[dim + 2 :]])
        if count == 0:
            shape = (*view.shape[:dim], 0, *view.shape[dim + 1 :])
            return stored("constant", shape, zeros(shape))
        if all(axis.free for axis in own):
            dims[dim] = (Axis(count, True),) if count > 1 else ()
            return view.of(dims)
        if any(axis.free for axis in own):
            return _cut_of(view, dim, start, step, count)
        new, fresh, renamed = self._cut(view.term, own, region, _DEPTH) or self._apart(view.term, own, region)
        names = dict(flat(renamed))
        dims = [tuple(names.get(x, x) for x in leaves(axes)) for axes in view.dims]
        dims[dim] = () if fresh is None else (fresh,)
        return View(new, tuple(dims))

    def _apart(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int]) -> Cut:
        """A slice of a term as a separate operation."""
        key = (None, old, tuple(xs), region)
        if (known := self._made.get(key)) is None:
            others = [x for x in leaves(old.out) if x not in xs]
            view = View(old, (tuple(xs), *((x,) for x in others)))
            cut = _cut_of(view, 0, region[0], region[2], len(range(*region)))
            fresh = cut.dims[0][0] if cut.dims[0] else None
            self._made[key] = known = cut.term, fresh, [(x, axes[0]) for x, axes in zip(others, cut.dims[1:])]
        return known

    def _cut(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int], depth: int) -> Cut | None:
        """A term restricted along a row of its indices."""
        key = (old, tuple(xs), region)
        if key not in self._made:
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
                if parts[place : place + len(xs)] != [*xs]:
                    return None
                fresh = Axis(count) if count > 1 else None
                head = len(xs) if place == 0 else 1  # the indices that carry the region taken before
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
        """A slice of an operation's result, as that operation on slices; of operands alone without a depth."""
        bound = {leaf for axis, _ in old.roles for leaf in axis.leaves()}
        if old.op not in (SUNK if depth else SUNK | {"along"}):
            return None
        if any(x in bound for x in xs):
            return self._piece(old, xs, region) if old.op == "cat" and depth else None
        cut: list[Any] = []
        for operand in old.operands:
            inside = {b: a for a, b in operand.flat()}
            own = [inside[x] for x in xs if x in inside]
            if own and len(own) < len(xs):
                return None
            found = self._cut(operand.term, own, region, depth - 1) if own else ()
            cut.append(self._apart(operand.term, own, region) if found is None and not depth else found)
            if cut[-1] is None:
                return None
        count = len(range(*region))
        fresh = Axis(count) if count > 1 else None
        gone = set(xs)
        operands = []
        for operand, found in zip(old.operands, cut):
            read, left, others = found or (operand.term, None, [])
            names = dict(flat(others))
            pairs = [(names.get(a, a), b) for a, b in operand.flat() if b not in gone]
            if left is not None and fresh is not None:
                join([left], [fresh])
                pairs += list(zip(left.leaves(), fresh.leaves(), strict=True))
            operands.append(Operand(read, pairs))
        out = [a for a in leaves(old.out) if a not in gone] + ([] if fresh is None else [fresh])
        return Term(old.op, old.attrs, operands, out, [*old.roles], where=old.where), fresh, []

    def _piece(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int]) -> Cut | None:
        """A slice that is one of the concatenated tensors."""
        whole = [leaf for axis, role in old.roles if role == "cat" for leaf in axis.leaves()]
        rest, ends = whole[len(xs) :], [0, *accumulate(old.attrs)]
        start, stop = (end * volume(rest) for end in region[:2])
        if whole[: len(xs)] != [*xs] or region[2] != 1 or (start, stop) not in pairwise(ends):
            return None
        k = ends.index(start)
        operand = old.operands[k]
        roles = {leaf: role for axis, role in old.roles for leaf in axis.leaves()}
        own = [a for a, b in operand.flat() if roles.get(b) == ("piece", k)]
        names = [(b, a) for a, b in operand.flat() if b not in roles]
        here = {b for b, _ in names} | {*whole}
        if volume(whole) != ends[-1] or any(a not in here for a in leaves(old.out)):
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
    """A slice as a separate operation."""
    spec = letters_of("d", len(view.dims))
    sizes = {**{x: n for (x,), n in zip(spec, view.shape)}, "out": count}
    out = [*spec[:dim], ("out",), *spec[dim + 1 :]]
    return term("cut", [(view, spec)], out, sizes, (start, step), {f"d{dim}": "in", "out": "out"})


def sink_slices(roots: Sequence[Term]) -> None:
    """Move slices, in place, before operations of which only one slice is used, such as the norm of one token."""
    order = ordered(roots)
    users = by_key((operand.term, t) for t in order for operand in t.operands)
    kept, slicer = {*roots}, Slicer()
    for old in reversed(order):
        cuts = [*dict.fromkeys(users.get(old, ()))]
        regions = {_region_of(t) for t in cuts}
        if old in kept or len(regions) != 1 or (region := regions.pop()) is None:
            continue
        if (made := slicer.passed(old, *region)) is None:
            continue
        for t in cuts:
            _become(t, *made)
            for operand in t.operands:
                users.setdefault(operand.term, []).append(t)
                for inner in operand.term.operands if operand.term.op == "cut" else ():
                    users[inner.term].append(operand.term)
        for operand in old.operands:
            users[operand.term] = [t for t in users[operand.term] if t is not old]


def _interleaved(base: View, bounds: Sequence[Bounds], dim: int, shape: Sequence[int]) -> View | None:
    """A rearrangement of ``base``, where slices take every start of the strides of some dimensions, in an order."""
    steps = {d: step for d, (_, step, _) in bounds[0].items()}
    full = {d: (step, base.shape[d]) for d, step in steps.items()}
    if any({d: (step, step * count) for d, (_, step, count) in own.items()} != full for own in bounds):
        return None
    starts = [{d: start for d, (start, _, _) in own.items()} for own in bounds]
    for order in permutations(steps):
        if [tuple(own[d] for d in order) for own in starts] == [*product(*(range(steps[d]) for d in order))]:
            split = [(n // steps[d], steps[d]) if d in steps else (n,) for d, n in enumerate(base.shape)]
            at = [*accumulate(map(len, split), initial=0)]
            inner = [at[d] + 1 for d in order]
            axes = [a for d in range(len(split)) for a in ([*inner, at[d]] if d == dim else [at[d]])]
            return base.reshaped([n for sizes in split for n in sizes]).permuted(axes).reshaped(shape)
    return None


def _region_of(t: Term) -> tuple[tuple[Axis, ...], tuple[int, int, int]] | None:
    """The indices that a cut reads, and which of their entries it takes; ``None`` if the term is no cut."""
    if t.op != "cut":
        return None
    inside = {leaf for axis, role in t.roles if role == "in" for leaf in axis.leaves()}
    count, (start, step) = volume(axis for axis, role in t.roles if role == "out"), t.attrs
    xs = tuple(a for a, b in t.operands[0].flat() if b in inside)
    return (xs, (start, start + (count - 1) * step + 1, step)) if xs else None


def _become(t: Term, new: Term, fresh: Axis | None, _: object) -> None:
    """Replace a cut by the operation that it reads, applied to slices of its operands, with its own indices."""
    names = dict(t.operands[0].flat())
    if fresh is not None:
        out = leaves(axis for axis, role in t.roles if role == "out")
        join([fresh], out)
        names |= dict(zip(fresh.leaves(), leaves(out), strict=True))
    t.operands = [Operand(o.term, [(a, names.get(b, b)) for a, b in o.flat()]) for o in new.operands]
    t.roles = [(names.get(leaf, leaf), role) for axis, role in new.roles for leaf in axis.leaves()]
    t.op, t.attrs, t.where = new.op, new.attrs, new.where
