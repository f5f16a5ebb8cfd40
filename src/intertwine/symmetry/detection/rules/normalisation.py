"""Normalisations. Scales stop at their stabilising epsilon, except where batch norm's stored variance can follow."""

from collections.abc import Sequence
from typing import Any

from ....programs import Call, Ref
from ....programs.operations import BATCH_NORMS, LAYER_NORMS, RMS_NORMS
from ...spaces import BatchNormTensors, Cause
from ..axis_terms import Axis, Expr, Flat, Slot, Value, forget_zeros
from ..engine import Engine
from .elementwise import added, multiplied
from .registry import register_rule


@register_rule(*BATCH_NORMS)
def batch_norm(engine: Engine, call: Call) -> list[Value]:
    """Batch norm with stored statistics: input and output scale independently (v2 E.47, v1 E.26).

    The mean follows the input, the variance its square, and gain and bias whatever comes out. Other than in the
    paper, the variance becomes ``a^2 (v + eps) - eps``, so the function is preserved exactly and not up to the
    epsilon.
    """
    x = engine.value(call.args["input"])
    mean, variance = call.args.get("running_mean"), call.args.get("running_var")
    channels = x.axes[1]
    if call.args.get("training", call.args.get("train", False)) or not (
        isinstance(mean, Ref) and isinstance(variance, Ref)
    ):
        axes = [engine.rigid(a, "statistics of the batch") if i != 1 else a for i, a in enumerate(x.axes)]
        engine.monomial(engine.no_scale(channels, _epsilon(call)))
        for i, axis in enumerate(axes):
            if i != 1:
                engine.mix(axes, axis)
        return [_affine(engine, Value((axes[0], channels, *axes[2:])), call, 1)]
    for i, axis in enumerate(x.axes):
        if i != 1:
            engine.rigid(axis, f"one number added to all units at {call.where}")
    if not _owns_statistics(engine, call, mean, variance):
        engine.no_scale(channels, f"statistics of {call.where} are read elsewhere")
    channels = engine.equal(channels, engine.value(mean).axes[0]) if channels else ()
    channels = engine.zip(channels, engine.value(variance).axes[0], lambda s, v: _standardised(engine, s, v))
    engine.monomial(channels)
    return [_affine(engine, Value((x.axes[0], channels, *x.axes[2:])), call, 1)]


def _epsilon(call: Call) -> Cause:
    return Cause(f"epsilon of {call.where}", "epsilon")


def _standardised(engine: Engine, x: Any, variance: Any) -> Any:
    """Input divided by the root of the stored variance: its scale ``a`` is undone where the variance has ``v = a^2``.

    As an equation of logarithms, ``2 log a - log v = 0``. Of the input's scale only the sign is left.
    """
    if not isinstance(variance, Slot):
        return engine.rigid((x,))[0] if isinstance(x, Slot) else Flat(x.size)
    if not isinstance(x, Slot):
        return engine.rigid((variance,))[0]
    twice = x.expr.power(2, False)
    engine.system.log.add((twice + variance.expr.power(-1, True)).log)
    engine.system.sign_is_zero(variance.expr)
    return Slot(x.space, x.size, Expr({}, x.expr.sign))


def _owns_statistics(engine: Engine, call: Call, mean: Ref, variance: Ref) -> bool:
    """Whether mean and variance are stored tensors that only this kind of call reads, with one epsilon; noted if so."""
    names = engine.state_names
    if mean.id not in names or variance.id not in names:
        return False
    readers = [*engine.readers[mean.id], *engine.readers[variance.id]]
    if any(c.op not in BATCH_NORMS or c.args["eps"] != call.args["eps"] for c in readers):
        return False
    name = lambda key: names.get(ref.id) if isinstance(ref := call.args.get(key), Ref) else None
    tensors = BatchNormTensors(
        names[mean.id], names[variance.id], name("weight"), name("bias"), float(call.args["eps"])
    )
    engine.batch_norms[tensors] = None
    return True


def _affine(engine: Engine, x: Value, call: Call, dim: int) -> Value:
    """Multiply by ``weight`` and add ``bias`` along one axis."""
    after = ((),) * (len(x.axes) - dim - 1)
    place = lambda v: Value((*v.axes, *after))
    weight, bias = call.args.get("weight"), call.args.get("bias")
    if isinstance(weight, Ref):
        x = multiplied(engine, x, place(engine.value(weight)))
    return added(engine, x, place(engine.value(bias))) if isinstance(bias, Ref) else x


def _normalise(engine: Engine, axes: Sequence[Axis], over: Sequence[int], centred: bool, orthogonal: bool) -> None:
    """Restrict all axes as division by a root mean square over some of them does."""
    why = _epsilon(engine.call)
    for i, axis in enumerate(axes):
        engine.no_scale(axis, why)
        if i not in over:
            engine.monomial(axis)
            continue
        if centred:
            engine.no_sign(axis, f"mean taken by {engine.call.where}")
        engine.orthogonal(axis) if orthogonal else engine.monomial(axis)
        engine.mix(axes, axis)


@register_rule(*LAYER_NORMS, *RMS_NORMS)
def layer_norm(engine: Engine, call: Call) -> list[Value]:
    """Layer norm and RMS norm over the last axes."""
    x = engine.value(call.args["input"])
    first = len(x.axes) - len(call.args["normalized_shape"])
    centred = "layer" in call.op
    plain = not centred and not isinstance(call.args.get("weight"), Ref) and len(x.axes) - first == 1
    _normalise(engine, x.axes, range(first, len(x.axes)), centred, plain)
    result = Value(tuple(forget_zeros(a) for a in x.axes))
    if isinstance(weight := call.args.get("weight"), Ref):
        gain = engine.value(weight)
        if len(gain.axes[-1]) == 1:  # not cut into factors by other readers
            result = Value((*result.axes[:-1], engine.unrolled(result.axes[-1])), result.zero)
        result = multiplied(engine, result, gain)
    if isinstance(bias := call.args.get("bias"), Ref):
        result = added(engine, result, engine.value(bias))
    return [result]


@register_rule("aten::native_group_norm")
def group_norm(engine: Engine, call: Call) -> list[Value]:
    """Group norm: units move inside their group and groups move whole."""
    x = engine.value(call.args["input"])
    group, unit = engine.split(x.axes[1], (call.args["group"], x.shape[1] // call.args["group"]))
    axes = [x.axes[0], group, unit, *x.axes[2:]]
    _normalise(engine, axes, [2, *range(3, len(axes))], centred=True, orthogonal=False)
    normalised = Value(tuple(forget_zeros(a) for a in (x.axes[0], (*group, *unit), *x.axes[2:])))
    return [_affine(engine, normalised, call, 1)]
