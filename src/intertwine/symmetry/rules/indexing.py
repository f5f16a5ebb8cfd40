"""Looking rows up: embeddings, indices, sorting."""

from typing import TYPE_CHECKING, Any

import torch

from ...graph import Call, Ref
from ..terms import Flat, Value, forget_zeros
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
    why = f"rows looked up at {call.where}"
    for pick in picks:
        for axis in engine.value(pick).axes if isinstance(pick, Ref) else ():
            engine.fix(axis, why)
    indexed = _indexed(engine, picks)
    if not indexed:  # a mask without axes
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


def _indexed(engine: "Engine", picks: list[Any]) -> list[int]:
    """Axes that indices replace: one for each list of places, as many as it has itself for a mask."""
    indexed: list[int] = []
    at = 0
    for pick in picks:
        taken = 1
        if isinstance(pick, Ref):
            mask = engine.dtype(pick) in (torch.bool, torch.uint8)
            taken = len(engine.value(pick).axes) if mask else 1
            if not taken:
                return []
            indexed += range(at, at + taken)
        at += taken
    return indexed


@register_rule("aten::gather")
def gather(engine: "Engine", call: Call) -> Value:
    """Entries picked along one axis, which is fixed; along others the index must be one for all units."""
    x, picks, out = engine.value(call.args["self"]), engine.value(call.args["index"]), call.outputs[0]
    shape = engine.program.values[out.id].shape if out is not None else ()
    dim = call.args["dim"] % len(x.axes)
    why = f"entries looked up at {call.where}"
    axes = []
    for i, (axis, index, size) in enumerate(zip(x.axes, picks.axes, shape)):
        if i != dim and x.shape[i] == size and all(isinstance(f, Flat) for f in index):
            axes.append(axis)
            continue
        for moved in (axis, index):
            engine.fix(moved, why)
        axes.append(engine.fresh(size, why, i))
    return Value(tuple(axes), x.zero)


@register_rule("aten::sort", "aten::topk")
def sort(engine: "Engine", call: Call) -> list[Value]:
    """Entries in order along one axis, which is fixed; along others positive scales and permutations pass."""
    x, out = engine.value(call.args["self"]), call.outputs[0]
    dim = call.args["dim"] % len(x.axes)
    size = engine.program.values[out.id].shape[dim] if out is not None else x.shape[dim]
    why = f"order matters to {call.where}"
    engine.fix(x.axes[dim], why)
    along = engine.fresh(size, why)
    axes = [along if i == dim else engine.monomial(engine.no_sign(axis)) for i, axis in enumerate(x.axes)]
    places = [a if i == dim else forget_zeros(engine.powered(a, 0, False)) for i, a in enumerate(axes)]
    return [Value(tuple(axes), x.zero), Value(tuple(places))]


@register_rule("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(engine: "Engine", call: Call) -> list[Value]:
    """Sums, means or maxima of rows of a table: the rows are fixed."""
    table = engine.value(call.args["weight"])
    engine.fix(table.axes[0], "vocabulary")
    for name in ("indices", "offsets", "per_sample_weights"):
        if isinstance(call.args.get(name), Ref):
            for axis in engine.value(call.args[name]).axes:
                engine.fix(axis, "symbols looked up")
    width = table.axes[1]
    if call.args.get("mode") == 2:
        width = engine.monomial(engine.no_sign(width))
    shapes = [engine.program.values[ref.id].shape if ref is not None else () for ref in call.outputs]
    why = f"bags of {call.where}"
    rest = [Value(tuple(engine.fresh(n, why, (k, i)) for i, n in enumerate(s))) for k, s in enumerate(shapes[1:])]
    return [Value((engine.fresh(shapes[0][0], why, "bags"), width)), *rest]
