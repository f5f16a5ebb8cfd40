"""Views by strides, and writes into parts of a tensor: read as splits, slices and single units of its axes.

The memory of a dense tensor is a product of its axes, outermost stride first. A view, or the part that a write covers,
takes runs of that product: whole factors, ranges of one, or single units. What cannot be read so is fixed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch

from ....programs import Call, Ref
from ....programs.operations import aten
from ..axis_terms import Axis, Flat, Pick, Value, axis_size, flat, segments
from ..engine import Engine
from .registry import opaque, register_rule
from .shapes import pick, rows

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
