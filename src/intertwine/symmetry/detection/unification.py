"""Unification of axes: aligning two, slicing one, taking rows in a given order, splitting one into factors.

If the forms differ, spaces split until they agree; if they cannot agree, ``Misfit`` is raised and the caller
fixes what is involved.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NoReturn

from .axis_terms import (
    Axis,
    Factor,
    Flat,
    Ordered,
    Pool,
    Segments,
    Slot,
    axis_size,
    bare,
    concatenated,
    has_flat,
    inverse,
    ordered,
    rearranged,
    segments,
    slots,
    transposition,
)

Pair = Callable[[Slot | Flat, Slot | Flat], Factor]
Places = Callable[[int], Axis]


class Misfit(Exception):
    """Two axes of one size whose factors do not line up."""


def zip_axes(pool: Pool, a: Axis, b: Axis, pair: Pair) -> Axis:
    """Align two axes of one length and combine them leaf by leaf; spaces are united and split as needed.

    ``pair`` takes the two leaves (of one space, or at least one of them flat) and returns the combined leaf.

    Raises:
        Misfit: If the factors cannot be lined up.
    """
    out: list[Factor] = []
    a, b = pool.resolve(a), pool.resolve(b)
    while True:
        a, b = _current(pool, a), _current(pool, b)
        if not a and not b:
            return pool.resolve(tuple(out))
        if not a or not b:
            raise Misfit
        x, y = a[0], b[0]
        if x.size == y.size:
            out += _pair(pool, x, y, pair)
            a, b = a[1:], b[1:]
        elif isinstance(x, Ordered) and x.size > y.size:
            a = (*_opened(pool, x), *a[1:])
        elif isinstance(y, Ordered) and y.size > x.size:
            b = (*_opened(pool, y), *b[1:])
        elif concatenated((x,)) or concatenated((y,)):
            head_a, head_b, a, b = _equal_heads(a, b)
            out += _piecewise(pool, head_a, head_b, pair)
        elif x.size > y.size:
            a = (*_split_factor(pool, x, y.size), *a[1:])
        else:
            b = (*_split_factor(pool, y, x.size), *b[1:])


def spans(parts: Iterable[Axis]) -> Iterator[tuple[int, int, Axis]]:
    """Axes that are concatenated, each with its rows ``start:stop`` in the whole."""
    stop = 0
    for part in parts:
        start, stop = stop, stop + axis_size(part)
        yield start, stop, part


def slice_axis(pool: Pool, axis: Axis, start: int, stop: int) -> Axis:
    """The rows ``start:stop`` of an axis."""
    axis = pool.resolve(axis)
    if start == 0 and stop == axis_size(axis):
        return axis
    if stop <= start:
        return (Flat(0, True),)
    head, rest = axis[0], axis[1:]
    inner = axis_size(rest)
    if start % inner or stop % inner:
        raise Misfit
    start, stop = start // inner, stop // inner
    if isinstance(head, Flat):
        return pool.resolve((Flat(stop - start, head.zero), *rest))
    if isinstance(head, Slot):
        bounds = [0, start, stop, head.size]
        pool.expand(head.space, "sum", tuple(hi - lo for lo, hi in pairwise(bounds) if hi > lo))
        return slice_axis(pool, axis, start * inner, stop * inner)
    if isinstance(head, Ordered):
        alone = len(head.parts) == 1
        some = slice_axis(pool, _opened(pool, head), start, stop) if alone else take(pool, (head,), range(start, stop))
        return pool.resolve((*some, *rest))
    pieces = []
    for at, end, part in spans(head.parts):
        low, high = max(start, at), min(stop, end)
        if low < high:
            pieces.append(slice_axis(pool, part, low - at, high - at))
    return pool.resolve((*segments(pieces), *rest))


def take(pool: Pool, axis: Axis, rows: Sequence[int]) -> Axis:
    """Some rows of an axis, none twice, in a given order.

    Raises:
        Misfit: If the rows cut through a product.
    """
    axis = pool.resolve(axis)
    if (whole := ordered(axis)) is not None:
        return take(pool, segments([*whole.parts]), [whole.order[k] for k in rows])
    low, high = min(rows, default=0), max(rows, default=-1) + 1
    if high - low == len(rows):
        return rearranged(slice_axis(pool, axis, low, high), [k - low for k in rows])
    if len(axis) != 1:
        raise Misfit
    if isinstance(axis[0], Flat):
        return (Flat(len(rows), axis[0].zero),)
    if isinstance(axis[0], Slot):
        pool.expand(axis[0].space, "order", (*rows, *sorted({*range(axis[0].size)} - {*rows})))
        return take(pool, axis, rows)
    pieces, taken = [], list[int]()
    for at, end, part in spans(concatenated(axis)):
        own = [k for k in rows if at <= k < end]
        pieces += [take(pool, part, [k - at for k in own])] if own else []
        taken += own
    place = {k: i for i, k in enumerate(taken)}
    return rearranged(segments(pieces), [place[k] for k in rows])


def split_axis(pool: Pool, axis: Axis, sizes: Sequence[int], equal: Pair, places: Places) -> list[Axis]:
    """Write an axis as a row-major product of axes of given sizes (outermost first).

    ``equal`` makes two leaves alike, if segments must share an inner factor; ``places`` gives the axis of positions
    if nothing else is left of the segments.

    Raises:
        Misfit: If a factor straddles two of the sizes.
    """
    out, rest = [], pool.resolve(axis)
    for size in sizes:
        head: list[Factor] = []
        need = size
        while need > 1:
            rest = _current(pool, rest)
            factor = rest[0]
            if need % factor.size == 0:
                head.append(factor)
                need //= factor.size
                rest = rest[1:]
            elif factor.size % need == 0:
                if isinstance(factor, Ordered):
                    pieces = _opened(pool, factor)
                elif isinstance(factor, Segments):
                    pieces = factor_out(pool, factor, factor.size // need, equal, places)
                else:
                    pieces = _split_factor(pool, factor, need)
                rest = (*pieces, *rest[1:])
            else:
                raise Misfit
        out.append(pool.resolve(tuple(head)))
    return [pool.resolve(a) for a in out]


def factor_out(pool: Pool, factor: Segments, inner: int, equal: Pair, places: Places) -> Axis:
    """Write a concatenation as segments of whole units times one shared inner factor of length ``inner``."""
    outer, shared, run = list[Axis](), None, list[Axis]()
    for part in factor.parts:
        run.append(part)
        whole = segments(run)
        if axis_size(whole) % inner:
            continue  # it forms a unit together with the next ones
        if len(run) > 1 and axis_size(whole) != inner:
            raise Misfit
        head, tail = split_axis(pool, whole, (axis_size(whole) // inner, inner), equal, places)
        outer.append(head)
        shared, run = tail if shared is None else zip_axes(pool, shared, tail, equal), []
    if run or (not all(outer) and any(outer)):
        raise Misfit  # a segment of one unit beside others: only its position would be left
    return pool.resolve((*(segments(outer) if all(outer) else places(len(outer))), *(shared or ())))


def _current(pool: Pool, axis: Axis) -> Axis:
    """``axis`` with split spaces replaced by their pieces; adjacent flat factors stay split."""
    return tuple(piece for factor in axis for piece in pool.resolve((factor,)))


def _pair(pool: Pool, x: Factor, y: Factor, pair: Pair) -> Axis:
    if isinstance(x, Ordered):
        return _rearranged(pool, x, y, pair)
    if isinstance(y, Ordered):
        return _rearranged(pool, y, x, lambda p, q: pair(q, p))
    if isinstance(x, Segments) or isinstance(y, Segments):
        return _piecewise(pool, (x,), (y,), pair)
    if isinstance(x, Slot) and isinstance(y, Slot):
        pool.unite(x.space, y.space)
        root = pool.find(x.space)
        x, y = Slot(root, x.size, x.expr), Slot(root, y.size, y.expr)
    return (pair(x, y),)


def _rearranged(pool: Pool, x: Ordered, y: Factor, pair: Pair) -> Axis:
    """Combine a rearrangement with a factor of its length: part by part, each with the other's matching rows."""
    own, others = ({s.space for s in slots((factor,))} for factor in (x, y))
    same = isinstance(y, Ordered) and y.order == x.order
    if isinstance(y, Slot) and y.space not in own:
        pool.expand(y.space, "order", inverse(x.order))
        (y,), same = pool.resolve((y,)), True
    if same or isinstance(y, Flat):  # matching rows match in any order
        other = segments([*y.parts]) if isinstance(y, Ordered) else (y,)
        return rearranged(zip_axes(pool, segments([*x.parts]), other, pair), x.order)
    if own & others:
        if has_flat((x,)):
            raise Misfit  # the rearrangement does not say which rows are units of the other
        pool.clashes += [(x,), (y,)]
        return bare((x,))
    place = inverse(x.order)
    found = [zip_axes(pool, part, take(pool, (y,), place[at:end]), pair) for at, end, part in spans(x.parts)]
    return rearranged(segments(found), x.order)


def _opened(pool: Pool, factor: Ordered) -> Axis:
    """A rearranged axis as an axis: its space acquires that order, or factors of a product are transposed."""
    if len(factor.parts) > 1:
        raise Misfit
    (inner,) = factor.parts
    if len(inner) == 1 and isinstance(inner[0], Slot):
        pool.expand(inner[0].space, "order", factor.order)
        return pool.resolve((factor,))
    factors = transposition(factor.order)
    if factors is None:
        raise Misfit
    pieces = split_axis(pool, inner, factors[0], _misfit, _misfit)
    return pool.resolve(tuple(f for dim in factors[1] for f in pieces[dim]))


def _misfit(*_: object) -> NoReturn:
    raise Misfit


def _piecewise(pool: Pool, a: Axis, b: Axis, pair: Pair) -> Axis:
    """Combine two axes of equal length, one of which starts with segments, piece by piece."""
    cuts = sorted({*_boundaries(a), *_boundaries(b)})
    return segments([zip_axes(pool, x, y, pair) for x, y in zip(_cut(pool, a, cuts), _cut(pool, b, cuts))])


def _cut(pool: Pool, axis: Axis, cuts: Sequence[int]) -> list[Axis]:
    """The pieces of an axis between neighbouring cuts, which are sorted and include both ends of the axis."""
    axis = pool.resolve(axis)
    if len(axis) == 1 and isinstance(axis[0], Slot) and len(cuts) > 2:
        pool.expand(axis[0].space, "sum", tuple(stop - start for start, stop in pairwise(cuts)))
        axis = pool.resolve(axis)
    parts = concatenated(axis)
    ends = [0, *accumulate(axis_size(p) for p in parts)]
    if not parts or not {*ends} <= {*cuts}:  # another axis may carry the same spaces and have been cut elsewhere
        return [slice_axis(pool, axis, start, stop) for start, stop in pairwise(cuts)]
    pieces: list[Axis] = []
    for part, (at, end) in zip(parts, pairwise(ends)):
        own = [cut - at for cut in cuts if at <= cut <= end]
        pieces += [pool.resolve(part)] if len(own) == 2 else _cut(pool, part, own)
    return pieces


def _boundaries(axis: Axis) -> list[int]:
    if parts := concatenated(axis[:1]):
        inner = axis_size(axis[1:])
        return [0, *(end * inner for end in accumulate(axis_size(p) for p in parts))]
    return [0, axis_size(axis)]


def _equal_heads(a: Axis, b: Axis) -> tuple[Axis, Axis, Axis, Axis]:
    """The shortest prefixes of equal length, and the remainders."""
    i = j = 1
    while (size_a := axis_size(a[:i])) != (size_b := axis_size(b[:j])):
        if size_a < size_b and i < len(a):
            i += 1
        elif size_b < size_a and j < len(b):
            j += 1
        else:
            raise Misfit
    return a[:i], b[:j], a[i:], b[j:]


def _split_factor(pool: Pool, factor: Any, outer: int) -> Axis:
    if outer == 0 or factor.size % outer:
        raise Misfit
    inner = factor.size // outer
    if isinstance(factor, Flat):
        return (Flat(outer, factor.zero), Flat(inner, factor.zero))
    pool.expand(factor.space, "product", (outer, inner))
    return pool.resolve((factor,))
