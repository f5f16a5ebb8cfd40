"""Writing rows: at places that an index or a mask names, and back from there.

Rows added up, or reduced otherwise, at such places: sums over neighbours, segments.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ....programs import Call, Ref
from ....programs.operations import aten
from ..axis_terms import Axis, Flat, Names, Value, axis_size, bare, flat, forget_zeros
from ..engine import Engine
from .elementwise import added
from .indexing import follow, replaced_axes
from .registry import opaque, register_rule, unknown
from .unit_indices import named, plain


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
