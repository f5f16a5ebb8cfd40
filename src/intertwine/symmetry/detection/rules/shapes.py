"""Shapes: views, transpositions, expansions, concatenations and slices.

Sequences of unlike lengths, packed one time step after the other.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from ....programs import Call, Ref
from ....programs.operations import COPIES, RESHAPES, TRANSPOSES
from ..axis_terms import (
    Axis,
    Flat,
    Interleaved,
    Pick,
    Segments,
    Slot,
    Value,
    axis_size,
    flat,
    forget_zeros,
    segments,
    slots,
)
from ..engine import Engine
from .constants import cast
from .registry import opaque, register_rule
from .stacks import Stack, axis_order, cuts, is_stack
from .unit_indices import is_state


@register_rule(*COPIES, "aten::lift_fresh_copy", "aten::native_dropout", "aten::dropout")
def same(engine: Engine, call: Call) -> Value:
    """Copies and casts."""
    return cast(engine, call.inputs[0], call.outputs[0])


@register_rule(*RESHAPES - {"aten::squeeze", "aten::unsqueeze"}, "aten::_reshape_alias")
def view(engine: Engine, call: Call) -> Any:
    """Views: axes are read row by row and cut anew."""
    out = call.outputs[0]
    x = engine.value(call.args["self"])
    if out is None or engine.dtype(call.args["self"]) != engine.dtype(out):
        why = f"bits read as another type at {call.where}"
        engine.fix_all(x.axes, why)
        return opaque(engine, out, why, 0)
    return reshape(engine, x, engine.program.values[out.id].shape)


def reshape(engine: Engine, x: Value, shape: Sequence[int]) -> Any:
    """The value of ``x`` viewed with another shape; a concatenation told apart by an axis gives a ``Stack``."""
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
        group = engine.pool.resolve(tuple(f for axis in x.axes[start:i] for f in axis))
        sizes = shape[first:j]
        stack = _stack_or_value(engine, x, group, (start, i), sizes, first, shape) if len(sizes) > 1 else None
        if stack is not None:
            return stack
        axes += [group] if len(sizes) == 1 else engine.split(group, sizes)
    return Value(tuple(axes), x.zero)


def _stack_or_value(
    engine: Engine, x: Value, group: Axis, old: tuple[int, int], sizes: Sequence[int], first: int, shape: Sequence[int]
) -> Stack | None:
    """A ``Stack`` if one of the new axes separates the equal segments of a concatenation.

    The old axes ``old``, as one axis ``group``, are cut anew into ``sizes``, from the new axis ``first`` on.
    """
    if len(group) == 1 and isinstance(group[0], Interleaved) and len(group[0].parts) == sizes[-1]:
        dim, outer = first + len(sizes) - 1, (*x.axes[: old[0]], *x.axes[old[1] :])
        pieces = [Value((*outer[: old[0]], p, *outer[old[0] :]), x.zero) for p in group[0].parts]
        return Stack(dim, tuple(reshape(engine, piece, (*shape[:dim], *shape[dim + 1 :])) for piece in pieces))
    done = 1
    for j, size in enumerate(sizes):
        rest = engine.split(group, (done, prod(sizes) // done))[1] if cuts(group, done) else ()
        if rest and is_stack(rest, size) and size < prod(sizes[j:]):
            head = engine.split(group, (done, prod(sizes) // done))[0]
            step = axis_size(rest) // size
            parts = []
            for k in range(size):
                piece = (*head, *engine.slice(rest, k * step, (k + 1) * step))
                part = Value((*x.axes[: old[0]], piece, *x.axes[old[1] :]), x.zero)
                parts.append(reshape(engine, part, (*shape[: first + j], *shape[first + j + 1 :])))
            return Stack(first + j, tuple(parts))
        done *= size
    return None


@register_rule(*TRANSPOSES, "aten::swapaxes", "aten::numpy_T")
def transpose(engine: Engine, call: Call) -> Value:
    """Axes in another order."""
    x = engine.value(call.args["self"])
    return Value(tuple(x.axes[i] for i in axis_order(call, len(x.axes))), x.zero)


@register_rule("aten::unsqueeze")
def unsqueeze(engine: Engine, call: Call) -> Value:
    """A new axis of size one."""
    x = engine.value(call.args["self"])
    axes = list(x.axes)
    axes.insert(call.args["dim"] % (len(axes) + 1), ())
    return Value(tuple(axes), x.zero)


@register_rule("aten::squeeze")
def squeeze(engine: Engine, call: Call) -> Value:
    """Axes of size one left out."""
    x = engine.value(call.args["self"])
    dims: Any = call.args.get("dim")
    rank = max(len(x.axes), 1)
    where = range(rank) if dims is None else [d % rank for d in (dims if isinstance(dims, list | tuple) else [dims])]
    return Value(tuple(a for i, a in enumerate(x.axes) if i not in where or axis_size(a) != 1), x.zero)


@register_rule("aten::expand", "aten::broadcast_to")
def expand(engine: Engine, call: Call) -> Value:
    """Axes of size one made longer by repeating."""
    x, shape = engine.value(call.args["self"]), engine.made(call)
    axes = ((),) * (len(shape) - len(x.axes)) + x.axes
    return Value(tuple(a or flat(n, x.zero) for a, n in zip(axes, shape)), x.zero)


@register_rule("aten::repeat")
def repeat(engine: Engine, call: Call) -> Value:
    """Whole axes repeated."""
    x, times = engine.value(call.args["self"]), call.args["repeats"]
    axes = ((),) * (len(times) - len(x.axes)) + x.axes
    return Value(tuple(engine.pool.resolve((Flat(n, x.zero), *a)) for a, n in zip(axes, times)), x.zero)


@register_rule("aten::cat", "aten::concat")
def cat(engine: Engine, call: Call) -> Value:
    """Concatenation."""
    values = [engine.value(ref) for ref in call.args["tensors"] if engine.program.values[ref.id].shape != (0,)]
    rank = len(values[0].axes)
    dim = call.args["dim"] % rank
    joined = values[0]
    for other in values[1:]:
        axes = (engine.equal(a, b) if i != dim else a for i, (a, b) in enumerate(zip(joined.axes, other.axes)))
        joined = Value(tuple(axes))
    along = segments([engine.pool.resolve(v.axes[dim]) for v in values])
    if all(not v.axes[dim] for v in values):
        along = engine.fresh(len(values), f"places in {call.where}")
    return Value((*joined.axes[:dim], along, *joined.axes[dim + 1 :]), all(v.zero for v in values))


@register_rule("aten::stack")
def stack(engine: Engine, call: Call) -> Stack:
    """Concatenation along a new axis: tensors side by side, which need not move alike."""
    values = [engine.value(ref) for ref in call.args["tensors"]]
    return Stack(call.args["dim"] % (len(values[0].axes) + 1), tuple(values))


@register_rule("aten::constant_pad_nd")
def pad(engine: Engine, call: Call) -> Value:
    """Padding with one number; negative amounts cut."""
    x, amounts = engine.value(call.args["self"]), call.args["pad"]
    zero = call.args["value"] == 0
    axes = list(x.axes)
    for k in range(len(amounts) // 2):
        i = len(axes) - 1 - k
        low, high = amounts[2 * k], amounts[2 * k + 1]
        if low == high == 0:
            continue
        if not zero:
            for j, axis in enumerate(axes):
                if j != i:
                    axes[j] = forget_zeros(engine.rigid(axis, f"padding with a number at {call.where}"))
        size = axis_size(axes[i])
        inside = engine.slice(axes[i], max(-low, 0), size - max(-high, 0))
        flats = [(Flat(n, zero),) if n > 0 else (Flat(0, True),) for n in (low, high)]
        axes[i] = segments([flats[0], inside, flats[1]])
    return Value(tuple(axes), x.zero and zero)


@register_rule("aten::slice", "aten::slice_copy")
def slice_(engine: Engine, call: Call) -> Value:
    """Rows ``start:stop:step`` of an axis; steps take one of the axes that give rows in turn, or fix it."""
    x = engine.value(call.args["self"])
    dim = call.args["dim"] % len(x.axes)
    size, step = x.shape[dim], call.args["step"]
    start, stop, _ = slice(call.args["start"], call.args["end"]).indices(size)
    count = len(range(start, stop, step))
    if count == size:
        return x
    if step != 1 and start < step and count * step == size:
        if (turns := engine.dealt(x.axes[dim], step)) is not None:
            return Value((*x.axes[:dim], turns[start], *x.axes[dim + 1 :]), x.zero)
        along, inner = engine.split(x.axes[dim], (count, step))
        return Value((*x.axes[:dim], along, *x.axes[dim + 1 :]), x.zero, via=pick(engine, inner, start))
    if step != 1:
        why = f"every {step}th row taken at {call.where}"
        engine.fix(x.axes[dim], why)
        along = engine.fresh(count, why)
    else:
        along = rows(engine, x.axes[dim], start, start + count)
    return Value((*x.axes[:dim], along, *x.axes[dim + 1 :]), x.zero)


def rows(engine: Engine, axis: Axis, start: int, stop: int) -> Axis:
    """Some rows of an axis; axes that are fixed anyway are not cut into pieces."""
    if stop - start == 1 and len(axis) == 1 and isinstance(axis[0], Slot):
        engine.stack_request(axis)
    found = list(slots(axis))
    if found and len(axis) == 1 and isinstance(axis[0], Slot):
        node = engine.pool.node(axis[0].space)
        if node.origin is None and node.pinned:
            why = f"rows {start}:{stop} taken at {engine.call.where}"
            engine.fix(axis, why)
            return engine.fresh(stop - start, why, ("rows", start, stop))
    return engine.slice(axis, start, stop)


@register_rule("aten::split", "aten::unsafe_split", "aten::split_with_sizes", "aten::unsafe_split_with_sizes",
               "aten::chunk", "aten::unsafe_chunk", "aten::tensor_split", "aten::split_with_sizes_copy")  # fmt: skip
def split(engine: Engine, call: Call) -> list[Value]:
    """An axis cut into consecutive pieces."""
    x = engine.value(call.args["self"])
    dim = call.args["dim"] % len(x.axes)
    pieces, at = [], 0
    for ref in call.outputs:
        size = engine.program.values[ref.id].shape[dim] if isinstance(ref, Ref) else 0
        along = rows(engine, engine.pool.resolve(x.axes[dim]), at, at + size) if size != x.shape[dim] else x.axes[dim]
        pieces.append(Value((*x.axes[:dim], along, *x.axes[dim + 1 :]), x.zero))
        at += size
    return pieces


@register_rule("aten::select", "aten::select_copy")
def select(engine: Engine, call: Call) -> Value:
    """One unit of an axis."""
    x = engine.value(call.args["self"])
    dim = call.args["dim"] % len(x.axes)
    index = call.args["index"] % x.shape[dim]
    return Value((*x.axes[:dim], *x.axes[dim + 1 :]), x.zero, via=pick(engine, x.axes[dim], index))


def pick(engine: Engine, axis: Axis, index: int) -> tuple[Pick, ...]:
    """One unit of an axis is singled out: the axis is held, and what is left of the tensor comes from that unit."""
    axis = engine.pool.resolve(axis)
    if not axis or all(isinstance(f, Flat) for f in axis):
        return ()
    if len(axis) == 1 and isinstance(axis[0], Segments):
        engine.slice(axis, index, index + 1)
        return ()
    engine.stack_request(axis)
    why = f"one unit singled out at {engine.call.where}"
    if len(axis) == 1 and isinstance(axis[0], Slot):
        engine.hold(engine.rigid(axis, why), why)
        tensor = engine.call.args["self"]
        # the first unit of one stacked parameter belongs to the first of another; that of activations is its own
        label = ("unit", index) if is_state(engine, tensor) else ("place", tensor.id, index)
        return (Pick(label, (), (Slot(axis[0].space, axis[0].size),)),)
    engine.fix(axis, why)
    return ()


@register_rule("aten::diagonal", "aten::diagonal_copy")
def diagonal(engine: Engine, call: Call) -> Value:
    """Entries whose places along two axes agree: products of what acts on both; off the middle, both are fixed."""
    x, count = engine.value(call.args["self"]), engine.made(call)[-1]
    first, second = (call.args[key] % len(x.axes) for key in ("dim1", "dim2"))
    kept = tuple(a for i, a in enumerate(x.axes) if i not in (first, second))
    if call.args["offset"] == 0 and x.shape[first] == x.shape[second] and not x.zero:
        along = engine.multiplied(x.axes[first], x.axes[second], summed=True)
        return Value((*kept, along), factors=(Value((*kept, x.axes[first])), Value((x.axes[second],))))
    why = f"places relative to a diagonal at {call.where}"
    for i in (first, second):
        engine.fix(x.axes[i], why)
    return Value((*kept, engine.fresh(count, why)), x.zero)


@register_rule("aten::unbind", "aten::unbind_copy")
def unbind(engine: Engine, call: Call) -> list[Value]:
    """Every unit of an axis on its own."""
    x = engine.value(call.args["self"])
    dim = call.args["dim"] % len(x.axes)
    rest = (*x.axes[:dim], *x.axes[dim + 1 :])
    return [Value(rest, x.zero, via=pick(engine, x.axes[dim], i)) for i in range(x.shape[dim])]


@register_rule("aten::_pack_padded_sequence")
def pack(engine: Engine, call: Call) -> list[Value]:
    """The steps of all sequences one after the other: sequences and steps are fixed, features are as they were."""
    return _laid_out(engine, call, call.args["input"], 2, 1)


@register_rule("aten::_pad_packed_sequence")
def unpack(engine: Engine, call: Call) -> list[Value]:
    """Packed steps as sequences again, filled up with one number."""
    result, *lengths = _laid_out(engine, call, call.args["data"], 1, 2)
    if call.args["padding_value"] != 0:
        result = Value(tuple(forget_zeros(engine.rigid(axis, f"filled up at {call.where}")) for axis in result.axes))
    return [result, *lengths]


def _laid_out(engine: Engine, call: Call, source: Ref, before: int, after: int) -> list[Value]:
    """A tensor whose first ``before`` axes become ``after`` others."""
    x, shape = engine.value(source), engine.made(call)
    why = f"steps of sequences at {call.where}"
    for name in ("lengths", "batch_sizes"):
        if isinstance(call.args.get(name), Ref):
            engine.fix_all(engine.value(call.args[name]).axes, why)
    engine.fix_all(x.axes[:before], why)
    steps = (engine.fresh(n, why, i) for i, n in enumerate(shape[:after]))
    return [Value((*steps, *x.axes[before:]), x.zero), *(opaque(engine, ref, why, "sizes") for ref in call.outputs[1:])]
