"""Pooling, resampling and windows over space."""

from typing import Any

from .....programs import Call, Ref
from .....programs.operations import AVERAGE_POOLS, GATHERS, INTERPOLATIONS, MAX_POOLS, aten
from ...axis_terms import Axis, Flat, Slot, Value, axis_size
from ...engine import Engine
from ..registry import register_rule

_MAX = MAX_POOLS | aten("max_pool1d max_pool2d max_pool3d max_pool1d_with_indices adaptive_max_pool1d")
_MAX |= aten("fractional_max_pool2d fractional_max_pool3d")
_SMOOTHED = aten("_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa")
_LINEAR = AVERAGE_POOLS - {"aten::mean"} | INTERPOLATIONS | GATHERS | _SMOOTHED


@register_rule(*_MAX)
def max_pool(engine: Engine, call: Call) -> list[Value]:
    """Maxima over windows, and where they are: positive scales and permutations of channels pass."""
    result = _windowed(engine, call)
    if isinstance(samples := call.args.get("random_samples"), Ref):  # windows drawn for each channel
        for own, drawn in zip(result.axes, engine.value(samples).axes[:2]):
            engine.equal(own, drawn)
    for axis in result.axes:
        engine.homogeneous(axis)
    places = Value(tuple(engine.unscaled(axis) for axis in result.axes))
    return [result, places][: len(call.outputs)]


@register_rule("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(engine: Engine, call: Call) -> Value:
    """Entries put back where maxima were, with zeros between: each channel has its own places."""
    x, places, shape = engine.value(call.args["self"]), engine.value(call.args["indices"]), engine.made(call)
    first = len(x.axes) - int(next(c for c in call.op if c in "23"))
    why = f"spatial positions of {call.where}"
    engine.fix_all((*x.axes[first:], *places.axes[first:]), why)
    axes: list[Axis] = []
    for axis, index in zip(x.axes[:first], places.axes[:first]):
        engine.rigid(index, f"places read by {call.where}")
        engine.monomial(axis)
        axes.append(engine.zip(axis, index, _placed))
    space = (engine.fresh(n, why, ("space", i)) for i, n in enumerate(shape[first:]))
    return Value((*axes, *space), x.zero)


def _placed(entry: Any, place: Any) -> Any:
    """Entries of one axis at places that follow it: equal entries at other places are no longer equal."""
    return Slot(place.space, place.size) if isinstance(entry, Flat) and isinstance(place, Slot) else entry


@register_rule(*_LINEAR)
def linear_over_space(engine: Engine, call: Call) -> Value:
    """Averages over windows, interpolation and padding by copies: linear in the channels."""
    return _windowed(engine, call)


def _windowed(engine: Engine, call: Call) -> Value:
    x = engine.value(call.inputs[0])
    shape = engine.made(call)
    rank = int(next(c for c in call.op if c in "123"))
    first = len(x.axes) - rank
    engine.fix_all(x.axes[first:], f"spatial positions of {call.where}")
    space = (engine.fresh(n, f"spatial positions of {call.where}", ("space", i)) for i, n in enumerate(shape[first:]))
    return Value((*x.axes[:first], *space), x.zero)


@register_rule("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler")
def grid_sample(engine: Engine, call: Call) -> Value:
    """Interpolation at places that a grid gives: linear in the channels."""
    x, grid, shape = engine.value(call.inputs[0]), engine.value(call.inputs[1]), engine.made(call)
    why = f"spatial positions of {call.where}"
    engine.fix_all((x.axes[0], *x.axes[2:], *grid.axes), why)
    first = x.axes[0] if x.shape[0] == shape[0] else engine.fresh(shape[0], why, "batch")
    return Value((first, x.axes[1], *(engine.fresh(n, why, ("space", i)) for i, n in enumerate(shape[2:]))), x.zero)


@register_rule("aten::unfold", "aten::unfold_copy")
def unfold(engine: Engine, call: Call) -> Value:
    """Windows along one axis, which become a new last axis: both are fixed."""
    x, shape = engine.value(call.args["self"]), engine.made(call)
    dim = call.args["dimension"] % len(x.axes)
    why = f"windows of {call.where}"
    engine.fix(x.axes[dim], why)
    axes = [engine.fresh(shape[i], why, "windows") if i == dim else a for i, a in enumerate(x.axes)]
    return Value((*axes, engine.fresh(shape[-1], why, "inside")), x.zero)


@register_rule("aten::im2col")
def im2col(engine: Engine, call: Call) -> Value:
    """Windows over space as columns: channels times places in the window, which are fixed."""
    x, shape = engine.value(call.args["self"]), engine.made(call)
    why = f"windows of {call.where}"
    engine.fix_all(x.axes[-2:], why)
    channel = (*x.axes[-3], *engine.fresh(shape[-2] // x.shape[-3], why, "inside"))
    return Value((*x.axes[:-3], engine.pool.resolve(channel), engine.fresh(shape[-1], why, "windows")), x.zero)


@register_rule("aten::col2im")
def col2im(engine: Engine, call: Call) -> Value:
    """Columns added up where their windows were."""
    x, shape = engine.value(call.args["self"]), engine.made(call)
    why = f"windows of {call.where}"
    channel, inside = engine.split(x.axes[-2], (shape[-3], x.shape[-2] // shape[-3]))
    engine.fix_all((inside, x.axes[-1]), why)
    space = (engine.fresh(n, why, ("space", i)) for i, n in enumerate(shape[-2:]))
    return Value((*x.axes[:-2], channel, *space), x.zero)


@register_rule("aten::triu", "aten::tril")
def triangle(engine: Engine, call: Call) -> Value:
    """Everything above (or below) a diagonal set to zero: in the two last axes no permutations pass."""
    x = engine.value(call.args["self"])
    why = f"places relative to a diagonal at {call.where}"
    last = (engine.multiplied(engine.fresh(axis_size(a), why, i), a) for i, a in enumerate(x.axes[-2:]))
    return Value((*x.axes[:-2], *last), x.zero)


@register_rule("aten::pixel_shuffle")
def pixel_shuffle(engine: Engine, call: Call) -> Value:
    """Channels into space: the ``r x r`` places inside a channel are fixed."""
    x, r = engine.value(call.args["self"]), call.args["upscale_factor"]
    c, h, w = x.shape[-3:]
    channel, *places = engine.split(x.axes[-3], (c // r**2, r, r))
    why = f"places in space at {call.where}"
    engine.fix_all((*places, *x.axes[-2:]), why)
    return Value((*x.axes[:-3], channel, engine.fresh(h * r, why, 0), engine.fresh(w * r, why, 1)), x.zero)


@register_rule("aten::pixel_unshuffle")
def pixel_unshuffle(engine: Engine, call: Call) -> Value:
    """Space into channels."""
    x, r = engine.value(call.args["self"]), call.args["downscale_factor"]
    why = f"places in space at {call.where}"
    engine.fix_all(x.axes[-2:], why)
    h, w = x.shape[-2] // r, x.shape[-1] // r
    channel = (*x.axes[-3], *engine.fresh(r, why, 0), *engine.fresh(r, why, 1))
    return Value((*x.axes[:-3], channel, engine.fresh(h, why, 2), engine.fresh(w, why, 3)), x.zero)


@register_rule("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(engine: Engine, call: Call) -> Value:
    """Channels of all groups interleaved: the two factors change places."""
    x, g = engine.value(call.args["self"]), call.args["groups"]
    group, unit = engine.split(x.axes[1], (g, x.shape[1] // g))
    return Value((x.axes[0], (*unit, *group), *x.axes[2:]), x.zero)
