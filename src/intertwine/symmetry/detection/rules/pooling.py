"""Pooling, resampling and windows over space.

Regions of images: crops resampled by boxes, and convolutions whose kernel reads displaced places.
"""

from typing import Any

from ....programs import Call, Ref
from ....programs.operations import AVERAGE_POOLS, GATHERS, INTERPOLATIONS, MAX_POOLS, aten
from ..axis_terms import Axis, Flat, Slot, Value, axis_size
from ..engine import Engine
from .elementwise import added, through
from .registry import register_rule

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


@register_rule("torchvision::roi_align", "torchvision::roi_pool")
def crops(engine: Engine, call: Call) -> list[Value]:
    """Crops of feature maps by boxes: averages are linear in the channels, maxima let positive scales pass."""
    x, shape = engine.value(call.args["input"]), engine.made(call)
    why = f"regions of {call.where}"
    engine.fix_all((x.axes[0], *x.axes[2:], *engine.value(call.args["rois"]).axes), why)
    other = [engine.fresh(n, why, i) for i, n in enumerate(shape)]
    result = Value((other[0], x.axes[1], *other[2:]), x.zero)
    if call.op == "torchvision::roi_align":
        return [result]
    engine.homogeneous(x.axes[1])
    return [result, through(engine, Value(result.axes), 0, 0)]


@register_rule("torchvision::deform_conv2d")
def deformed_convolution(engine: Engine, call: Call) -> Value:
    """A convolution that reads displaced places: linear in the channels; places and masks do not scale."""
    x, w = engine.value(call.args["input"]), engine.value(call.args["weight"])
    shape, groups = engine.made(call), call.args["groups"]
    why = f"places read by {call.where}"
    engine.fix_all((*x.axes[2:], *w.axes[2:]), why)
    for name in ("offset", "mask"):
        if isinstance(call.args.get(name), Ref) and (name != "mask" or call.args["use_mask"]):
            engine.fix_all(engine.value(call.args[name]).axes[1:], why)
            engine.equal(x.axes[0], engine.rigid(engine.value(call.args[name]).axes[0], why))
    channels = x.axes[1]
    if call.args["offset_groups"] > 1:
        blocks, units = engine.split(channels, (call.args["offset_groups"], x.shape[1] // call.args["offset_groups"]))
        channels = (*engine.fix(blocks, why), *units)
    outer = engine.split(w.axes[0], (groups, w.shape[0] // groups))
    inner = engine.split(engine.pool.resolve(channels), (groups, x.shape[1] // groups))
    group = engine.multiplied(inner[0], outer[0]) if groups > 1 else ()
    engine.contracted(inner[1], w.axes[1])
    engine.met.append((x.axes[0], group, outer[1], w.axes[1], *w.axes[2:]))
    space = (engine.fresh(n, why, i) for i, n in enumerate(shape[2:]))
    result = Value((x.axes[0], (*group, *outer[1]), *space), x.zero)
    bias = call.args.get("bias")
    return added(engine, result, Value((*engine.value(bias).axes, (), ()))) if isinstance(bias, Ref) else result
