"""Rules of reductions over axes and spatial windows: sums, means, extrema, norms, softmax, running sums, pooling.

Also of resampling, padding by copies and crops by boxes; and of normalisations, whose stabilising epsilon stops scales,
except where batch norm's stored variance can follow.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from ....programs import Call, Ref, operations
from ....programs.operations import aten
from ...spaces import BatchNormTensors, Cause
from ..axis_terms import Axis, Expr, Flat, Slot, Value, axis_size, forget_zeros
from ..engine import Engine
from .elementwise import added, broadcast, multiplied, through, together
from .indexing import places
from .registry import register_rule, relaid, relaid_along

Law = Callable[[Axis], Axis]


def _dims(call: Call, rank: int) -> set[int]:
    dim: Any = call.args.get("dim", call.args.get("dims"))
    dims = dim if isinstance(dim, list | tuple) else [] if dim is None else [dim]
    return {d % rank for d in dims if rank} or set(range(rank))  # a single number has a dimension 0, but no axis


def _reduced(call: Call, axes: Sequence[Axis], dims: set[int]) -> Value:
    keep = bool(call.args.get("keepdim", False))
    return Value(tuple(() if i in dims else a for i, a in enumerate(axes) if keep or i not in dims))


def _by_laws(engine: Engine, call: Call, along: Law, beside: Law) -> Value:
    """A reduction that restricts the axes it runs along, and those beside them."""
    x = engine.value(call.args["self"])
    dims = _dims(call, len(x.axes))
    return _reduced(call, [along(a) if i in dims else beside(a) for i, a in enumerate(x.axes)], dims)


@register_rule("aten::sum", "aten::mean", "aten::nansum")
def total(engine: Engine, call: Call) -> Value:
    """Sums: over a moving axis only permutations pass, over a square orthogonal maps too; of products, contractions."""
    x = engine.value(call.args["self"])
    if x.factors is not None:
        return _contraction(engine, call, x, _dims(call, len(x.axes)))
    why = f"sum over the units at {call.where}"

    def along(axis: Axis) -> Axis:
        engine.no_sign(engine.no_scale(axis if call.op == "aten::mean" else engine.added_up(axis), why), why)
        engine.orthogonal(axis) if x.square else engine.monomial(axis, why)
        return axis

    return _by_laws(engine, call, along, engine.monomial if x.square else lambda axis: axis)


def _contraction(engine: Engine, call: Call, x: Value, dims: set[int]) -> Value:
    """The sum over some axes of the product of two tensors."""
    why = f"sum over the units at {call.where}"
    for i, (a, b) in enumerate(broadcast(*x.factors)) if x.factors else ():
        if not a or not b:
            engine.rigid(a or b, why) if i in dims else None
        elif i in dims:
            engine.contracted(a, b)
        else:
            engine.multiplied(a, b)
    result = _reduced(call, list(x.axes), dims)
    engine.met += [x.axes, result.axes]
    return result


@register_rule("aten::amax", "aten::amin", "aten::max", "aten::min")
def extreme(engine: Engine, call: Call) -> list[Value]:
    """Extrema over axes: positively homogeneous in the others."""
    if isinstance(call.args.get("other"), Ref):
        return [together(engine, call)]
    x = engine.value(call.args["self"])
    dims = _dims(call, len(x.axes))
    reduced = _by_laws(engine, call, engine.rigid, engine.homogeneous)
    return [reduced] if len(call.outputs) < 2 or len(dims) != 1 else [reduced, places(engine, call, x, *dims)]


@register_rule("aten::linalg_vector_norm", "aten::norm", "aten::var", "aten::std")
def norm(engine: Engine, call: Call) -> Value:
    """Norms, variances and deviations over axes."""
    order = call.args.get("ord", call.args.get("p", 2))
    is_norm = call.op in ("aten::linalg_vector_norm", "aten::norm")
    degree = Fraction(0 if is_norm and order == 0 else 2 if call.op == "aten::var" else 1)

    def along(axis: Axis) -> Axis:
        engine.no_scale(axis)
        if not is_norm:
            engine.no_sign(axis)
        engine.orthogonal(axis) if is_norm and order == 2 else engine.monomial(axis)
        return axis

    return _by_laws(engine, call, along, lambda axis: engine.powered(engine.monomial(axis), degree, False))


@register_rule(*operations.SOFTMAXES, "aten::_safe_softmax", "aten::_log_softmax", "aten::log_softmax")
def softmax(engine: Engine, call: Call) -> Value:
    """Softmax: only permutations pass, and it mixes the units of its axis."""
    x = engine.value(call.args["self"])
    axes = tuple(forget_zeros(engine.rigid(a)) for a in x.axes)
    if axes:
        along = axes[call.args["dim"] % len(axes)]
        engine.mix(axes, along)
        if axis_size(along) == 1:  # the share of a single entry is always 1
            engine.skip(call.args["self"])
    return Value(axes)


@register_rule("aten::logsumexp", "aten::any", "aten::all", "aten::_is_all_true", "aten::_is_any_true")
def rigid_reduction(engine: Engine, call: Call) -> Value:
    """Reductions through which only permutations pass."""
    only_permutations: Law = lambda axis: forget_zeros(engine.rigid(axis))
    return _by_laws(engine, call, only_permutations, only_permutations)


@register_rule(*aten("cumsum rot90 cummax cummin cumprod logcumsumexp _fft_r2c _fft_c2c _fft_c2r"))
def ordered(engine: Engine, call: Call) -> list[Value]:
    """Operations along an order, and Fourier transforms: they fix their axis and are linear along the others.

    Of nonlinear running functions, extrema let positive scales pass, the others only permutations.
    """
    x = engine.value(call.args["self"])
    if call.op == "aten::cumsum" and x.names is not None and x.names.kind == "counts" and len(x.axes) == 1:
        return [Value(x.axes, names=replace(x.names, kind="offsets"))]  # the end of each unit's rows
    engine.drop(x)
    where = _dims(call, len(x.axes))
    why = f"{'Fourier transform at' if 'fft' in call.op else 'order matters to'} {call.where}"
    result = relaid_along(engine, call, x, where, why)
    for i in where:
        engine.mix(result.axes, result.axes[i])
    if call.op in ("aten::cummax", "aten::cummin"):
        result = Value(tuple(engine.homogeneous(axis) for axis in result.axes), result.zero)
    elif call.op in ("aten::cumprod", "aten::logcumsumexp"):
        result = Value(tuple(forget_zeros(engine.rigid(axis)) for axis in result.axes))
    return [result, Value(tuple(engine.unscaled(axis) for axis in result.axes))][: len(call.outputs)]


@register_rule("aten::median", "aten::nanmedian", "aten::kthvalue", "aten::mode")
def ranked(engine: Engine, call: Call) -> list[Value]:
    """An entry by its rank along an axis, which is fixed if the index is read; positive scales pass along others."""
    located = any(ref is not None and ref.id in engine.readers for ref in call.outputs[1:])
    fixed: Law = lambda axis: engine.fix(axis, f"order matters to {call.where}")
    result = _by_laws(engine, call, fixed if located else engine.rigid, engine.homogeneous)
    return [result, Value(tuple(engine.unscaled(axis) for axis in result.axes))][: len(call.outputs)]


@register_rule("aten::prod")
def product(engine: Engine, call: Call) -> Value:
    """Products over an axis: the number of factors is known, so scales of other axes are raised to that power."""
    x = engine.value(call.args["self"])
    count = prod(x.shape[k] for k in _dims(call, len(x.axes)))
    power: Law = lambda axis: engine.powered(engine.monomial(axis), count, bool(count % 2))
    return _by_laws(engine, call, engine.rigid, power)


_MAX = operations.MAX_POOLS | aten("fractional_max_pool2d fractional_max_pool3d")
_SMOOTHED = aten("_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa")
_PLACED = aten("unfold unfold_copy grid_sampler_2d grid_sampler_3d cudnn_grid_sampler")
_AVERAGED = operations.AVERAGE_POOLS - {"aten::mean"}
_LINEAR = _AVERAGED | operations.INTERPOLATIONS | operations.GATHERS | _SMOOTHED | _PLACED


@register_rule(*_MAX)
def max_pool(engine: Engine, call: Call) -> list[Value]:
    """Maxima over windows, and their positions: positive scales and permutations of channels pass."""
    result = windowed(engine, call)
    if isinstance(samples := call.args.get("random_samples"), Ref):  # windows drawn for each channel
        for own, drawn in zip(result.axes, engine.value(samples).axes[:2]):
            engine.equal(own, drawn)
    for axis in result.axes:
        engine.homogeneous(axis)
    places = Value(tuple(engine.unscaled(axis) for axis in result.axes))
    return [result, places][: len(call.outputs)]


@register_rule("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(engine: Engine, call: Call) -> Value:
    """Entries put back to the positions of maxima, with zeros between: each channel has its own positions."""
    result, places = windowed(engine, call), engine.value(call.args["indices"])
    first = len(places.axes) - int(next(c for c in call.op if c in "23"))
    engine.fix_all(places.axes[first:], f"spatial positions of {call.where}")

    def pair(entry: Any, place: Any) -> Any:  # equal entries at different positions are no longer equal
        return Slot(place.space, place.size) if isinstance(entry, Flat) and isinstance(place, Slot) else entry

    why = f"places read by {call.where}"
    both = zip(result.axes[:first], places.axes[:first])
    axes = (engine.zip(engine.monomial(axis), engine.rigid(index, why), pair) for axis, index in both)
    return Value((*axes, *result.axes[first:]), result.zero)


@register_rule(*_LINEAR)
def windowed(engine: Engine, call: Call) -> Value:
    """Averages over windows, interpolation (also at grid points) and padding by copies: linear in channels."""
    x, why = engine.value(call.inputs[0]), f"spatial positions of {call.where}"
    if "grid" in call.op:
        engine.fix_all((x.axes[0], *engine.value(call.args["grid"]).axes), why)
    spatial = int(next((c for c in call.op if c in "123"), 2))
    dims = [call.args["dimension"]] if "dimension" in call.args else range(-spatial, 0)
    return relaid_along(engine, call, x, dims, why)


@register_rule("aten::triu", "aten::tril")
def triangle(engine: Engine, call: Call) -> Value:
    """Triangular parts: everything above (or below) a diagonal is zero, so the last two axes pass no permutations."""
    x = engine.value(call.args["self"])
    why = f"places relative to a diagonal at {call.where}"
    last = (engine.multiplied(engine.fresh(axis_size(a), why, i), a) for i, a in enumerate(x.axes[-2:]))
    return Value((*x.axes[:-2], *last), x.zero)


@register_rule("torchvision::roi_align", "torchvision::roi_pool")
def crops(engine: Engine, call: Call) -> list[Value]:
    """Crops of feature maps by boxes: averages are linear in the channels, maxima let positive scales pass."""
    why = f"regions of {call.where}"
    engine.fix_all(engine.value(call.args["rois"]).axes, why)
    result = relaid(engine, engine.value(call.args["input"]), engine.made(call), {1: 1}, why)
    if call.op == "torchvision::roi_align":
        return [result]
    engine.homogeneous(result.axes[1])
    return [result, through(engine, Value(result.axes), 0, 0)]


@register_rule(*operations.BATCH_NORMS)
def batch_norm(engine: Engine, call: Call) -> list[Value]:
    """Batch norm with stored statistics: its input and output scale independently (v2 E.47, v1 E.26).

    The mean scales as the input and the variance as its square, ``a^2 (v + eps) - eps``, which is exact.
    """
    x = engine.value(call.args["input"])
    channels = x.axes[1]
    if operations.normalises_by_input(call):
        axes = [engine.rigid(a, "statistics of the batch") if i != 1 else a for i, a in enumerate(x.axes)]
        engine.monomial(engine.no_scale(channels, Cause(f"epsilon of {call.where}", "epsilon")))
        for i, axis in enumerate(axes):
            if i != 1:
                engine.mix(axes, axis)
        return [_affine(engine, Value((axes[0], channels, *axes[2:])), call, 1)]
    for i, axis in enumerate(x.axes):
        if i != 1:
            engine.rigid(axis, f"one number added to all units at {call.where}")
    mean, variance = call.args["running_mean"], call.args["running_var"]
    if not _owns_statistics(engine, call, mean, variance):
        engine.no_scale(channels, f"statistics of {call.where} are read elsewhere")
    channels = engine.equal(channels, engine.value(mean).axes[0]) if channels else ()
    channels = engine.zip(channels, engine.value(variance).axes[0], lambda s, v: _standardised(engine, s, v))
    engine.monomial(channels)
    return [_affine(engine, Value((x.axes[0], channels, *x.axes[2:])), call, 1)]


def _standardised(engine: Engine, x: Any, variance: Any) -> Any:
    """Input over the root of the stored variance, with ``2 log a - log v = 0``: only the sign of ``a`` remains."""
    if not isinstance(variance, Slot):
        return engine.rigid((x,))[0] if isinstance(x, Slot) else Flat(x.size)
    if not isinstance(x, Slot):
        return engine.rigid((variance,))[0]
    twice = x.expr.power(2, False)
    engine.system.log.add((twice + variance.expr.power(-1, True)).log)
    engine.system.sign_is_zero(variance.expr)
    return Slot(x.space, x.size, Expr({}, x.expr.sign))


def _owns_statistics(engine: Engine, call: Call, mean: Ref, variance: Ref) -> bool:
    """Whether mean and variance are stored tensors that only such calls read, with one epsilon; recorded if so."""
    names = {ref.id: name for name, ref in engine.program.states.items()}
    if mean.id not in names or variance.id not in names:
        return False
    readers = [*engine.readers[mean.id], *engine.readers[variance.id]]
    if any(c.op not in operations.BATCH_NORMS or c.args["eps"] != call.args["eps"] for c in readers):
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
    why = Cause(f"epsilon of {engine.call.where}", "epsilon")
    for i, axis in enumerate(axes):
        engine.no_scale(axis, why)
        if i not in over:
            engine.monomial(axis)
            continue
        if centred:
            engine.no_sign(axis, f"mean taken by {engine.call.where}")
        engine.orthogonal(axis) if orthogonal else engine.monomial(axis)
        engine.mix(axes, axis)


@register_rule(*operations.LAYER_NORMS, *operations.RMS_NORMS)
def layer_norm(engine: Engine, call: Call) -> list[Value]:
    """Layer norm and RMS norm over the last axes."""
    x = engine.value(call.args["input"])
    first = len(x.axes) - len(call.args["normalized_shape"])
    centred = "layer" in call.op
    plain = not centred and not isinstance(call.args.get("weight"), Ref) and len(x.axes) - first == 1
    _normalise(engine, x.axes, range(first, len(x.axes)), centred, plain)
    *others, last = (forget_zeros(a) for a in x.axes)
    weight = call.args.get("weight")
    if isinstance(weight, Ref) and len(engine.value(weight).axes[-1]) == 1:  # not split into factors by other readers
        last = engine.unrolled(last)
    return [_affine(engine, Value((*others, last)), call, len(others))]


@register_rule("aten::native_group_norm")
def group_norm(engine: Engine, call: Call) -> list[Value]:
    """Group norm: units move within their group, and groups move as a whole."""
    x = engine.value(call.args["input"])
    group, unit = engine.split(x.axes[1], (call.args["group"], x.shape[1] // call.args["group"]))
    axes = [x.axes[0], group, unit, *x.axes[2:]]
    _normalise(engine, axes, [2, *range(3, len(axes))], centred=True, orthogonal=False)
    normalised = Value(tuple(forget_zeros(a) for a in (x.axes[0], (*group, *unit), *x.axes[2:])))
    return [_affine(engine, normalised, call, 1)]
