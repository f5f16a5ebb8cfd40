"""Rows added up, or reduced otherwise, at places that an index names: sums over neighbours, bags, segments."""

from collections.abc import Sequence
from typing import Any

from .....programs import Call, Ref
from ...axis_terms import Axis, Flat, Value, flat, forget_zeros
from ...engine import Engine
from ..registry import register_rule


@register_rule("aten::scatter_add", "aten::scatter_reduce")
def scatter(engine: Engine, call: Call) -> Value:
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


@register_rule("aten::index_fill")
def index_fill(engine: Engine, call: Call) -> Value:
    """Rows that an index names set to one number."""
    x, number = engine.value(call.args["self"]), call.args["value"]
    dim = call.args["dim"] % max(len(x.axes), 1)
    why = f"rows filled by an index at {call.where}"
    engine.fix_all(engine.value(call.args["index"]).axes, why)
    zero = engine.value(number).zero if isinstance(number, Ref) else number == 0
    axes: list[Axis] = []
    for i, axis in enumerate(x.axes):
        if i == dim:
            engine.fix(axis, why)
            axes.append(engine.fresh(x.shape[i], why))
        else:
            axes.append(axis if zero else forget_zeros(engine.rigid(axis, why)))
    return Value(tuple(axes), x.zero and zero)


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
