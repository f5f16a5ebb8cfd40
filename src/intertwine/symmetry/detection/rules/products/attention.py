"""Scaled dot-product attention where it is kept whole."""

from .....programs import Call, Ref
from .....programs.operations import SCALED_DOT_PRODUCTS
from ...axis_terms import Value, axis_size
from ...engine import Engine
from ..elementwise import added
from ..registry import register_rule
from .linear import matmul


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
