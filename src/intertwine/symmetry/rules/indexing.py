"""Looking rows up: embeddings and indices."""

from typing import TYPE_CHECKING, Any

from ...graph import Call, Ref
from ..terms import Value
from .registry import register_rule

if TYPE_CHECKING:
    from ..engine import Engine

__all__: list[str] = []


@register_rule("aten::embedding")
def embedding(engine: "Engine", call: Call) -> Value:
    """Rows of a table: the rows stand for given symbols, so they are fixed."""
    table, index = engine.value(call.args["weight"]), engine.value(call.args["indices"])
    engine.fix(table.axes[0], "vocabulary")
    axes = tuple(engine.fix(a, "symbols looked up") for a in index.axes)
    return Value((*axes, *table.axes[1:]))


@register_rule("aten::index", "aten::index_select")
def index(engine: "Engine", call: Call) -> Value:
    """Rows picked by an index: the indexed axes are fixed."""
    x, out = engine.value(call.args["self"]), call.outputs[0]
    shape = engine.program.values[out.id].shape if out is not None else ()
    if call.op == "aten::index_select":
        dim = call.args["dim"] % len(x.axes)
        picks: list[Any] = [call.args["index"] if i == dim else None for i in range(dim + 1)]
    else:
        picks = list(call.args["indices"])
    picks += [None] * (len(x.axes) - len(picks))
    why = f"rows looked up at {call.where}"
    indexed = [i for i, p in enumerate(picks) if isinstance(p, Ref)]
    masks = any(not engine.dtype(picks[i]).is_signed and "bool" in str(engine.dtype(picks[i])) for i in indexed)
    for i in indexed:
        for axis in engine.value(picks[i]).axes:
            engine.fix(axis, why)
    if masks or not indexed:
        for axis in x.axes:
            engine.fix(axis, why)
        return Value(tuple(engine.fresh(n, why, i) for i, n in enumerate(shape)))
    for i in indexed:
        engine.fix(x.axes[i], why)
    kept = [a for i, a in enumerate(x.axes) if i not in indexed]
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    first = indexed[0] if adjacent else 0
    count = len(shape) - len(kept)
    new = [engine.fresh(n, why, i) for i, n in enumerate(shape[first : first + count])]
    return Value((*kept[:first], *new, *kept[first:]), x.zero)
