"""Neighbouring slices put side by side again: they are what they were cut out of, in whatever order it was cut."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

from .slices import Slicer
from .terms import Axis, ConflictError, Part, View, grouped, leaves, volume


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
        parts.append(Part(row, first.start, last.stop, axis := Axis(last.stop - first.start)))
        row = (axis,)
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
    with suppress(ConflictError):
        grouped(view.dims[dim], sizes)
        return view
    if any(p.axis in leaves(view.dims[dim]) for p in view.parts):
        view = slicer.plain(view)
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
