"""Routing rows to experts: counting who chose whom, products by groups of rows, and writing at named places.

Rows added up, or reduced otherwise, at places that an index names: sums over neighbours, bags, segments.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from ....programs import Call, Ref
from ..axis_terms import Axis, Flat, Names, Pick, Slot, Value, axis_size, bare, flat, forget_zeros, slots
from ..engine import Engine
from .elementwise import added
from .indexing import follow
from .registry import opaque, register_rule, unknown
from .unit_indices import drop, joined, named


@register_rule("aten::histc")
def count(engine: Engine, call: Call) -> Value:
    """Numbers of rows that named each unit: the counts move with the units."""
    x, bins = engine.value(call.args["self"]), call.args["bins"]
    units = named(engine, call.args["self"], bins)
    if units is None or (call.args["min"], call.args["max"]) != (0, bins - 1):
        for axis in x.axes:
            engine.rigid(axis)
        drop(engine, x.names)
        return Value((engine.fresh(bins, f"bins of {call.where}"),))
    return Value((bare(units),), names=Names(units, "counts", x.axes[0] if len(x.axes) == 1 else ()))


@register_rule("aten::_grouped_mm", "transformers::grouped_mm_fallback")
def grouped(engine: Engine, call: Call) -> Any:
    """Rows in groups, each group times a matrix of its own, the groups given by where they end."""
    x = engine.value(call.args["self" if "self" in call.args else "input"])
    w = engine.value(call.args["mat2" if "mat2" in call.args else "weight"])
    ends = call.args.get("offs")
    for value in (x, w):
        drop(engine, value.names)
    if not isinstance(ends, Ref) or len(x.axes) != 2 or len(w.axes) != 3 or call.args.get("bias") is not None:
        return unknown(engine, call)
    rows, of, label = _groups(engine, call, x, w, ends)
    engine.contracted(x.axes[1], w.axes[1])
    origin = Pick(label, rows, of)
    engine.met.append((*x.axes, *w.axes[1:], of))
    return Value((rows, w.axes[2]), x.zero or w.zero, via=joined(engine, [x.via, (origin,)]))


def _groups(engine: Engine, call: Call, x: Value, w: Value, ends: Ref) -> tuple[Axis, Axis, Any]:
    """The rows, the matrices that they are multiplied by, and by what these were chosen."""
    names = engine.value(ends).names
    if names is not None and names.kind == "offsets" and axis_size(names.of) == w.shape[0]:
        order = engine.pool.resolve(names.rows)
        node = engine.pool.node(order[0].space) if len(order) == 1 and isinstance(order[0], Slot) else None
        if node is not None and node.sorted is not None and _spaces(order) == _spaces(x.axes[0]):
            of = engine.rigid(engine.equal(w.axes[0], engine.pool.resolve(names.of))) if w.axes[0] else ()
            return x.axes[0], bare(of), ("order", node.sorted)
    drop(engine, names)
    why = f"groups of rows in {call.where}"
    engine.fix_all(engine.value(ends).axes, why)
    of = engine.hold(engine.rigid(w.axes[0], why), why)
    rows = engine.hold(engine.rigid(x.axes[0], why), why)
    return rows, bare(of), ("ends", ends.id)


def _spaces(axis: Axis) -> list[int]:
    return [slot.space for slot in slots(axis)]


@register_rule("aten::index_put", "aten::_unsafe_index_put")
def index_put(engine: Engine, call: Call) -> Value:
    """Rows written at given places: the indexed axes are fixed, the others are those of both tensors."""
    x, written = engine.value(call.args["self"]), engine.value(call.args["values"])
    picks, out = list(call.args["indices"]), call.outputs[0]
    if (inverse := _inverse(engine, call, picks)) is not None:
        return inverse
    why = f"rows written at {call.where}"
    drop(engine, x.names)
    drop(engine, written.names)
    for pick in picks:
        if isinstance(pick, Ref):
            drop(engine, engine.value(pick).names)
            engine.fix_all(engine.value(pick).axes, why)
    indexed, first, count = _layout(engine, picks)
    if not indexed:  # a mask without axes
        return unknown(engine, call)[0]
    kept = [a for i, a in enumerate(x.axes) if i not in indexed]
    rank = len(kept) + count
    values = ((),) * (rank - len(written.axes)) + written.axes
    engine.fix_all(values[first : first + count], why)
    beside = (*values[:first], *values[first + count :])
    joined = list(added(engine, Value(tuple(kept), x.zero), Value(beside, written.zero)).axes)
    axes = []
    for i, (axis, size) in enumerate(zip(x.axes, x.shape)):
        if i not in indexed:
            axes.append(joined.pop(0))
            continue
        engine.fix(axis, why)
        moving = axis and all(isinstance(f, Slot) for f in axis)
        axes.append(bare(axis) if moving else engine.fresh(size, why, i))
    return Value(tuple(axes), x.zero and written.zero) if out is not None else Value(())


def _layout(engine: Engine, picks: list[Any]) -> tuple[list[int], int, int]:
    """Axes that an index replaces, where its own axes stand among those that are left, and how many they are."""
    indexed: list[int] = []
    count = at = 0
    for pick in picks:
        taken = 1
        if isinstance(pick, Ref):
            mask = engine.dtype(pick) in (torch.bool, torch.uint8)
            rank = len(engine.value(pick).axes)
            taken = rank if mask else 1
            count = max(count, 1 if mask else rank)
            if not taken:
                return [], 0, 0
            indexed += range(at, at + taken)
        at += taken
    adjacent = all(b == a + 1 for a, b in pairwise(indexed))
    return indexed, indexed[0] if adjacent and indexed else 0, count


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
        drop(engine, names)
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
        drop(engine, index.names)
        engine.fix_all((x.axes[dim], y.axes[dim], index.axes[dim]), why)
        along = engine.fresh(x.shape[dim], why)
    axes.insert(dim, along)
    return Value(tuple(axes), x.zero and y.zero)


@register_rule("aten::nonzero", "aten::nonzero_numpy", "aten::bincount", "aten::unique_consecutive")
def looked_at(engine: Engine, call: Call) -> list[Value]:
    """Places, extremes or counts of what is fixed: nothing of them moves."""
    why = f"numbers taken by {call.where}"
    engine.fix_read(call.inputs, why)
    return [opaque(engine, ref, why, i) for i, ref in enumerate(call.outputs)]


@register_rule("aten::scatter_add", "aten::scatter_reduce")
def scatter_reduced(engine: Engine, call: Call) -> Value:
    """Entries reduced along one axis, which is fixed; along others the index must be one for all units."""
    there, given, index = (engine.value(call.args[name]) for name in ("self", "src", "index"))
    dim = call.args["dim"] % max(len(there.axes), 1)
    why = f"entries added up by an index at {call.where}"
    kept = [
        i
        for i, (x, y, picks) in enumerate(zip(there.axes, given.axes, index.axes))
        if i != dim and there.shape[i] == given.shape[i] == index.shape[i] and all(isinstance(f, Flat) for f in picks)
    ]
    for i, picks in enumerate(index.axes):
        if i not in kept:
            engine.fix(picks, why)
    return _reduced(engine, there, given, kept, why, call.args.get("reduce", "sum"))


@register_rule("aten::index_add", "aten::index_copy", "aten::index_reduce")
def index_add(engine: Engine, call: Call) -> Value:
    """Rows added (or written, or reduced) into the rows that an index names, which are fixed."""
    there, given = engine.value(call.args["self"]), engine.value(call.args["source"])
    dim = call.args["dim"] % max(len(there.axes), 1)
    why = f"rows added up by an index at {call.where}"
    engine.fix_all(engine.value(call.args["index"]).axes, why)
    kept = [i for i in range(len(there.axes)) if i != dim]
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
        if i in kept:
            if how not in ("sum", "mean"):
                for axis in (x, y):
                    engine.homogeneous(axis)
                    engine.no_scale(axis) if how == "prod" else None
            axes.append(engine.equal(x, y))
        else:
            engine.fix(x, why)
            engine.fix(y, why)
            axes.append(engine.fresh(there.shape[i], why, i))
    return Value(tuple(axes), there.zero and given.zero)
