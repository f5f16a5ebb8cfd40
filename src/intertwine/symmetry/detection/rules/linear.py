"""Rules of linear maps: matrix products, convolutions of all ranks, dot-product attention, distances between rows.

Also functions of matrices (inverses, exponentials) and complex numbers: a complex tensor has the axes of its real and
imaginary parts, since elements are real, and real maps of its units commute with taking the parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....programs import Call, Ref
from ....programs.operations import LINEAR, SCALED_DOT_PRODUCTS
from ..axis_terms import Axis, Flat, Pick, Value, axis_size, forget_zeros, slots
from ..engine import Engine
from .elementwise import added, broadcast
from .registry import opaque, register_rule, relaid, unknown
from .unit_indices import joined, origins, without


def matmul(engine: Engine, a: Value, b: Value) -> Value:
    """The product ``(..., m, k) @ (..., k, n)`` with shared batch axes."""
    batch = [engine.multiplied(x, y) for x, y in broadcast(Value(a.axes[:-2]), Value(b.axes[:-2]))]
    engine.contracted(a.axes[-1], b.axes[-2])
    free = (*batch, *a.axes[-2:-1], b.axes[-1])
    via = joined(engine, [without(engine, a.via, [a.axes[-1]]), without(engine, b.via, [b.axes[-2]])])
    meet(engine, free, a.axes[-1], via)
    return Value(free, a.zero or b.zero, via=via)


def meet(engine: Engine, free: tuple[Axis, ...], summed: Axis, via: tuple[Pick, ...]) -> None:
    """Record which axes a contraction brings together, before and after the sum."""
    engine.met += [(*axes, *origins(engine, axes, via)) for axes in ((*free, summed), free)]


@register_rule(*(LINEAR.keys() - {"aten::convolution", "aten::_grouped_mm"}))
def product(engine: Engine, call: Call) -> Value:
    """Products of matrices, batched or not, transposed or not, with or without an added term."""
    first, second, summed, bias = LINEAR[call.op]
    x, w = engine.value(call.args[first]), engine.value(call.args[second])
    if summed == -1:
        w = Value((*w.axes[:-2], w.axes[-1], w.axes[-2]), w.zero, via=w.via)
    result, beside = matmul(engine, x, w), call.args.get(bias)
    if result.zero:
        engine.skip(call.args[first], call.args[second])
    if not isinstance(beside, Ref) or call.args.get("beta") == 0:
        return result
    return replace(added(engine, result, engine.value(beside)), via=result.via)


@register_rule("aten::convolution")
def convolution(engine: Engine, call: Call) -> Value:
    """Convolutions, transposed or not, grouped or not: channels are contracted group by group, positions are fixed."""
    x, w = engine.value(call.args["input"]), engine.value(call.args["weight"])
    engine.fix_all(w.axes[2:], "convolution kernel")
    where = lambda: _space(engine, call, x.axes[2 - len(w.axes) :], w.shape[2:])
    return _convolved(engine, call, x, w, where)


def _convolved(engine: Engine, call: Call, x: Value, w: Value, where: Callable[[], Sequence[Axis]]) -> Value:
    """Channels contracted group by group, with the spatial axes given by ``where``, and a bias."""
    groups, rank = call.args["groups"], len(w.axes) - 2
    batch, channels, spatial = x.axes[: -rank - 1], x.axes[-rank - 1], x.axes[-rank:]
    outer = engine.split(w.axes[0], (groups, w.shape[0] // groups))
    inner = engine.split(channels, (groups, axis_size(channels) // groups))
    contracted, free = (outer[1], w.axes[1]) if call.args.get("transposed") else (w.axes[1], outer[1])
    group = engine.multiplied(inner[0], outer[0]) if groups > 1 else ()
    engine.contracted(inner[1], contracted)
    engine.met.append((*batch, group, free, contracted, *spatial, *w.axes[2:]))
    result = Value((*batch, (*group, *free), *where()), x.zero or w.zero)
    if result.zero:
        engine.skip(call.args["input"], call.args["weight"])
    bias = call.args.get("bias")
    if not isinstance(bias, Ref):
        return result
    return added(engine, result, Value((engine.value(bias).axes[0], *((),) * rank)))


@register_rule("torchvision::deform_conv2d")
def deformed_convolution(engine: Engine, call: Call) -> Value:
    """A deformable convolution: linear in the channels; offsets and masks do not scale."""
    x, w = engine.value(call.args["input"]), engine.value(call.args["weight"])
    why = f"places read by {call.where}"
    engine.fix_all((*x.axes[2:], *w.axes[2:]), why)
    for name in ("offset", "mask"):
        if isinstance(call.args.get(name), Ref) and (name != "mask" or call.args["use_mask"]):
            engine.fix_all(engine.value(call.args[name]).axes[1:], why)
            engine.equal(x.axes[0], engine.rigid(engine.value(call.args[name]).axes[0], why))
    channels, groups = x.axes[1], call.args["offset_groups"]
    if groups > 1:
        blocks, units = engine.split(channels, (groups, x.shape[1] // groups))
        channels = engine.pool.resolve((*engine.fix(blocks, why), *units))
    where = lambda: [engine.fresh(n, why, i) for i, n in enumerate(engine.made(call)[2:])]
    return _convolved(engine, call, x.put(1, channels), w, where)


def _space(engine: Engine, call: Call, spatial: tuple[Axis, ...], kernel: Sequence[int]) -> tuple[Axis, ...]:
    """Spatial axes of the result: unchanged if only single points are read, fixed otherwise."""
    at = lambda name, i: call.args[name][i] if len(call.args[name]) > 1 else call.args[name][0]
    kept = {i: i for i, n in enumerate(kernel) if n == 1 and at("stride", i) == 1 and at("padding", i) == 0}
    shape, why = engine.made(call)[-len(spatial) :], "spatial positions of a convolution"
    return relaid(engine, Value(spatial), shape, kept, why).axes


@register_rule(*SCALED_DOT_PRODUCTS)
def attention(engine: Engine, call: Call) -> list[Value]:
    """``softmax(q k^T + mask) v``, head by head; with fewer heads, keys and values are shared by groups of queries."""
    q, k, v = (engine.value(call.args[name]) for name in ("query", "key", "value"))
    heads, shared = q.shape[-3], k.shape[-3]
    if heads != shared:
        split = engine.split(q.axes[-3], (shared, heads // shared))
        q = Value((*q.axes[:-3], *split, *q.axes[-2:]))
        k, v = (Value((*x.axes[:-2], (), *x.axes[-2:])) for x in (k, v))
    scores = matmul(engine, q, Value((*k.axes[:-2], k.axes[-1], k.axes[-2])))
    mask = call.args.get("attn_mask", call.args.get("attn_bias"))
    if isinstance(mask, Ref):
        m = engine.value(mask)
        if heads != shared and len(m.axes) >= 3:
            groups = engine.split(m.axes[-3], (shared, heads // shared)) if m.axes[-3] else [(), ()]
            m = Value((*m.axes[:-3], *groups, *m.axes[-2:]))
        scores = added(engine, scores, m)
    if call.args.get("is_causal"):
        why = f"causal order at {call.where}"
        tokens = (engine.equal(a, engine.fresh(axis_size(a), why, i)) for i, a in enumerate(scores.axes[-2:]))
        scores = Value((*scores.axes[:-2], *tokens))
    scores = Value(tuple(engine.rigid(a, f"softmax in {call.where}") for a in scores.axes))
    engine.mix(scores.axes, scores.axes[-1])
    if axis_size(scores.axes[-1]) == 1:  # a single key gets all of the attention
        engine.skip(call.args["query"], call.args["key"])
    result = matmul(engine, scores, v)
    if heads != shared:
        result = Value((*result.axes[:-4], (*result.axes[-4], *result.axes[-3]), *result.axes[-2:]))
    return [result]


@register_rule("aten::_cdist_forward", "aten::_euclidean_dist", "aten::cdist")
def between(engine: Engine, call: Call) -> Value:
    """Distances between all rows of two tensors: Euclidean distances let orthogonal maps pass."""
    x, y = engine.value(call.args["x1"]), engine.value(call.args["x2"])
    batch = [engine.equal(a, b) for a, b in zip(x.axes[:-2], y.axes[:-2], strict=True)]
    rows = (*batch, x.axes[-2], y.axes[-2])
    _measured(engine, call, rows, engine.equal(x.axes[-1], y.axes[-1]))
    return Value(rows)


@register_rule("aten::_pdist_forward")
def among(engine: Engine, call: Call) -> Value:
    """Pairwise distances among the rows of one tensor: the rows are fixed."""
    x = engine.value(call.args["self"])
    why = f"pairs of rows at {call.where}"
    engine.fix(x.axes[0], why)
    _measured(engine, call, (x.axes[0],), x.axes[1])
    return Value((engine.fresh(engine.made(call)[0], why),))


def _measured(engine: Engine, call: Call, rows: tuple[Axis, ...], units: Axis) -> None:
    """Restrict axes as the length of differences along ``units``, row by row, requires."""
    for axis in rows:
        engine.rigid(axis, f"distances taken by {call.where}")
    engine.no_scale(units, f"distances taken by {call.where}")
    if call.args.get("p", 2) == 2:
        engine.orthogonal(units)
    else:
        engine.monomial(units)
    engine.met += [(*rows, units), rows]


@register_rule("aten::linalg_inv_ex")
def inverse(engine: Engine, call: Call) -> list[Value]:
    """Inverses: what acts on the rows acts inversely on the columns of the result, and vice versa."""
    x = engine.value(call.args["A"])
    for axis in x.axes:
        engine.monomial(axis)
    for axis in x.axes[-2:]:
        engine.mix(x.axes, axis)
    *batch, rows, columns = (engine.powered(axis, -1, True) for axis in x.axes)
    errors = Value(tuple(engine.unscaled(axis) for axis in batch))
    return [Value((*batch, columns, rows)), errors]


@register_rule("aten::linalg_matrix_exp")
def exponential(engine: Engine, call: Call) -> Any:
    """Exponentials: what acts on the rows acts inversely on the columns, of the argument as of the result."""
    x = engine.value(call.args["self"])
    *batch, rows, columns = x.axes
    if any(isinstance(f, Flat) for axis in (rows, columns) for f in axis) or not list(slots(rows)):
        return unknown(engine, call)
    for axis in batch:
        engine.rigid(axis)
    engine.contracted(engine.monomial(rows), engine.monomial(columns))
    for axis in (rows, columns):
        engine.mix(x.axes, axis)
    return Value((*(forget_zeros(axis) for axis in batch), rows, columns))


@register_rule("aten::_linalg_det", "aten::_linalg_slogdet", "aten::_linalg_svd")
def volume(engine: Engine, call: Call) -> list[Value]:
    """Determinants: what acts on the rows must act inversely on the columns, if nothing else is read.

    Also their logarithms, and singular values, which let orthogonal maps pass on both sides.
    """
    x, read = engine.value(call.args["A"]), 0 if call.op == "aten::_linalg_det" else 1
    if any(ref is not None and ref.id in engine.readers for i, ref in enumerate(call.outputs) if i != read):
        return unknown(engine, call)
    *batch, rows, columns = x.axes
    if not read:
        engine.contracted(rows, columns)
    for axis in (rows, columns):
        if read:
            engine.orthogonal(engine.no_scale(axis))
        engine.mix(x.axes, axis)
    kept = tuple(forget_zeros(engine.rigid(axis)) for axis in batch)
    results = [opaque(engine, ref, f"made by {call.where}", i) for i, ref in enumerate(call.outputs)]
    results[read] = Value((*kept, *results[read].axes[len(kept) :]))
    return results


@register_rule("aten::view_as_complex")
def as_complex(engine: Engine, call: Call) -> Value:
    """Pairs of numbers as complex numbers; the order within a pair is fixed."""
    x = engine.value(call.args["self"])
    engine.fix(x.axes[-1], f"real and imaginary parts at {call.where}")
    return Value(x.axes[:-1], x.zero)


@register_rule("aten::view_as_real")
def as_real(engine: Engine, call: Call) -> Value:
    """Complex numbers as pairs."""
    x = engine.value(call.args["self"])
    return Value((*x.axes, engine.fresh(2, f"real and imaginary parts at {call.where}")), x.zero)


@register_rule("aten::complex")
def compose(engine: Engine, call: Call) -> Value:
    """A complex tensor from its parts."""
    return added(engine, engine.value(call.args["real"]), engine.value(call.args["imag"]))
