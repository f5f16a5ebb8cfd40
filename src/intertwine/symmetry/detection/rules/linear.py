"""Linear maps: matrix products and convolutions of every rank.

Scaled dot-product attention where it is kept whole.

Distances between rows.
"""

from collections.abc import Sequence
from dataclasses import replace

from ....programs import Call, Ref
from ....programs.operations import SCALED_DOT_PRODUCTS
from ..axis_terms import Axis, Pick, Value, axis_size
from ..engine import Engine
from .elementwise import added
from .registry import register_rule
from .unit_indices import joined, origins, without


def matmul(engine: Engine, a: Value, b: Value) -> Value:
    """The product ``(..., m, k) @ (..., k, n)`` with shared batch axes."""
    batch = [engine.multiplied(x, y) for x, y in zip(a.axes[:-2], b.axes[:-2], strict=True)]
    engine.contracted(a.axes[-1], b.axes[-2])
    free = (*batch, a.axes[-2], b.axes[-1])
    via = joined(engine, [without(engine, a.via, [a.axes[-1]]), without(engine, b.via, [b.axes[-2]])])
    meet(engine, free, a.axes[-1], via)
    return Value(free, a.zero or b.zero, via=via)


def meet(engine: Engine, free: tuple[Axis, ...], summed: Axis, via: tuple[Pick, ...]) -> None:
    """Note which axes a contraction brings together, before and after the sum."""
    engine.met += [(*axes, *origins(engine, axes, via)) for axes in ((*free, summed), free)]


@register_rule("aten::mm", "aten::bmm")
def mm(engine: Engine, call: Call) -> Value:
    """Products of matrices and of batches of matrices."""
    return matmul(engine, engine.value(call.args["self"]), engine.value(call.args["mat2"]))


@register_rule("aten::addmm", "aten::baddbmm")
def addmm(engine: Engine, call: Call) -> Value:
    """A product of matrices added to something."""
    first, second = ("mat1", "mat2") if call.op == "aten::addmm" else ("batch1", "batch2")
    product = matmul(engine, engine.value(call.args[first]), engine.value(call.args[second]))
    if product.zero:
        engine.skip(call.args[first], call.args[second])
    if call.args.get("beta") == 0:
        return product
    return replace(added(engine, product, engine.value(call.args["self"])), via=product.via)


@register_rule("aten::linear")
def linear(engine: Engine, call: Call) -> Value:
    """``x W^T + b`` where it is kept whole."""
    x, w = engine.value(call.args["input"]), engine.value(call.args["weight"])
    engine.contracted(x.axes[-1], w.axes[-1])
    free = (*x.axes[:-1], *w.axes[:-1])
    via = joined(engine, [without(engine, x.via, [x.axes[-1]]), w.via])
    meet(engine, free, x.axes[-1], via)
    result = Value(free, x.zero or w.zero)
    if result.zero:
        engine.skip(call.args["input"], call.args["weight"])
    bias = call.args.get("bias")
    result = added(engine, result, engine.value(bias)) if isinstance(bias, Ref) else result
    return replace(result, via=via)


@register_rule("aten::_trilinear")
def trilinear(engine: Engine, call: Call) -> Value:
    """The product of three tensors summed over some axes: each axis is summed against the one that shares it."""
    parts = [engine.value(call.args[name]) for name in ("i1", "i2", "i3")]
    for k, part in enumerate(parts):
        axes = list(part.axes)
        for dim in sorted(call.args[f"expand{k + 1}"]):
            axes.insert(dim, ())
        parts[k] = Value(tuple(axes), part.zero)
    rank = len(parts[0].axes)
    summed = {d % rank for d in call.args["sumdim"]}
    joint: list[Axis] = []
    for i in range(rank):
        own = [part.axes[i] for part in parts if part.axes[i]]
        joined: Axis = own[0] if own else ()
        for other in own[1:-1] if i in summed else own[1:]:
            joined = engine.multiplied(joined, other)
        if i in summed and len(own) > 1:
            engine.contracted(joined, own[-1])
        elif i in summed:
            engine.rigid(joined, f"sum over the units at {call.where}")
        joint.append(joined)
    engine.met.append(tuple(joint))
    return Value(tuple(axis for i, axis in enumerate(joint) if i not in summed), any(part.zero for part in parts))


@register_rule("aten::convolution")
def convolution(engine: Engine, call: Call) -> Value:
    """Convolutions, transposed or not, in groups or not: channels are contracted group by group, space is fixed."""
    x, w = engine.value(call.args["input"]), engine.value(call.args["weight"])
    groups, transposed = call.args["groups"], call.args["transposed"]
    rank = len(w.axes) - 2
    has_batch = len(x.axes) == rank + 2
    channels = x.axes[1] if has_batch else x.axes[0]
    spatial = x.axes[-rank:]
    engine.fix_all(w.axes[2:], "convolution kernel")
    outer = engine.split(w.axes[0], (groups, w.shape[0] // groups))
    inner = engine.split(channels, (groups, x.shape[1 if has_batch else 0] // groups))
    contracted, free = (outer[1], w.axes[1]) if transposed else (w.axes[1], outer[1])
    group = engine.multiplied(inner[0], outer[0]) if groups > 1 else ()
    engine.contracted(inner[1], contracted)
    engine.met.append((*x.axes[: int(has_batch)], group, free, contracted, *spatial, *w.axes[2:]))
    where = _space(engine, call, spatial, w.shape[2:])
    result = Value((*x.axes[: int(has_batch)], (*group, *free), *where), x.zero or w.zero)
    if result.zero:
        engine.skip(call.args["input"], call.args["weight"])
    bias = call.args.get("bias")
    if not isinstance(bias, Ref):
        return result
    b = engine.value(bias)
    return added(engine, result, Value((b.axes[0], *((),) * rank)))


def _space(engine: Engine, call: Call, spatial: Sequence[Axis], kernel: Sequence[int]) -> list[Axis]:
    """Spatial axes of the result: the same where nothing but single points are read, fixed otherwise."""
    shape = engine.made(call)[-len(spatial) :]
    axes = []
    for i, axis in enumerate(spatial):
        at = lambda name, i=i: call.args[name][i] if len(call.args[name]) > 1 else call.args[name][0]
        pointwise = kernel[i] == 1 and at("stride") == 1 and at("padding") == 0
        if pointwise:
            axes.append(axis)
        else:
            engine.fix(axis, "spatial positions of a convolution")
            axes.append(engine.fresh(shape[i], "spatial positions of a convolution", ("space", i)))
    return axes


@register_rule(*SCALED_DOT_PRODUCTS)
def attention(engine: Engine, call: Call) -> list[Value]:
    """``softmax(q k^T + mask) v``, head by head; keys and values with fewer heads are shared by groups of queries."""
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
            m = (
                Value((*m.axes[:-3], *engine.split(m.axes[-3], (shared, heads // shared)), *m.axes[-2:]))
                if m.axes[-3]
                else (Value((*m.axes[:-3], (), (), *m.axes[-2:])))
            )
        scores = added(engine, scores, m)
    if call.args.get("is_causal"):
        why = f"causal order at {call.where}"
        tokens = (engine.equal(a, engine.fresh(axis_size(a), why, i)) for i, a in enumerate(scores.axes[-2:]))
        scores = Value((*scores.axes[:-2], *tokens))
    scores = Value(tuple(engine.rigid(a, f"softmax in {call.where}") for a in scores.axes))
    engine.mix(scores.axes, scores.axes[-1])
    if axis_size(scores.axes[-1]) == 1:  # a single key gets all of the attention, whatever it is
        engine.skip(call.args["query"], call.args["key"])
    result = matmul(engine, scores, v)
    if heads != shared:
        result = Value((*result.axes[:-4], (*result.axes[-4], *result.axes[-3]), *result.axes[-2:]))
    return [result]


@register_rule("aten::_cdist_forward", "aten::_euclidean_dist", "aten::cdist")
def between(engine: Engine, call: Call) -> Value:
    """Distances of all rows of one tensor to all rows of another: Euclidean ones let orthogonal maps pass."""
    x, y = engine.value(call.args["x1"]), engine.value(call.args["x2"])
    batch = [engine.equal(a, b) for a, b in zip(x.axes[:-2], y.axes[:-2], strict=True)]
    rows = (*batch, x.axes[-2], y.axes[-2])
    _measured(engine, call, rows, engine.equal(x.axes[-1], y.axes[-1]))
    return Value(rows)


@register_rule("aten::_pdist_forward")
def among(engine: Engine, call: Call) -> Value:
    """Distances among the rows of one tensor, pair after pair: the rows are fixed."""
    x = engine.value(call.args["self"])
    why = f"pairs of rows at {call.where}"
    engine.fix(x.axes[0], why)
    _measured(engine, call, (x.axes[0],), x.axes[1])
    return Value((engine.fresh(engine.made(call)[0], why),))


def _measured(engine: Engine, call: Call, rows: tuple[Axis, ...], units: Axis) -> None:
    """The length of differences along ``units``, row by row."""
    for axis in rows:
        engine.rigid(axis, f"distances taken by {call.where}")
    engine.no_scale(units, f"distances taken by {call.where}")
    if call.args.get("p", 2) == 2:
        engine.orthogonal(units)
    else:
        engine.monomial(units)
    engine.met += [(*rows, units), rows]
