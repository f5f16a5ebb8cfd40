"""Rules of writes and strided views: rows written where an index or a mask says, parts of a tensor overwritten.

The memory of a dense tensor is a product of its axes, outermost stride first. A view, or the part that a write covers,
takes runs of that product: whole factors, ranges of one, or single units. Anything else is fixed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import torch

from ...._nested import by_key
from ....programs import Call, Ref
from ....programs.operations import aten
from ..axis_terms import Axis, Flat, Names, Pick, Value, axis_size, bare, flat, forget_zeros, segments
from ..engine import Engine
from .elementwise import added
from .indexing import follow, replaced_axes
from .registry import opaque, register_rule, unknown
from .shapes import pick, rows
from .unit_indices import named, plain

PART = "intertwine::part"
Dim = tuple[int, int]  # size and stride


class Unreadable(Exception):
    """A view that no product of the axes describes."""


@dataclass
class _Factor:
    """A factor of a tensor axis, and what a view shows of it."""

    axis: int  # Which axis
    stride: int  # Distance between its units
    size: int  # Number of its units
    start: int  # The first one shown
    count: int = 1  # Number of units shown
    shown: int = -1  # The dimension of the view that shows them; -1 for a single unit


def factors_of(there: Sequence[Dim], view: Sequence[Dim], offset: int) -> list[_Factor]:
    """The factors into which a view that begins at ``offset`` cuts the axes of a tensor, outermost first."""
    dims = sorted(((s, n, i) for i, (n, s) in enumerate(there) if n > 1 and s), reverse=True)
    steps = [(s, n, j) for j, (n, s) in enumerate(view) if n > 1 and s]
    if offset < 0 or any(outer < n * s for (outer, *_), (s, n, _) in pairwise(dims)):
        raise Unreadable
    found: list[_Factor] = []
    for stride, size, i in dims:
        bounds = sorted({stride, stride * size, *(s for s, *_ in steps if stride < s < stride * size)}, reverse=True)
        for high, low in pairwise(bounds):
            start, offset = divmod(offset, low)
            found.append(_Factor(i, low, high // low, start))
            if high % low:
                raise Unreadable
    for stride, left, j in steps:
        while left > 1:  # a dimension of the view may run over several factors
            one = next((f for f in found if f.stride == stride and f.shown < 0), None)
            if one is None or left % (count := min(left, one.size)) or (left > count and one.start):
                raise Unreadable
            one.count, one.shown = count, j
            left, stride = left // count, stride * one.size
    if offset or any(f.start + f.count > f.size for f in found):
        raise Unreadable
    return found


def cut_at(factors: Sequence[_Factor]) -> int:
    """The 1-based position of the factor that is shown in part, with everything inside its units; 0 if none is."""
    cuts = [k for k, f in enumerate(factors, 1) if f.count < f.size]
    return cuts[0] if len(cuts) == 1 and prod(f.count for f in factors[cuts[0] - 1 :]) > 1 else 0


def _dims(engine: Engine, ref: Ref) -> list[Dim]:
    value = engine.program.values[ref.id]
    return list(zip(value.shape, value.stride, strict=True))


def _cut(engine: Engine, axes: Sequence[Axis], sizes: Iterable[tuple[int, int]]) -> list[Axis]:
    """Axes as products of factors of given sizes, listed axis by axis."""
    own = by_key(sizes)
    return [factor for i in own for factor in engine.split(axes[i], own[i])]


@register_rule("aten::as_strided", "intertwine::part_of_write")
def as_strided(engine: Engine, call: Call) -> Value:
    """A strided view: axes in another order, slices and single units of them."""
    source, out = call.args["self"], call.outputs[0]
    if out is None or engine.dtype(source) != engine.dtype(out):
        return _fixed(engine, call, [engine.value(source)])
    before, after = engine.program.values[source.id], engine.program.values[out.id]
    return _shown(engine, call, _dims(engine, source), _dims(engine, out), after.offset - before.offset)


@register_rule(PART)
def part(engine: Engine, call: Call) -> Value:
    """Rows picked from a tensor after a change of its layout."""
    return _shown(engine, call, *call.args["shown"])


def _shown(engine: Engine, call: Call, there: Sequence[Dim], view: Sequence[Dim], offset: int) -> Value:
    """The tensor that a view shows; if the first of its factors are cut, so is the axis before them all."""
    x, shape = engine.value(call.args["self"]), [n for n, _ in view]
    if 0 in shape or 0 in x.shape:
        return Value(tuple(flat(n, x.zero) for n in shape), x.zero)
    try:
        factors = factors_of(there, view, offset)
    except Unreadable:
        return _fixed(engine, call, [x])
    axes: list[Axis] = [(Flat(n, x.zero),) if n > 1 else () for n in shape]
    parts: dict[int, list[Axis]] = {}
    via: tuple[Pick, ...] = ()
    for i, own in by_key((f.axis, f) for f in factors).items():
        if at := cut_at(own):
            before, first, after = own[: at - 1], own[at - 1], own[at:]
            inner = prod(f.size for f in after)
            *outer, axis = engine.split(x.axes[i], [*(f.size for f in before), first.size * inner])
            some = rows(engine, axis, first.start * inner, (first.start + first.count) * inner)
            own = [*before, replace(first, size=first.count, start=0), *after]
            pieces = [*outer, *engine.split(some, [first.count, *(f.size for f in after)])]
        else:
            pieces = engine.split(x.axes[i], [f.size for f in own])
        for piece, f in zip(pieces, own):
            if f.shown < 0:
                via += pick(engine, piece, f.start)
            else:
                part = piece if f.count == f.size else rows(engine, piece, f.start, f.start + f.count)
                parts.setdefault(f.shown, []).append(part)
    for j, found in parts.items():
        axes[j] = engine.merged(found)
    return Value(tuple(axes), x.zero, via=via)


@register_rule("intertwine::written_into", *aten("slice_scatter select_scatter as_strided_scatter"))
def written_into(engine: Engine, call: Call) -> Value:
    """A part of a tensor overwritten by another: along one axis it lies beside the rest, elsewhere it matches it."""
    source, written = call.args["self"], call.args["src"]
    x, y = engine.value(source), engine.value(written)
    if engine.dtype(source) != engine.dtype(written):
        return _fixed(engine, call, [x, y])
    before, part = engine.program.values[source.id], engine.program.values[written.id]
    if 0 in part.shape:
        return x
    there, view, offset = _dims(engine, source), _dims(engine, written), part.offset - before.offset
    if call.op == "aten::as_strided_scatter":
        given = call.args["storage_offset"]
        view = list(zip(part.shape, call.args["stride"], strict=True))
        offset = 0 if given is None else given - before.offset
    elif call.op != "intertwine::written_into":  # the part that slice or select shows
        trial = torch.empty(before.shape, device="meta")
        settings = {name: value for name, value in call.args.items() if name not in ("self", "src")}
        shown = getattr(torch.ops.aten, call.op.removeprefix("aten::").removesuffix("_scatter"))(trial, **settings)
        there, view = (list(zip(x.shape, x.stride(), strict=True)) for x in (trial, shown))
        offset = shown.storage_offset()
    try:
        factors = factors_of(there, view, offset)
    except Unreadable:
        return _fixed(engine, call, [x, y])
    if any(n > 1 and not s for n, s in (*view, *there)):
        return _fixed(engine, call, [x, y])  # many units in one place
    written_to = sorted((f for f in factors if f.shown >= 0), key=lambda f: f.shown)
    pieces = _cut(engine, y.axes, ((f.shown, f.count) for f in written_to))
    piece = {(f.axis, f.stride): axis for f, axis in zip(written_to, pieces)}
    alone = sum(f.count < f.size for f in factors) == 1
    made: dict[int, list[Axis]] = {}
    for axis, f in zip(_cut(engine, x.axes, ((f.axis, f.size) for f in factors)), factors):
        own = piece.get((f.axis, f.stride), ())
        made.setdefault(f.axis, []).append(_overwritten(engine, axis, f.start, f.start + f.count, own, alone))
    axes = (engine.merged(made[i]) if i in made else axis for i, axis in enumerate(x.axes))
    return Value(tuple(axes), x.zero and y.zero)


def _overwritten(engine: Engine, axis: Axis, start: int, stop: int, piece: Axis, alone: bool) -> Axis:
    """One axis of a tensor whose rows ``start:stop`` are overwritten; other axes are cut too unless ``alone``."""
    size = axis_size(axis)
    if stop - start == size:
        return engine.equal(axis, piece) if axis else piece
    if not alone and stop - start == 1:
        pick(engine, axis, start)
    low, high = engine.slice(axis, 0, start), engine.slice(axis, stop, size)
    if not alone:
        piece = engine.equal(engine.slice(axis, start, stop), piece)
    return segments([engine.pool.resolve(a) for a in (low, piece, high)])


def _fixed(engine: Engine, call: Call, values: Iterable[Value]) -> Value:
    why = f"memory seen in another shape at {call.where}"
    for value in values:
        engine.fix_all(value.axes, why)
    return opaque(engine, call.outputs[0], why, 0)


def _whole_rows(engine: Engine, shape: tuple[int, ...], mask: Value) -> int:
    """Number of leading axes along which a mask chooses; along later axes it chooses all or nothing."""
    axes = ((),) * (len(shape) - len(mask.axes)) + mask.axes
    first = len(shape)
    while first and all(isinstance(f, Flat) for f in axes[first - 1]):
        first -= 1
    return first


@register_rule("aten::masked_scatter")
def masked_scatter(engine: Engine, call: Call) -> Any:
    """Rows of one tensor written, in order, where a mask says: their inner units are those of both tensors."""
    x, mask, source = (engine.value(call.args[name]) for name in ("self", "mask", "source"))
    why = f"rows chosen by a mask at {call.where}"
    first = _whole_rows(engine, x.shape, mask)
    # the longest run of trailing axes that both tensors share; else the numbers are cut into rows anew
    fits = [i for i in range(first, len(x.shape)) if source.shape[-(len(x.shape) - i) :] == x.shape[i:]]
    first = fits[0] if fits else first
    inner = x.shape[first:]
    rows, rest = divmod(prod(source.shape), prod(inner))
    if fits:
        whole = len(source.shape) - len(inner)
        taken, last = tuple(f for axis in source.axes[:whole] for f in axis), list(source.axes[whole:])
    elif rows and not rest:
        taken, *last = engine.split(engine.merged(source.axes), (rows, *inner))
    else:
        engine.fix_all((*x.axes, *mask.axes, *source.axes), why)
        return opaque(engine, call.outputs[0], why, 0)
    engine.fix_all((*mask.axes, taken), why)
    places = [_written(engine, axis, why, i) for i, axis in enumerate(x.axes[:first])]
    written = added(engine, Value(x.axes[first:], x.zero), Value(tuple(last), source.zero))
    return Value((*places, *written.axes), x.zero and source.zero)


def _written(engine: Engine, axis: Axis, why: str, tag: int) -> Axis:
    """An axis in which some units were written: they are fixed, and so are the others beside them."""
    engine.fix(axis, why)
    return bare(axis) if plain(axis) else engine.fresh(axis_size(axis), why, tag)


@register_rule("aten::masked_select")
def masked_select(engine: Engine, call: Call) -> Any:
    """Entries that a mask selects, in sequence: whole rows keep their units."""
    x, mask = engine.value(call.args["self"]), engine.value(call.args["mask"])
    first = _whole_rows(engine, x.shape, mask)
    inner = max(prod(x.shape[first:]), 1)
    why = f"rows chosen by a mask at {call.where}"
    engine.fix_all((*x.axes[:first], *mask.axes), why)
    along = engine.merged((engine.fresh(engine.made(call)[0] // inner, why), *x.axes[first:]))
    return Value((along,), x.zero)


@register_rule("aten::index_put", "aten::_unsafe_index_put")
def index_put(engine: Engine, call: Call) -> Value:
    """Rows written at given positions: the indexed axes are fixed, the others are those of both tensors."""
    x, written = engine.value(call.args["self"]), engine.value(call.args["values"])
    picks = list(call.args["indices"])
    if (inverse := _inverse(engine, call, picks)) is not None:
        return inverse
    why = f"rows written at {call.where}"
    given = [engine.value(pick) for pick in picks if isinstance(pick, Ref)]
    engine.drop(x, written, *given)
    for value in given:
        engine.fix_all(value.axes, why)
    indexed, first, count = replaced_axes(engine, picks)
    if not indexed:  # a mask without axes
        return unknown(engine, call)[0]
    kept = [a for i, a in enumerate(x.axes) if i not in indexed]
    values = ((),) * (len(kept) + count - len(written.axes)) + written.axes
    engine.fix_all(values[first : first + count], why)
    beside = Value((*values[:first], *values[first + count :]), written.zero)
    others = iter(added(engine, Value(tuple(kept), x.zero), beside).axes)
    axes = (_written(engine, axis, why, i) if i in indexed else next(others) for i, axis in enumerate(x.axes))
    return Value(tuple(axes), x.zero and written.zero)


def _inverse(engine: Engine, call: Call, picks: list[Any]) -> Value | None:
    """``y[perm] = arange``: the inverse of a permutation, which names the positions of its rows."""
    values = engine.program.values[call.args["values"].id]
    if len(picks) != 1 or call.args.get("accumulate") or values.data is None or values.data.ndim != 1:
        return None
    names, rows = engine.value(picks[0]).names, engine.value(picks[0]).axes
    if names is None or not names.all or engine.value(call.args["self"]).shape != values.shape or len(rows) != 1:
        return None
    if not torch.equal(values.data, torch.arange(len(values.data), dtype=values.dtype)):
        return None
    return Value((bare(engine.pool.resolve(names.of)),), names=Names(rows[0], all=True))


@register_rule("aten::scatter")
def scatter(engine: Engine, call: Call) -> Any:
    """Entries written along one axis, which is fixed unless the index names its units: one-hot codes, gates."""
    x, index, source = engine.value(call.args["self"]), engine.value(call.args["index"]), call.args.get("src")
    value = call.args.get("value")
    y = engine.value(source) if isinstance(source, Ref) else Value(((),) * len(x.axes), zero=value == 0)
    dim = call.args["dim"] % max(len(x.axes), 1)
    same = all(x.shape[i] == n for i, n in enumerate(index.shape) if i != dim)
    engine.drop(x, y)
    if call.args.get("reduce") is not None or not same or (y.axes != ((),) * len(x.axes) and y.shape != index.shape):
        return unknown(engine, call)
    why = f"entries written at {call.where}"
    units = named(engine, call.args["index"], x.shape[dim])
    flat = all(isinstance(f, Flat) for f in x.axes[dim])
    beside = lambda v: Value(tuple(a for i, a in enumerate(v.axes) if i != dim), v.zero)
    axes = list(added(engine, beside(x), beside(y)).axes)
    axes = [follow(engine, axis, i) for axis, i in zip(axes, beside(index).axes)]
    for axis in (y.axes[dim], index.axes[dim]):
        engine.rigid(axis, why)
    engine.equal(y.axes[dim], index.axes[dim])  # entry by entry
    if units is not None and flat:
        along = bare(units)
    else:
        engine.drop(index)
        engine.fix_all((x.axes[dim], y.axes[dim], index.axes[dim]), why)
        along = engine.fresh(x.shape[dim], why)
    axes.insert(dim, along)
    return Value(tuple(axes), x.zero and y.zero)


@register_rule(*aten("scatter_add scatter_reduce index_add index_copy index_reduce"))
def reduced_into(engine: Engine, call: Call) -> Value:
    """Entries reduced into, or rows put at, positions of an axis, which is fixed; elsewhere units share one index."""
    rows = "source" in call.args
    there, given, index = (engine.value(call.args[name]) for name in ("self", "source" if rows else "src", "index"))
    dim = call.args["dim"] % max(len(there.axes), 1)
    why = f"{'rows' if rows else 'entries'} added up by an index at {call.where}"
    picked = [next(iter(index.axes), ()) if i == dim else () for i in range(len(there.axes))] if rows else index.axes
    sizes = zip(there.shape, given.shape, given.shape if rows else index.shape)
    alike = [len({*three}) == 1 and all(isinstance(f, Flat) for f in picks) for three, picks in zip(sizes, picked)]
    kept = [i for i, same in enumerate(alike) if same and i != dim]
    engine.fix_all((picks for i, picks in enumerate(picked) if i not in kept), why)
    return _reduced(engine, there, given, kept, why, call.args.get("reduce", "sum"))


@register_rule("aten::segment_reduce")
def segment_reduce(engine: Engine, call: Call) -> Value:
    """Rows reduced run by run: their axis is fixed, and so are axes along which the runs differ."""
    x = engine.value(call.args["data"])
    axis = call.args.get("axis", 0) % len(x.axes)
    why = f"runs of rows at {call.where}"
    kept = [i for i in range(len(x.axes)) if i != axis]
    for name in ("lengths", "indices", "offsets"):
        if isinstance(call.args.get(name), Ref):
            for i, runs in enumerate(engine.value(call.args[name]).axes):
                engine.fix(runs, why)
                kept = [k for k in kept if k != i or all(isinstance(f, Flat) for f in runs)]
    start = Value(tuple(flat(n, True) for n in engine.made(call)), zero=True)
    if call.args.get("initial") not in (None, 0):
        start = Value(tuple(forget_zeros(a) for a in start.axes))
    return _reduced(engine, start, x, kept, why, call.args["reduce"])


def _reduced(engine: Engine, there: Value, given: Value, kept: Sequence[int], why: str, how: Any) -> Value:
    """The result of reducing ``given`` into ``there``: unchanged along the axes ``kept``; the others are fixed."""
    axes: list[Axis] = []
    for i, (x, y) in enumerate(zip(there.axes, given.axes)):
        if i not in kept:
            engine.fix_all((x, y), why)
            axes.append(engine.fresh(there.shape[i], why, i))
            continue
        for axis in (x, y) if how not in ("sum", "mean") else ():
            engine.rigid(axis) if how == "prod" else engine.homogeneous(axis)
        axes.append(engine.equal(x, y))
    return Value(tuple(axes), there.zero and given.zero)
