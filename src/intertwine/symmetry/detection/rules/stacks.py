"""Stacks: an axis whose units are unlike each other, as when packed ``q, k, v`` are viewed as ``(3, heads, width)``.

Such a tensor is a list of tensors. Moving axes about and picking one of the list work on the list; anything else ties
the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from ....programs import Call
from ..axis_terms import Axis, Segments, Value, axis_size

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["Stack", "stack_or_value", "through_stack"]


@dataclass(frozen=True)
class Stack:
    """Tensors side by side along a new axis ``dim``."""

    dim: int
    parts: tuple[Any, ...]

    def tied(self, engine: "Engine") -> Value:
        """As one tensor: the parts must move alike and their order is fixed."""
        parts = [p if isinstance(p, Value) else p.tied(engine) for p in self.parts]
        joined = parts[0]
        for other in parts[1:]:
            joined = Value(tuple(engine.equal(a, b) if a and b else a or b for a, b in zip(joined.axes, other.axes)))
        axes = list(joined.axes)
        axes.insert(self.dim, engine.fresh(len(parts), "parts of a stack that are used together", "stack"))
        return Value(tuple(axes), all(p.zero for p in parts))


def stack_or_value(
    engine: "Engine",
    x: Value,
    group: Axis,
    old: tuple[int, int],
    sizes: Sequence[int],
    first: int,
    shape: Sequence[int],
) -> Stack | None:
    """A ``Stack`` if one of the new axes separates the equal segments of a concatenation.

    Args:
        engine: The engine.
        x: The tensor that is viewed.
        group: The old axes that are cut anew, as one axis.
        old: Which old axes these are.
        sizes: Sizes of the new axes that they become.
        first: Index of the first of these.
        shape: The whole new shape.
    """
    from .shapes import reshape

    done = 1
    for j, size in enumerate(sizes):
        rest = engine.split(group, (done, prod(sizes) // done))[1] if _cuts(group, done) else ()
        if rest and _is_stack(rest, size) and size < prod(sizes[j:]):
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


def _cuts(group: Axis, outer: int) -> bool:
    """Whether the first factors of an axis have the product ``outer``, so that the rest stands alone."""
    size = 1
    for factor in group:
        if size == outer:
            return True
        size *= factor.size
    return False


def _is_stack(axis: Axis, count: int) -> bool:
    """Whether an axis is a concatenation that falls into ``count`` equal runs of whole segments."""
    if len(axis) != 1 or not isinstance(axis[0], Segments) or count < 2 or count > 64 or axis[0].size % count:
        return False
    step = axis[0].size // count
    ends = {0, *accumulate(axis_size(p) for p in axis[0].parts)}
    return all(k * step in ends for k in range(count + 1))


def through_stack(engine: "Engine", call: Call) -> list[Any] | None:
    """The result of an operation that leaves a stack a stack, or picks from it; ``None`` for any other."""
    ref = next((r for r in call.inputs if isinstance(engine.values.get(r.id), Stack)), None)
    if ref is None or len(call.inputs) != 1:
        return None
    x = engine.values[ref.id]
    rank = len(engine.program.values[ref.id].shape)
    name = call.op.removeprefix("aten::")
    if name in ("clone", "detach", "alias", "_to_copy"):
        return [x]
    if name in ("permute", "transpose", "t"):
        from .shapes import order

        dims = order(call, rank)
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
    return _picked(engine, call, name, x, rank)


def _picked(engine: "Engine", call: Call, name: str, x: Stack, rank: int) -> list[Any] | None:
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


def _map(engine: "Engine", part: Any, change: Any) -> Value:
    return change(part if isinstance(part, Value) else part.tied(engine))


def _permuted(value: Value, order: Sequence[int]) -> Value:
    return Value(tuple(value.axes[i] for i in order), value.zero)
