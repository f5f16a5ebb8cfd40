"""Losses that are one operation: sums (or means) over entries of a function of two tensors."""

from .....programs import Call, Ref
from ...axis_terms import Value, forget_zeros
from ...engine import Engine
from ..elementwise import added, measured, squared, through, unzero
from ..registry import opaque, register_rule, unknown


@register_rule("aten::mse_loss")
def squared_error(engine: Engine, call: Call) -> Value:
    """Sums of squared differences: orthogonal maps pass."""
    difference = added(engine, *(engine.value(call.args[key]) for key in ("self", "target")))
    if not call.args["reduction"]:
        return squared(engine, difference)
    for axis in difference.axes:
        engine.orthogonal(engine.no_scale(axis, f"sum over the units at {call.where}"))
    return Value(())


@register_rule("aten::huber_loss", "aten::smooth_l1_loss")
def robust_error(engine: Engine, call: Call) -> Value:
    """Sums of an even function of differences: permutations and signs pass."""
    difference = added(engine, *(engine.value(call.args[key]) for key in ("self", "target")))
    values = through(engine, unzero(difference), None, -1)
    return values if not call.args["reduction"] else Value(())


@register_rule("aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits")
def cross_entropy(engine: Engine, call: Call) -> Value:
    """Sums of a function of entries at the same place: only permutations pass."""
    values = measured(engine, call)
    return values if not call.args["reduction"] else Value(())


@register_rule("aten::nll_loss_forward", "aten::nll_loss_nd", "aten::nll_loss2d_forward")
def named_entries(engine: Engine, call: Call) -> list[Value]:
    """Sums of the entries that labels name: classes are fixed, examples may move together."""
    x, target = (engine.value(call.args[key]) for key in ("self", "target"))
    why = f"classes of {call.where}"
    place = min(len(x.axes) - 1, 1)
    engine.fix(x.axes[place], why)
    if isinstance(call.args.get("weight"), Ref):
        engine.fix_all(engine.value(call.args["weight"]).axes, why)
    rest = [engine.rigid(axis) for i, axis in enumerate(x.axes) if i != place]
    axes = tuple(forget_zeros(engine.equal(a, b)) for a, b in zip(rest, map(engine.rigid, target.axes)))
    return [Value(axes if not call.args["reduction"] else ()), Value(())]


@register_rule("aten::_ctc_loss")
def aligned(engine: Engine, call: Call) -> list[Value]:
    """Sums over all alignments of labels in their order: classes and times are fixed, and the examples."""
    if any(ref is not None and ref.id in engine.readers for ref in call.outputs[1:]):
        return unknown(engine, call)
    why = f"classes and times of {call.where}"
    engine.fix_read(call.inputs, why)
    return [opaque(engine, ref, why, i) for i, ref in enumerate(call.outputs)]
