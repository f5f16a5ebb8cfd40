"""Reductions over axes: sums, means, extrema, norms, softmax, and running sums."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from ....programs import Call, Ref
from ....programs.operations import SOFTMAXES
from ..axis_terms import Axis, Value, axis_size, forget_zeros
from ..engine import Engine
from .elementwise import broadcast
from .indexing import places
from .registry import opaque, register_rule, unknown
from .unit_indices import drop

Law = Callable[[Axis], Axis]


def _dims(call: Call, rank: int) -> set[int]:
    dim: Any = call.args.get("dim")
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return set(range(rank))
    return {d % rank for d in dim} if isinstance(dim, list | tuple) else {dim % rank}


def _reduced(call: Call, axes: Sequence[Axis], dims: set[int]) -> Value:
    keep = bool(call.args.get("keepdim", False))
    return Value(tuple(() if i in dims else a for i, a in enumerate(axes) if keep or i not in dims))


def _by_laws(engine: Engine, call: Call, along: Law, beside: Law) -> Value:
    """A reduction that takes something away from the axes that it runs along, and from those beside them."""
    x = engine.value(call.args["self"])
    dims = _dims(call, len(x.axes))
    return _reduced(call, [along(a) if i in dims else beside(a) for i, a in enumerate(x.axes)], dims)


@register_rule("aten::sum", "aten::mean", "aten::nansum")
def total(engine: Engine, call: Call) -> Value:
    """Sums: over a moved axis only permutations pass, over a square of it orthogonal maps too.

    A sum of products is a contraction of the two factors.
    """
    x = engine.value(call.args["self"])
    dims = _dims(call, len(x.axes))
    if x.factors is not None:
        return _contraction(engine, call, x, dims)
    for i, axis in enumerate(x.axes):
        if i not in dims:
            if x.square:
                engine.monomial(axis)
            continue
        why = f"sum over the units at {call.where}"
        engine.no_sign(engine.no_scale(axis, why), why)
        engine.orthogonal(axis) if x.square else engine.monomial(axis, why)
    return _reduced(call, list(x.axes), dims)


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
        from .elementwise import extremum

        return [extremum(engine, call)]
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


@register_rule("aten::var_mean", "aten::std_mean")
def moments(engine: Engine, call: Call) -> list[Value]:
    """Variance (or deviation) and mean at once."""
    spread = "aten::var" if call.op == "aten::var_mean" else "aten::std"
    return [norm(engine, replace(call, op=spread)), total(engine, replace(call, op="aten::mean"))]


@register_rule(*SOFTMAXES, "aten::_safe_softmax", "aten::_log_softmax", "aten::log_softmax")
def softmax(engine: Engine, call: Call) -> Value:
    """Softmax: only permutations pass, and it mixes the units of its axis."""
    x = engine.value(call.args["self"])
    axes = tuple(forget_zeros(engine.rigid(a)) for a in x.axes)
    if axes:
        along = axes[call.args["dim"] % len(axes)]
        engine.mix(axes, along)
        if axis_size(along) == 1:  # the share of the only one is 1, whatever it is
            engine.skip(call.args["self"])
    return Value(axes)


@register_rule("aten::logsumexp", "aten::any", "aten::all", "aten::_is_all_true", "aten::_is_any_true")
def rigid_reduction(engine: Engine, call: Call) -> Value:
    """Reductions through which only permutations pass."""
    only_permutations: Law = lambda axis: forget_zeros(engine.rigid(axis))
    return _by_laws(engine, call, only_permutations, only_permutations)


@register_rule("aten::cumsum", "aten::flip", "aten::roll", "aten::rot90")
def ordered(engine: Engine, call: Call) -> Value:
    """Operations along an order: they fix their axis and are linear in the others."""
    x = engine.value(call.args["self"])
    dims: Any = call.args.get("dim", call.args.get("dims"))
    dims = list(range(len(x.axes))) if dims in ([], None) else dims if isinstance(dims, list | tuple) else [dims]
    where = {d % max(len(x.axes), 1) for d in dims}
    why = f"order matters to {call.where}"
    if call.op == "aten::cumsum" and x.names is not None and x.names.kind == "counts" and len(x.axes) == 1:
        return Value(x.axes, names=replace(x.names, kind="offsets"))  # where the rows of each unit end
    drop(engine, x.names)
    for i in where:
        engine.fix(x.axes[i], why) if x.axes else None
    shape = engine.program.values[out.id].shape if (out := call.outputs[0]) is not None else x.shape
    axes = tuple(engine.fresh(shape[i], why, i) if i in where else a for i, a in enumerate(x.axes))
    for i in where:
        engine.mix(axes, axes[i]) if axes else None
    return Value(axes, x.zero)


@register_rule("aten::cummax", "aten::cummin")
def running_extreme(engine: Engine, call: Call) -> list[Value]:
    """Largest (or smallest) entries so far, and where they are: as running sums, but only positive scales pass."""
    result = ordered(engine, call)
    axes = tuple(engine.homogeneous(axis) for axis in result.axes)
    places = tuple(engine.unscaled(axis) for axis in axes)
    return [Value(axes, result.zero), Value(places)][: len(call.outputs)]


@register_rule("aten::cumprod", "aten::logcumsumexp")
def running_other(engine: Engine, call: Call) -> Value:
    """Running products and sums of exponentials: only permutations of the other axes pass."""
    result = ordered(engine, call)
    return Value(tuple(forget_zeros(engine.rigid(axis)) for axis in result.axes))


@register_rule("aten::median", "aten::nanmedian", "aten::kthvalue", "aten::mode")
def ranked(engine: Engine, call: Call) -> list[Value]:
    """One entry by its rank along an axis, fixed where its place is read; positive scales pass along the others."""
    x = engine.value(call.args["self"])
    dims = _dims(call, len(x.axes))
    located = any(ref is not None and ref.id in engine.readers for ref in (*call.outputs[1:], None))
    for i, axis in enumerate(x.axes):
        if i not in dims:
            engine.homogeneous(axis)
        elif located:
            engine.fix(axis, f"order matters to {call.where}")
        else:
            engine.rigid(axis)
    places = [engine.unscaled(axis) for axis in x.axes]
    return [_reduced(call, list(x.axes), dims), _reduced(call, places, dims)][: len(call.outputs)]


@register_rule("aten::prod")
def product(engine: Engine, call: Call) -> Value:
    """Products over an axis: of a known number of factors, so scales of the other axes are raised to that power."""
    x = engine.value(call.args["self"])
    count = prod(x.shape[k] for k in _dims(call, len(x.axes)))
    power: Law = lambda axis: engine.powered(engine.monomial(axis), count, bool(count % 2))
    return _by_laws(engine, call, engine.rigid, power)


@register_rule("aten::_ctc_loss")
def aligned(engine: Engine, call: Call) -> list[Value]:
    """Sums over all alignments of labels in their order: classes and times are fixed, and the examples."""
    if any(ref is not None and ref.id in engine.readers for ref in call.outputs[1:]):
        return unknown(engine, call)
    why = f"classes and times of {call.where}"
    engine.fix_read(call.inputs, why)
    return [opaque(engine, ref, why, i) for i, ref in enumerate(call.outputs)]
