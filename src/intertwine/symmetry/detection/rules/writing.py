"""Writes and views by strides: rows put at places that an index or a mask names, parts of a tensor overwritten.

The memory of a dense tensor is a product of its axes, outermost stride first. A view, or the part that a write covers,
takes runs of that product: whole factors, ranges of one, or single units. What cannot be read so is fixed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch

from ....programs import Call, Ref
from ....programs.operations import aten
from ..axis_terms import Axis, Flat, Names, Pick, Value, axis_size, bare, flat, forget_zeros, segments
from ..engine import Engine
from .elementwise import added
from .indexing import follow, replaced_axes
from .registry import opaque, register_rule, unknown
from .shapes import pick, rows
from .unit_indices import named, plain

Dim = tuple[int, int]  # size and stride


class _Unreadable(Exception):
    """A view that no product of the axes describes."""


@dataclass(frozen=True)
class _Run:
    """Neighbouring dimensions of a tensor, which lie in memory as one axis."""

    dims: tuple[int, ...]  # Dimensions, outermost first
    sizes: tuple[int, ...]  # Sizes of the factors that the view tells apart, outermost first
    # For each factor the first unit shown, how many are, and the dimension of the view that shows them: ``None`` for a
    # single unit. Neighbouring factors with one dimension are shown together.
    taken: tuple[tuple[int, int, int | None], ...]


def _runs(there: Sequence[Dim], view: Sequence[Dim], offset: int) -> list[_Run]:
    """The dimensions of a view, which begins at ``offset``, in terms of the axes of its tensor."""
    dims = sorted((i for i, (n, s) in enumerate(there) if n > 1 and s), key=lambda i: -there[i][1])
    shown = sorted((j for j, (n, s) in enumerate(view) if n > 1 and s), key=lambda j: -view[j][1])
    if any(there[a][1] < there[b][0] * there[b][1] for a, b in pairwise(dims)) or offset < 0:
        raise _Unreadable
    groups: list[list[int]] = []
    for i in dims:
        if groups and there[groups[-1][-1]][1] == there[i][0] * there[i][1]:
            groups[-1].append(i)
        else:
            groups.append([i])
    found = []
    for group in groups:
        unit, length = there[group[-1]][1], prod(there[i][0] for i in group)
        own = [j for j in shown if unit <= view[j][1] < unit * length]
        shown = [j for j in shown if j not in own]
        start, offset = divmod(offset, unit)
        steps = [view[j][1] for j in own] + [there[i][1] for i in group]
        found.append(_run(group, length, steps, [(j, view[j][0], view[j][1]) for j in own], unit, start))
    if shown or offset:
        raise _Unreadable
    return found


def _run(
    group: list[int], length: int, steps: list[int], own: list[tuple[int, int, int]], unit: int, start: int
) -> _Run:
    if any(step % unit for step in steps) or start >= length:
        raise _Unreadable
    bounds = sorted({*(step // unit for step in steps), length}, reverse=True)
    if any(high % low for high, low in pairwise(bounds)):
        raise _Unreadable
    sizes = tuple(high // low for high, low in pairwise(bounds))
    at = {}  # factor -> first unit
    for k, low in enumerate(bounds[1:]):
        at[k], start = divmod(start, low)
    taken: list[tuple[int, int, int | None]] = [(at[k], 1, None) for k in range(len(sizes))]
    used: set[int] = set()
    for j, size, stride in own:
        k = bounds.index(stride // unit) - 1
        left = size
        while left > 1:
            if k < 0 or k in used:
                raise _Unreadable
            used.add(k)
            count = min(left, sizes[k])
            if at[k] + count > sizes[k] or left % count or (left > count and at[k]):
                raise _Unreadable
            taken[k] = (at[k], count, j)
            left, k = left // count, k - 1
    return _Run(tuple(group), sizes, tuple(taken))


def _dims(engine: Engine, ref: Ref) -> list[Dim]:
    value = engine.program.values[ref.id]
    return list(zip(value.shape, value.stride, strict=True))


def _factors(engine: Engine, x: Value, run: _Run) -> list[Axis]:
    return engine.split(engine.pool.resolve(tuple(f for i in run.dims for f in x.axes[i])), run.sizes)


@register_rule("aten::as_strided", "intertwine::part_of_write")
def as_strided(engine: Engine, call: Call) -> Value:
    """A view by strides: axes in another order, slices and single units of them."""
    source, out = call.args["self"], call.outputs[0]
    x = engine.value(source)
    if out is None or engine.dtype(source) != engine.dtype(out):
        return _fixed(engine, call, [x])
    after = engine.program.values[out.id]
    if 0 in after.shape or 0 in x.shape:
        return Value(tuple(flat(n, x.zero) for n in after.shape), x.zero)
    try:
        runs = _runs(_dims(engine, source), _dims(engine, out), after.offset - engine.program.values[source.id].offset)
    except _Unreadable:
        return _fixed(engine, call, [x])
    axes: list[Axis] = [(Flat(n, x.zero),) if n > 1 else () for n in after.shape]
    parts: dict[int, list[Axis]] = {}
    via: tuple[Pick, ...] = ()
    for run in runs:
        for axis, size, (start, count, j) in zip(_factors(engine, x, run), run.sizes, run.taken):
            if j is None:
                via += pick(engine, axis, start)
            else:
                part = axis if count == size else rows(engine, axis, start, start + count)
                parts.setdefault(j, []).append(part)
    for j, found in parts.items():
        axes[j] = engine.pool.resolve(tuple(f for part in found for f in part))
    return Value(tuple(axes), x.zero, via=via)


@register_rule("intertwine::written_into", *aten("slice_scatter select_scatter as_strided_scatter"))
def written_into(engine: Engine, call: Call) -> Value:
    """A part of a tensor overwritten by another tensor: along one axis beside what stays, elsewhere like it."""
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
    elif call.op != "intertwine::written_into":  # the part is what slice or select show
        trial = torch.empty(before.shape, device="meta")
        settings = {name: value for name, value in call.args.items() if name not in ("self", "src")}
        shown = getattr(torch.ops.aten, call.op.removeprefix("aten::").removesuffix("_scatter"))(trial, **settings)
        there, view = (list(zip(x.shape, x.stride(), strict=True)) for x in (trial, shown))
        offset = shown.storage_offset()
    try:
        runs = _runs(there, view, offset)
    except _Unreadable:
        return _fixed(engine, call, [x, y])
    if any(n > 1 and not s for n, s in (*view, *there)):
        return _fixed(engine, call, [x, y])  # many units in one place
    axes: list[Axis] = list(x.axes)
    pieces = _pieces(engine, y, runs)
    cuts = sum(count < size for run in runs for size, (_, count, _) in zip(run.sizes, run.taken))
    for r, run in enumerate(runs):
        factors = [
            _overwritten(engine, axis, start, start + count, pieces[r, k], alone=cuts == 1)
            for k, (axis, (start, count, _)) in enumerate(zip(_factors(engine, x, run), run.taken))
        ]
        whole = engine.pool.resolve(tuple(f for axis in factors for f in axis))
        for i, axis in zip(run.dims, engine.split(whole, [x.shape[i] for i in run.dims])):
            axes[i] = axis
    return Value(tuple(axes), x.zero and y.zero)


def _pieces(engine: Engine, y: Value, runs: Iterable[_Run]) -> dict[tuple[int, int], Axis]:
    """The written axes along every factor of the tensor that they are written into."""
    covered: dict[int, list[tuple[int, int, int]]] = {}  # dimension of the view -> its factors, outermost first
    found: dict[tuple[int, int], Axis] = {}
    for r, run in enumerate(runs):
        for k, (_, count, j) in enumerate(run.taken):
            found[r, k] = ()
            if j is not None:
                covered.setdefault(j, []).append((r, k, count))
    for j, factors in covered.items():
        for (r, k, _), axis in zip(factors, engine.split(y.axes[j], [count for _, _, count in factors])):
            found[r, k] = axis
    return found


def _overwritten(engine: Engine, axis: Axis, start: int, stop: int, piece: Axis, alone: bool) -> Axis:
    """One axis of a tensor of which the rows ``start:stop`` are overwritten; others are too unless ``alone``."""
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
    """Number of first axes that a mask chooses from; along those after them it chooses all or nothing."""
    axes = ((),) * (len(shape) - len(mask.axes)) + mask.axes
    first = len(shape)
    while first and all(isinstance(f, Flat) for f in axes[first - 1]):
        first -= 1
    return first


@register_rule("aten::masked_scatter")
def masked_scatter(engine: Engine, call: Call) -> Any:
    """Rows of one tensor put, in their order, where a mask says: the units inside them are those of both tensors."""
    x, mask, source = (engine.value(call.args[name]) for name in ("self", "mask", "source"))
    why = f"rows chosen by a mask at {call.where}"
    first = _whole_rows(engine, x.shape, mask)
    # the longest run of last axes that both tensors have; else the numbers run on, and are cut into rows
    fits = [i for i in range(first, len(x.shape)) if source.shape[-(len(x.shape) - i) :] == x.shape[i:]]
    first = fits[0] if fits else first
    inner = x.shape[first:]
    rows, rest = divmod(prod(source.shape), prod(inner))
    if fits:
        whole = len(source.shape) - len(inner)
        taken, last = tuple(f for axis in source.axes[:whole] for f in axis), list(source.axes[whole:])
    elif rows and not rest:
        numbers = engine.pool.resolve(tuple(f for axis in source.axes for f in axis))
        taken, *last = engine.split(numbers, (rows, *inner))
    else:
        engine.fix_all((*x.axes, *mask.axes, *source.axes), why)
        return opaque(engine, call.outputs[0], why, 0)
    engine.fix_all((*mask.axes, taken), why)
    places = [_written(engine, axis, why, i) for i, axis in enumerate(x.axes[:first])]
    written = added(engine, Value(x.axes[first:], x.zero), Value(tuple(last), source.zero))
    return Value((*places, *written.axes), x.zero and source.zero)


def _written(engine: Engine, axis: Axis, why: str, tag: int) -> Axis:
    """An axis some of whose units were written: they are fixed, and so are the others beside them."""
    engine.fix(axis, why)
    return bare(axis) if plain(axis) else engine.fresh(axis_size(axis), why, tag)


@register_rule("aten::masked_select")
def masked_select(engine: Engine, call: Call) -> Any:
    """Entries that a mask chooses, one after the other: whole rows keep their units."""
    x, mask = engine.value(call.args["self"]), engine.value(call.args["mask"])
    first = _whole_rows(engine, x.shape, mask)
    inner = max(prod(x.shape[first:]), 1)
    why = f"rows chosen by a mask at {call.where}"
    engine.fix_all((*x.axes[:first], *mask.axes), why)
    along = (*engine.fresh(engine.made(call)[0] // inner, why), *(f for axis in x.axes[first:] for f in axis))
    return Value((engine.pool.resolve(along),), x.zero)


@register_rule("aten::index_put", "aten::_unsafe_index_put")
def index_put(engine: Engine, call: Call) -> Value:
    """Rows written at given places: the indexed axes are fixed, the others are those of both tensors."""
    x, written = engine.value(call.args["self"]), engine.value(call.args["values"])
    picks = list(call.args["indices"])
    if (inverse := _inverse(engine, call, picks)) is not None:
        return inverse
    why = f"rows written at {call.where}"
    given = [engine.value(pick) for pick in picks if isinstance(pick, Ref)]
    for value in (x, written, *given):
        engine.drop(value.names)
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
    """``y[perm] = arange``: the inverse of a permutation, which names the places of its rows."""
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
    for names in (x.names, y.names):
        engine.drop(names)
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
    if units is not None and flat:
        along = bare(units)
    else:
        engine.drop(index.names)
        engine.fix_all((x.axes[dim], y.axes[dim], index.axes[dim]), why)
        along = engine.fresh(x.shape[dim], why)
    axes.insert(dim, along)
    return Value(tuple(axes), x.zero and y.zero)


@register_rule(*aten("scatter_add scatter_reduce index_add index_copy index_reduce"))
def reduced_into(engine: Engine, call: Call) -> Value:
    """Entries reduced into, or rows put at, places of an axis, which is fixed; elsewhere one index serves all units."""
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
    """Rows reduced run by run: their axis is fixed, and axes along which the runs differ."""
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
    """The result of reducing ``given`` into ``there``: the same along the axes ``kept``, the others are fixed."""
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
