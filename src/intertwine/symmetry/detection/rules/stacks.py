"""Stacks: an axis whose units are unlike each other, as when packed ``q, k, v`` are viewed as ``(3, heads, width)``.

Such a tensor is a list of tensors. Moving axes about and picking one of the list work on the list; anything else ties
the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ....programs import Call, Ref
from ....programs.operations import TRANSPOSES
from ..axis_terms import Axis, Value, axis_size, concatenated, interleaved, segments
from ..engine import Engine


@dataclass(frozen=True)
class Stack:
    """Tensors side by side along a new axis ``dim``."""

    dim: int
    parts: tuple[Any, ...]

    def tied(self, engine: Engine) -> Value:
        """As one tensor: the parts must move alike and their order is fixed."""
        parts = [p if isinstance(p, Value) else p.tied(engine) for p in self.parts]
        joined = parts[0]
        for other in parts[1:]:
            joined = Value(tuple(engine.equal(a, b) for a, b in zip(joined.axes, other.axes)))
        axes = list(joined.axes)
        axes.insert(self.dim, engine.fresh(len(parts), "parts of a stack that are used together", "stack"))
        return Value(tuple(axes), all(p.zero for p in parts))


def cuts(group: Axis, outer: int) -> bool:
    """Whether the first factors of an axis have the product ``outer``, so that the rest stands alone."""
    size = 1
    for factor in group:
        if size == outer:
            return True
        size *= factor.size
    return False


def is_stack(axis: Axis, count: int) -> bool:
    """Whether an axis is a concatenation that falls into ``count`` equal runs of whole segments."""
    parts = concatenated(axis)
    if not parts or not 2 <= count <= 64 or axis_size(axis) % count:
        return False
    step = axis_size(axis) // count
    ends = {0, *accumulate(axis_size(p) for p in parts)}
    return all(k * step in ends for k in range(count + 1))


def through_stack(engine: Engine, call: Call) -> list[Any] | None:
    """The result of an operation that leaves a stack a stack, or picks from it; ``None`` for any other."""
    ref = next((r for r in call.inputs if isinstance(engine.values.get(r.id), Stack)), None)
    if ref is None or len(call.inputs) != 1:
        return None
    x = engine.values[ref.id]
    rank = len(engine.program.values[ref.id].shape)
    name = call.op.removeprefix("aten::")
    if name in ("clone", "detach", "alias", "_to_copy"):
        out = call.outputs[0]
        return [x] if out is None or engine.dtype(out).is_floating_point else None  # whole numbers do not scale
    if f"aten::{name}" in TRANSPOSES:
        dims = axis_order(call, rank)
        lower = lambda d: d - (d > x.dim)
        kept = [lower(d) for d in dims if d != x.dim]
        return [Stack(dims.index(x.dim), tuple(_map(engine, p, lambda v: _permuted(v, kept)) for p in x.parts))]
    if name == "unsqueeze":
        dim = call.args["dim"] % (rank + 1)
        inner, at = (dim, x.dim + 1) if dim <= x.dim else (dim - 1, x.dim)
        insert = lambda v: Value((*v.axes[:inner], (), *v.axes[inner:]), v.zero)
        return [Stack(at, tuple(_map(engine, p, insert) for p in x.parts))]
    if name == "squeeze" and isinstance(call.args.get("dim"), int):
        dim = call.args["dim"] % rank
        if dim == x.dim or engine.program.values[ref.id].shape[dim] != 1:
            return [x] if dim != x.dim or len(x.parts) != 1 else None
        inner = dim - (dim > x.dim)
        drop = lambda v: Value((*v.axes[:inner], *v.axes[inner + 1 :]), v.zero)
        return [Stack(x.dim - (dim < x.dim), tuple(_map(engine, p, drop) for p in x.parts))]
    if name in ("view", "_unsafe_view", "reshape", "flatten"):
        return _in_turn(engine, call, ref, x)
    return _picked(engine, call, name, x, rank)


def _in_turn(engine: Engine, call: Call, ref: Ref, x: Stack) -> list[Any] | None:
    """A stack viewed so that its parts lie one after the other along an axis, or give its rows in turn; else ``None``.

    The latter is a channel shuffle.
    """
    shape = engine.program.values[ref.id].shape
    new = engine.program.values[call.outputs[0].id].shape if call.outputs[0] is not None else ()
    merged = lambda d: (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]) if 0 <= d < len(shape) - 1 else None
    fits = [d for d in (x.dim, x.dim - 1) if shape[-1] != 1 and new == merged(d)]
    parts = [p if isinstance(p, Value) else p.tied(engine) for p in x.parts]
    if len(fits) != 1 or min(shape[fits[0] : fits[0] + 2]) < 2:
        return None
    d, join = fits[0], segments if fits[0] == x.dim else interleaved
    rows = [engine.pool.resolve(p.axes[d]) for p in parts]
    joined = parts[0]
    for other in parts[1:]:
        both = enumerate(zip(joined.axes, other.axes))
        joined = Value(tuple(a or b if i == d else engine.equal(a, b) for i, (a, b) in both))
    return [Value((*joined.axes[:d], join(rows), *joined.axes[d + 1 :]), all(p.zero for p in parts))]


def _picked(engine: Engine, call: Call, name: str, x: Stack, rank: int) -> list[Any] | None:
    if "dim" not in call.args or not isinstance(call.args["dim"], int) or call.args["dim"] % rank != x.dim:
        return None
    insert = lambda v: Value((*v.axes[: x.dim], (), *v.axes[x.dim :]), v.zero)
    if name == "select":
        return [x.parts[call.args["index"]]]
    if name == "unbind":
        return list(x.parts)
    if name in ("split", "unsafe_split", "chunk", "unsafe_chunk") and len(call.outputs) == len(x.parts):
        return [_map(engine, p, insert) for p in x.parts]
    if name == "slice" and call.args["step"] == 1:
        start, stop, _ = slice(call.args["start"], call.args["end"]).indices(len(x.parts))
        if stop - start == 1:
            return [_map(engine, x.parts[start], insert)]
        return [Stack(x.dim, x.parts[start:stop])]
    return None


def _map(engine: Engine, part: Any, change: Any) -> Value:
    return change(part if isinstance(part, Value) else part.tied(engine))


def _permuted(value: Value, order: Sequence[int]) -> Value:
    return Value(tuple(value.axes[i] for i in order), value.zero)


def axis_order(call: Call, rank: int) -> list[int]:
    """The old axis that each new one is: the shape of what the call makes of a tensor of sizes 0, 1, 2 and so on."""
    settings = {name: value for name, value in call.args.items() if name != "self"}
    return list(call.func(torch.empty(tuple(range(rank)), device="meta"), **settings).shape)
