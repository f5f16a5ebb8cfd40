"""Rows chosen by a mask: image features merged into a stream of tokens, rows picked out of it."""

from math import prod
from typing import Any

from .....programs import Call
from ...axis_terms import Axis, Flat, Slot, Value, axis_size, bare
from ...engine import Engine
from ..elementwise import added
from ..registry import opaque, register_rule


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
    engine.fix_all((*x.axes[:first], *mask.axes, taken), why)
    places = [_written(engine, axis, why, i) for i, axis in enumerate(x.axes[:first])]
    written = added(engine, Value(x.axes[first:], x.zero), Value(tuple(last), source.zero))
    return Value((*places, *written.axes), x.zero and source.zero)


def _written(engine: Engine, axis: Axis, why: str, tag: int) -> Axis:
    if axis and all(isinstance(f, Slot) for f in axis):
        return bare(axis)
    return engine.fresh(axis_size(axis), why, tag)


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
