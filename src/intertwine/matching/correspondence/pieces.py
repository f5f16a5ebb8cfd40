"""Neighbouring slices put side by side again: they are what they were cut out of, in whatever order it was cut."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import mul
from typing import TypeAlias

from .slices import Origin, Recast, Slicer
from .terms import Axis, ConflictError, Term, View, grouped, leaves, volume


@dataclass(frozen=True, eq=False)
class Taken:
    """Of a row of indices, seen as one, the entries from ``start`` to ``stop``."""

    axes: tuple[Axis, ...]
    start: int
    stop: int

    @property
    def key(self) -> tuple[int, ...]:
        """What it is part of."""
        return tuple(map(id, leaves(self.axes)))


Place: TypeAlias = Axis | Taken


@dataclass(frozen=True, eq=False)
class Section:
    """A view as part of a term, of some of whose indices not all entries are taken."""

    term: Term
    dims: tuple[tuple[Place, ...], ...]
    single: tuple[Taken, ...] = ()  # Indices of which one entry is taken: they are in no dimension

    @property
    def taken(self) -> dict[tuple[int, ...], Taken]:
        """What it is part of, by index."""
        return {x.key: x for x in chain(*self.dims, self.single) if isinstance(x, Taken)}


def side_by_side(slicer: Slicer, views: Sequence[View], dim: int) -> list[View]:
    """What is put side by side along a dimension, neighbouring slices of one value as one slice."""
    found: list[tuple[View | None, Section]] = []
    for view in views:
        known: View | None = view
        section = Section(view.term, tuple(tuple(leaves(axes)) for axes in view.dims))
        while found and (both := _both(found[-1][1], section, dim, slicer.origins)) is not None:
            known, section = None, both
            found.pop()
        found.append((known, section))
    return [_shown(section, slicer) if view is None else view for view, section in found]


def splittable(slicer: Slicer, view: View, dim: int, sizes: Sequence[int]) -> View:
    """The same, with a dimension that splits into given sizes: as one index where its own do not.

    A slice is read so in what it was cut out of.
    """
    with suppress(ConflictError):
        grouped(view.dims[dim], sizes)
        return view
    plain = Section(view.term, tuple(tuple(leaves(axes)) for axes in view.dims))
    *_, section = _wider(plain, slicer.origins)
    section = plain if any(isinstance(x, Taken) for x in section.dims[dim]) else section
    row = [x for x in section.dims[dim] if isinstance(x, Axis)]
    if any(x.free for x in row):
        return view
    key = (id(section.term), *map(id, row))
    if key not in slicer.recasts:
        slicer.recasts[key] = Recast.of(section.term, row)
    recast = slicer.recasts[key]
    new = {id(x): y for a, b in recast.pairs for x, y in zip(a.leaves(), b.leaves(), strict=True)}

    def place(x: Place) -> Place:
        if isinstance(x, Axis):
            return new.get(id(x), x)
        return Taken(tuple(new.get(id(a), a) for a in leaves(x.axes)), x.start, x.stop)

    dims = tuple((recast.one,) if d == dim else tuple(map(place, own)) for d, own in enumerate(section.dims))
    single = tuple(x for x in map(place, section.single) if isinstance(x, Taken))
    return _shown(Section(recast.made, dims, single), slicer)


def reshaped(slicer: Slicer, x: View, shape: Sequence[int]) -> View:
    """The same entries, row by row in the same order; a dimension whose indices would be cut across is one index."""
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


def _both(one: Section, other: Section, dim: int, origins: Mapping[int, Origin]) -> Section | None:
    wider = [(x, y) for x in _wider(one, origins) for y in _wider(other, origins) if x.term is y.term]
    return next((both for x, y in wider if (both := _continued(x, y, dim)) is not None), None)


def _wider(section: Section | None, origins: Mapping[int, Origin]) -> Iterator[Section]:
    """A section, also as one of what its term was cut out of, of what that was cut out of, and so on."""
    while section is not None:
        yield section
        origin = origins.get(id(section.term))
        section = None if origin is None else _before(section, origin)


def _before(section: Section, origin: Origin) -> Section | None:
    """A section of a slice as one of what was sliced."""
    taken = Taken(origin.row, origin.start, origin.stop)
    left = [] if origin.left is None else [id(x) for x in origin.left.leaves()]
    old = None if origin.pairs is None else {
        id(y): x for a, b in origin.pairs for x, y in zip(a.leaves(), b.leaves(), strict=True)
    }  # fmt: skip

    def place(x: Place) -> Place | None:
        if isinstance(x, Axis):
            return x if old is None or x.free else old.get(id(x))
        own = [place(a) for a in leaves(x.axes) if id(a) not in left]
        axes = tuple(a for a in own if isinstance(a, Axis))
        return Taken(axes, x.start, x.stop) if len(axes) == len(x.key) else None

    dims: list[list[Place | None]] = []
    for row in section.dims:
        names = [id(x) for x in row]
        at = names.index(left[0]) if left and left[0] in names else len(row)
        run = len(left) if names[at : at + len(left)] == left else 0
        dims.append([*map(place, row[:at]), *([taken] if run else []), *map(place, row[at + run :])])
    if left and not any(x is taken for x in chain(*dims)):
        return None
    single = [*map(place, section.single), *([] if left else [taken])]
    if any(x is None for x in chain(*dims, single)):
        return None
    rows = tuple(tuple(x for x in row if x is not None) for row in dims)
    return Section(origin.whole, rows, tuple(x for x in single if isinstance(x, Taken)))


def _continued(one: Section, other: Section, dim: int) -> Section | None:
    """Two sections of one term as one, where the second goes on where the first ends."""
    here, there = one.taken, other.taken
    apart = [k for k, x in here.items() if k in there and (x.start, x.stop) != (there[k].start, there[k].stop)]
    if here.keys() != there.keys() or len(apart) != 1 or here[apart[0]].stop != there[apart[0]].start:
        return None
    rest, same = (_without(section, dim, apart[0]) for section in (one, other))
    if rest is None or same is None or _names(rest) != _names(same):
        return None
    first, last = here[apart[0]], there[apart[0]]
    row = leaves(first.axes)
    whole = first.start == 0 and last.stop == volume(row)
    places = row if whole else [Taken(first.axes, first.start, last.stop)]
    dims = [(*places, *x) if d == dim else x for d, x in enumerate(rest)]
    return Section(one.term, tuple(dims), tuple(x for x in one.single if x.key != apart[0]))


def _without(section: Section, dim: int, key: tuple[int, ...]) -> list[tuple[Place, ...]] | None:
    """Dimensions without an index of which one entry is taken, or that leads the given dimension."""
    rows = list(section.dims)
    if all(x.key != key for x in section.single):
        first = rows[dim][0] if rows[dim] else None
        if not isinstance(first, Taken) or first.key != key:
            return None
        rows[dim] = rows[dim][1:]
    return rows


def _names(rows: Sequence[Sequence[Place]]) -> list[list]:
    name = lambda x: x.key if isinstance(x, Taken) else ("free", x.size) if x.free else id(x)
    return [[name(x) for x in row] for row in rows]


def _shown(section: Section, slicer: Slicer) -> View:
    """The view of a section: what it was cut out of, where nothing is missing."""
    flat = [*chain(*section.dims), *section.single]
    view = View(section.term, tuple(tuple(leaves(x.axes)) if isinstance(x, Taken) else (x,) for x in flat))
    for k, x in enumerate(flat):
        if isinstance(x, Taken):
            view = slicer.part(view, k, x.start, x.stop)
    rows = iter(view.dims)
    return View(view.term, tuple(tuple(a for _ in row for a in next(rows)) for row in section.dims))
