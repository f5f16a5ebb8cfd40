"""Regions of images: crops resampled by boxes, and convolutions whose kernel reads displaced places."""

from .....programs import Call, Ref
from ...axis_terms import Value
from ...engine import Engine
from ..elementwise import added, through
from ..registry import register_rule


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
