"""Rules of shape operations: views, transpositions, expansions, concatenations and slices."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ....programs import Call, Ref
from ....programs.operations import COPIES, RESHAPES, SINGLES, TRANSPOSES
from ..axis_terms import (
    Axis,
    Flat,
    Pick,
    Segments,
    Slot,
    Value,
    axis_size,
    flat,
    forget_zeros,
    interleaved,
    segments,
)
from ..engine import Engine
from .elementwise import cast
from .registry import opaque, register_rule, relaid, relaid_along
from .unit_indices import is_state

_MOVES = TRANSPOSES | SINGLES
_VIEWS = RESHAPES - _MOVES
IN_TURN = "intertwine::in_turn"


@register_rule(*COPIES, "aten::lift_fresh_copy", "aten::native_dropout", "aten::dropout")
def same(engine: Engine, call: Call) -> Value:
    """Copies and casts."""
    return cast(engine, call.inputs[0], call.outputs[0])


@register_rule(*_VIEWS, "aten::_reshape_alias")
def view(engine: Engine, call: Call) -> Any:
    """Views: axes are read in row-major order and split anew."""
    out = call.outputs[0]
    x = engine.value(call.args["self"])
    if out is None or engine.dtype(call.args["self"]) != engine.dtype(out):
        why = f"bits read as another type at {call.where}"
        engine.fix_all(x.axes, why)
        return opaque(engine, out, why, 0)
    return _reshaped(engine, x, engine.made(call))


def _reshaped(engine: Engine, x: Value, shape: Sequence[int]) -> Value:
    """The value of ``x`` viewed with another shape."""
    if prod(shape) == 0:
        return Value(tuple(flat(n, True) for n in shape), x.zero)
    axes: list[Axis] = []
    i = j = 0
    while j < len(shape):
        # the shortest runs of old axes i... and new axes j... of equal length
        start, first, old, new = i, j, 1, shape[j]
        j += 1
        while old != new:
            if old < new:
                old, i = old * x.shape[i], i + 1
            else:
                new, j = new * shape[j], j + 1
        group = engine.merged(x.axes[start:i])
        sizes = shape[first:j]
        axes += [group] if len(sizes) == 1 else engine.split(group, sizes)
    return Value(tuple(axes), x.zero)


@register_rule(*_MOVES)
def moved(engine: Engine, call: Call) -> Value:
    """Axes in another order, with or without some of size one, as probed by the call's result on other sizes."""
    x = engine.value(call.args["self"])
    settings = {name: value for name, value in call.args.items() if name != "self"}
    trial = torch.empty([1 if n == 1 else i + 2 for i, n in enumerate(x.shape)], device="meta")
    shape = call.func(trial, **settings).shape
    return Value(tuple(x.axes[n - 2] if n > 1 else () for n in shape), x.zero)


@register_rule("aten::expand")
def expand(engine: Engine, call: Call) -> Value:
    """Axes of size one, expanded by repetition."""
    x, shape = engine.value(call.args["self"]), engine.made(call)
    axes = ((),) * (len(shape) - len(x.axes)) + x.axes
    return Value(tuple(a or flat(n, x.zero) for a, n in zip(axes, shape)), x.zero)


@register_rule("aten::repeat")
def repeat(engine: Engine, call: Call) -> Value:
    """Whole axes repeated."""
    x, times = engine.value(call.args["self"]), call.args["repeats"]
    axes = ((),) * (len(times) - len(x.axes)) + x.axes
    return Value(tuple(engine.pool.resolve((Flat(n, x.zero), *a)) for a, n in zip(axes, times)), x.zero)


@register_rule("aten::cat", IN_TURN)
def cat(engine: Engine, call: Call) -> Value:
    """Concatenation, of rows one after the other or interleaved."""
    values = [engine.value(ref) for ref in call.args["tensors"] if engine.program.values[ref.id].shape != (0,)]
    dim = call.args["dim"] % len(values[0].axes)
    joined = values[0]
    for other in values[1:]:
        axes = (engine.equal(a, b) if i != dim else a for i, (a, b) in enumerate(zip(joined.axes, other.axes)))
        joined = Value(tuple(axes))
    rows = [engine.pool.resolve(v.axes[dim]) for v in values]
    along = segments(rows) if call.op == "aten::cat" else interleaved(rows)
    if all(not v.axes[dim] for v in values):
        along = engine.fresh(len(values), f"places in {call.where}")
    return Value(joined.put(dim, along).axes, all(v.zero for v in values))


@register_rule("aten::stack")
def stack(engine: Engine, call: Call) -> Value:
    """Stack along a new axis: tensors that are used together move alike, and their order is fixed."""
    joined, *others = values = [engine.value(ref) for ref in call.args["tensors"]]
    for other in others:
        joined = Value(tuple(engine.equal(a, b) for a, b in zip(joined.axes, other.axes)))
    along = engine.fresh(len(values), "parts of a stack that are used together", "stack")
    dim = call.args["dim"] % (len(joined.axes) + 1)
    return Value((*joined.axes[:dim], along, *joined.axes[dim:]), all(p.zero for p in values))


@register_rule("aten::constant_pad_nd")
def pad(engine: Engine, call: Call) -> Value:
    """Padding with one number; negative amounts crop."""
    x, amounts = engine.value(call.args["self"]), call.args["pad"]
    zero = call.args["value"] == 0
    axes = list(x.axes)
    for i, low, high in zip(range(len(axes) - 1, -1, -1), amounts[::2], amounts[1::2]):
        if low == high == 0:
            continue
        if not zero:
            why = f"padding with a number at {call.where}"
            axes = [a if j == i else forget_zeros(engine.rigid(a, why)) for j, a in enumerate(axes)]
        inside = engine.slice(axes[i], max(-low, 0), axis_size(axes[i]) - max(-high, 0))
        before, after = ((Flat(n, zero),) if n > 0 else (Flat(0, True),) for n in (low, high))
        axes[i] = segments([before, inside, after])
    return Value(tuple(axes), x.zero and zero)


@register_rule("aten::slice", "aten::slice_copy")
def slice_(engine: Engine, call: Call) -> Value:
    """Rows ``start:stop:step`` of an axis; a step picks one of several interleaved axes, or fixes the axis."""
    x = engine.value(call.args["self"])
    dim = call.args["dim"] % len(x.axes)
    size, step = x.shape[dim], call.args["step"]
    start, stop, _ = slice(call.args["start"], call.args["end"]).indices(size)
    count = len(range(start, stop, step))
    if count == size:
        return x
    if engine.program.drawn and engine.may_move(x.axes[dim]):  # the bounds may be random
        why = f"rows taken at {call.where} of a model that draws random numbers"
        return relaid_along(engine, call, x, [dim], why)
    if step == 1:
        return x.put(dim, rows(engine, x.axes[dim], start, start + count))
    if (some := engine.taken(x.axes[dim], range(start, stop, step))) is not None:
        return x.put(dim, some)
    if start < step and count * step == size:
        along, inner = engine.split(x.axes[dim], (count, step))
        return x.put(dim, along, via=pick(engine, inner, start))
    return relaid_along(engine, call, x, [dim], f"every {step}th row taken at {call.where}")


def rows(engine: Engine, axis: Axis, start: int, stop: int) -> Axis:
    """Some rows of an axis; axes that are fixed anyway are not split."""
    if len(axis) == 1 and isinstance(axis[0], Slot):
        node = engine.pool.node(axis[0].space)
        if node.pinned and not node.held:
            why = f"rows {start}:{stop} taken at {engine.call.where}"
            engine.fix(axis, why)
            return engine.fresh(stop - start, why, ("rows", start, stop))
    return engine.slice(axis, start, stop)


@register_rule("aten::select", "aten::select_copy")
def select(engine: Engine, call: Call) -> Value:
    """One unit of an axis."""
    x = engine.value(call.args["self"])
    dim = call.args["dim"] % len(x.axes)
    return x.put(dim, via=pick(engine, x.axes[dim], call.args["index"] % x.shape[dim]))


def pick(engine: Engine, axis: Axis, index: int) -> tuple[Pick, ...]:
    """One unit of an axis, singled out: the axis is held, and the rest of the tensor comes from that unit."""
    axis = engine.pool.resolve(axis)
    if not axis or all(isinstance(f, Flat) for f in axis):
        return ()
    if len(axis) == 1 and isinstance(axis[0], Segments):
        engine.slice(axis, index, index + 1)
        return ()
    why = f"one unit singled out at {engine.call.where}"
    if len(axis) == 1 and isinstance(axis[0], Slot):
        engine.hold(engine.rigid(axis, why), why)
        tensor = engine.call.args["self"]
        # the first units of stacked parameters belong together; that of activations stands alone
        label = ("unit", index) if is_state(engine, tensor) else ("place", tensor.id, index)
        return (Pick(label, (), (Slot(axis[0].space, axis[0].size),)),)
    engine.fix(axis, why)
    return ()


@register_rule("aten::diagonal", "aten::diagonal_copy")
def diagonal(engine: Engine, call: Call) -> Value:
    """Diagonals: what acts on both axes is multiplied; off the main diagonal, both axes are fixed."""
    x, count = engine.value(call.args["self"]), engine.made(call)[-1]
    first, second = (call.args[key] % len(x.axes) for key in ("dim1", "dim2"))
    kept = tuple(a for i, a in enumerate(x.axes) if i not in (first, second))
    if call.args["offset"] == 0 and x.shape[first] == x.shape[second] and not x.zero:
        along = engine.multiplied(x.axes[first], x.axes[second], summed=True)
        return Value((*kept, along), factors=(Value((*kept, x.axes[first])), Value((x.axes[second],))))
    why = f"places relative to a diagonal at {call.where}"
    engine.fix_all((x.axes[first], x.axes[second]), why)
    return Value((*kept, engine.fresh(count, why)), x.zero)


@register_rule("aten::_pack_padded_sequence", "aten::_pad_packed_sequence")
def packed(engine: Engine, call: Call) -> list[Value]:
    """Packed steps of sequences, or sequences padded again: the steps are fixed."""
    name, sizes, before, after = ("input", "lengths", 2, 1) if "input" in call.args else ("data", "batch_sizes", 1, 2)
    x, why = engine.value(call.args[name]), f"steps of sequences at {call.where}"
    if isinstance(call.args.get(sizes), Ref):
        engine.fix_all(engine.value(call.args[sizes]).axes, why)
    kept = {i - before + after: i for i in range(before, len(x.axes))}
    result = relaid(engine, x, engine.made(call), kept, why)
    if call.args.get("padding_value", 0) != 0:
        result = Value(tuple(forget_zeros(engine.rigid(axis, f"filled up at {call.where}")) for axis in result.axes))
    return [result, *(opaque(engine, ref, why, "sizes") for ref in call.outputs[1:])]
