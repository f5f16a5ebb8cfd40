"""Looking rows up: embeddings, indices, sorting.

Rows chosen by a mask: image features merged into a stream of tokens, rows picked out of it.
"""

from dataclasses import replace
from math import prod
from typing import Any

import torch

from ....programs import Call, Ref
from ..axis_terms import Axis, Flat, Names, Pick, Slot, Value, axis_size, bare
from ..engine import Engine
from .elementwise import added
from .registry import opaque, register_rule
from .unit_indices import distinct, drop, named, plain


@register_rule("aten::embedding")
def embedding(engine: Engine, call: Call) -> Value:
    """Rows of a table: the rows stand for given symbols, so they are fixed, unless the symbols name their units."""
    table, index = engine.value(call.args["weight"]), engine.value(call.args["indices"])
    if named(engine, call.args["indices"], table.shape[0]) is not None:
        return _rows(engine, table, call.args["indices"], 0, f"rows looked up at {call.where}")
    engine.fix(table.axes[0], "vocabulary")
    axes = tuple(engine.fix(a, "symbols looked up") for a in index.axes)
    return Value((*axes, *table.axes[1:]))


@register_rule("aten::index", "aten::index_select")
def index(engine: Engine, call: Call) -> Value:
    """Rows picked by an index: the indexed axes are fixed, except where the index names their units."""
    x, shape = engine.value(call.args["self"]), engine.made(call)
    if call.op == "aten::index_select":
        dim = call.args["dim"] % len(x.axes)
        picks: list[Any] = [call.args["index"] if i == dim else None for i in range(dim + 1)]
    else:
        picks = list(call.args["indices"])
    why = f"rows looked up at {call.where}"
    places = [i for i, pick in enumerate(picks) if isinstance(pick, Ref)]
    if len(places) == 1 and engine.dtype(picks[places[0]]) not in (torch.bool, torch.uint8):
        return _rows(engine, x, picks[places[0]], places[0], why)
    for pick in picks:
        engine.fix_all(engine.value(pick).axes if isinstance(pick, Ref) else (), why)
        if isinstance(pick, Ref):
            drop(engine, engine.value(pick).names)
    indexed = _indexed(engine, picks)
    if not indexed:  # a mask without axes
        engine.fix_all(x.axes, why)
        drop(engine, x.names)
        return Value(tuple(engine.fresh(n, why, i) for i, n in enumerate(shape)))
    for i in indexed:
        engine.fix(x.axes[i], why)
    kept = [a for i, a in enumerate(x.axes) if i not in indexed]
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    first = indexed[0] if adjacent else 0
    count = len(shape) - len(kept)
    new = [engine.fresh(n, why, i) for i, n in enumerate(shape[first : first + count])]
    return Value((*kept[:first], *new, *kept[first:]), x.zero, names=_kept_names(x))


def _rows(engine: Engine, x: Value, pick: Ref, dim: int, why: str) -> Value:
    """Rows of one axis: what the index says of its own axes they keep, and from which unit they came."""
    index = engine.value(pick)
    units = named(engine, pick, x.shape[dim])
    if units is None:
        picked = engine.hold(engine.rigid(x.axes[dim], why), why)
        new = [engine.fresh(n, why, i) for i, n in enumerate(index.shape)]
        engine.fix_all(index.axes, why)
    else:
        picked = engine.rigid(engine.equal(x.axes[dim], units), why) if x.axes[dim] else ()
        new = [engine.rigid(axis, why) for axis in index.axes]
    of, rows = bare(engine.pool.resolve(picked)), tuple(factor for axis in new for factor in axis)
    origin = (Pick(chosen_by(engine, pick), rows, of),) if of else ()
    return Value((*x.axes[:dim], *new, *x.axes[dim + 1 :]), x.zero, names=_kept_names(x), via=origin)


def chosen_by(engine: Engine, ref: Ref) -> tuple[str, int]:
    """By what rows were chosen: an index, or the sort that put it in order."""
    call, axes = engine.producer(ref), engine.value(ref).axes
    if call is not None and call.op == "aten::sort" and call.outputs[0] == ref and len(axes) == len(axes[0]) == 1:
        node = engine.pool.node(axes[0][0].space) if isinstance(axes[0][0], Slot) else None
        if node is not None and node.sorted is not None:
            return "order", node.sorted
    return "rows", ref.id


def _kept_names(x: Value) -> Names | None:
    return replace(x.names, all=False) if x.names and x.names.kind == "units" else None


def _indexed(engine: Engine, picks: list[Any]) -> list[int]:
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
def gather(engine: Engine, call: Call) -> Value:
    """Entries picked along one axis, which is fixed unless the index names its units; other axes move together."""
    x, picks, shape = engine.value(call.args["self"]), engine.value(call.args["index"]), engine.made(call)
    dim = call.args["dim"] % len(x.axes)
    why = f"entries looked up at {call.where}"
    units = named(engine, call.args["index"], x.shape[dim])
    axes = []
    for i, (axis, index, size) in enumerate(zip(x.axes, picks.axes, shape)):
        if i != dim and x.shape[i] == size:
            axes.append(follow(engine, axis, index))
        elif i == dim and units is not None:
            engine.rigid(engine.equal(axis, units), why) if axis else ()
            axes.append(engine.rigid(index, why))
        else:
            for moved in (axis, index):
                engine.fix(moved, why)
            axes.append(engine.fresh(size, why, i))
    return Value(tuple(axes), x.zero, names=_kept_names(x))


def follow(engine: Engine, axis: Axis, index: Axis) -> Axis:
    """An axis along which an index chooses for every unit on its own; one index for all units takes nothing away."""
    if all(isinstance(f, Flat) for f in index):
        return axis
    engine.rigid(index)
    if not axis:
        return index
    return engine.zip(engine.monomial(axis), index, lambda x, i: i if isinstance(x, Flat) else x)


@register_rule("aten::sort", "aten::topk", "aten::argsort")
def sort(engine: Engine, call: Call) -> list[Value]:
    """Entries in order along one axis, whose units the places name; along others scales and permutations pass."""
    x = engine.value(call.args["self"])
    if not x.axes:
        return [x, Value(())]
    dim = call.args["dim"] % len(x.axes)
    size = engine.made(call)[dim]
    units, along = _ordered(engine, call, x, dim, size)
    axes = [along if i == dim else engine.homogeneous(axis) for i, axis in enumerate(x.axes)]
    places = [a if i == dim else engine.unscaled(a) for i, a in enumerate(axes)]
    every = size == x.shape[dim] and len(x.axes) == 1
    values = Value(tuple(axes), x.zero, names=_kept_names(x) if size == x.shape[dim] else None)
    if x.names is not None and values.names is None:
        drop(engine, x.names)
    indices = Value(tuple(places), names=Names(units, all=every) if units else None)
    return [indices] if call.op == "aten::argsort" else [values, indices]


def _ordered(engine: Engine, call: Call, x: Value, dim: int, size: int) -> tuple[Axis, Axis]:
    """The axis that is sorted, and the one of the sorted entries.

    Numbers that differ come in an order of their own, wherever they were; numbers that name units are put in the
    order of the units, so that the rows of the result change places where units do.
    """
    why = f"order matters to {call.where}"
    axis = x.axes[dim]
    if not plain(axis):  # the first of equal copies is taken, whichever they are: no numbers for units
        engine.fix(axis, why)
        drop(engine, x.names)
        return (), engine.fresh(size, why)
    if x.names is not None and x.names.kind == "units" and len(x.axes) == 1 and size == axis_size(axis):
        units = engine.pool.resolve(x.names.of)
        # each unit once: the rows come in the order of the units
        return axis, bare(units) if x.names.all else engine.in_order(size, (units, axis))
    if distinct(engine, call.args["self"], axis, 0 if call.op in ("aten::sort", "aten::argsort") else size):
        engine.rigid(axis, why)
    else:
        engine.fix(axis, why)
    return bare(axis), engine.fresh(size, why)


@register_rule("aten::argmax", "aten::argmin")
def first_place(engine: Engine, call: Call) -> Value:
    """The place of the largest or smallest entry along an axis, whose unit it names."""
    x = engine.value(call.args["self"])
    dim: Any = call.args.get("dim")
    if dim is None or not x.axes:
        engine.fix_all(x.axes, f"order matters to {call.where}")
        return Value(())
    return places(engine, call, x, dim % len(x.axes))


def places(engine: Engine, call: Call, x: Value, dim: int) -> Value:
    """Index of the largest or smallest entry along an axis, for each of the others."""
    units, _ = _ordered(engine, call, replace(x, names=None), dim, 1)
    drop(engine, x.names)
    rest = [engine.homogeneous(a) for i, a in enumerate(x.axes) if i != dim]
    axes = [engine.unscaled(a) for a in rest]
    if call.args.get("keepdim"):
        axes.insert(dim, ())
    return Value(tuple(axes), names=Names(units) if units else None)


@register_rule("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(engine: Engine, call: Call) -> list[Value]:
    """Sums, means or maxima of rows of a table: the rows are fixed."""
    table = engine.value(call.args["weight"])
    engine.fix(table.axes[0], "vocabulary")
    for name in ("indices", "offsets", "per_sample_weights"):
        if isinstance(call.args.get(name), Ref):
            engine.fix_all(engine.value(call.args[name]).axes, "symbols looked up")
    width = table.axes[1]
    if call.args.get("mode") == 2:
        width = engine.homogeneous(width)
    shapes = [engine.program.values[ref.id].shape if ref is not None else () for ref in call.outputs]
    why = f"bags of {call.where}"
    rest = [Value(tuple(engine.fresh(n, why, (k, i)) for i, n in enumerate(s))) for k, s in enumerate(shapes[1:])]
    return [Value((engine.fresh(shapes[0][0], why, "bags"), width)), *rest]


def _whole_rows(engine: Engine, shape: tuple[int, ...], mask: Value) -> int:
    """Number of first axes that a mask chooses from; along those after them it chooses all or nothing."""
    axes = ((),) * (len(shape) - len(mask.axes)) + mask.axes
    first = len(shape)
    while first and all(isinstance(f, Flat) for f in axes[first - 1]):
        first -= 1
    return first


@register_rule("aten::masked_scatter")
def masked_scatter(engine: Engine, call: Call) -> Any:
    """Rows of one tensor put, in their order, where a mask says: the units inside them are those of both tensors."""
    x, mask, source = (engine.value(call.args[name]) for name in ("self", "mask", "source"))
    why = f"rows chosen by a mask at {call.where}"
    first = _whole_rows(engine, x.shape, mask)
    # the longest run of last axes that both tensors have; else the numbers run on, and are cut into rows
    fits = [i for i in range(first, len(x.shape)) if source.shape[-(len(x.shape) - i) :] == x.shape[i:]]
    first = fits[0] if fits else first
    inner = x.shape[first:]
    rows, rest = divmod(prod(source.shape), prod(inner))
    if fits:
        whole = len(source.shape) - len(inner)
        taken, last = tuple(f for axis in source.axes[:whole] for f in axis), list(source.axes[whole:])
    elif rows and not rest:
        numbers = engine.pool.resolve(tuple(f for axis in source.axes for f in axis))
        taken, *last = engine.split(numbers, (rows, *inner))
    else:
        engine.fix_all((*x.axes, *mask.axes, *source.axes), why)
        return opaque(engine, call.outputs[0], why, 0)
    engine.fix_all((*x.axes[:first], *mask.axes, taken), why)
    places = [_written(engine, axis, why, i) for i, axis in enumerate(x.axes[:first])]
    written = added(engine, Value(x.axes[first:], x.zero), Value(tuple(last), source.zero))
    return Value((*places, *written.axes), x.zero and source.zero)


def _written(engine: Engine, axis: Axis, why: str, tag: int) -> Axis:
    if axis and all(isinstance(f, Slot) for f in axis):
        return bare(axis)
    return engine.fresh(axis_size(axis), why, tag)


@register_rule("aten::masked_select")
def masked_select(engine: Engine, call: Call) -> Any:
    """Entries that a mask chooses, one after the other: whole rows keep their units."""
    x, mask = engine.value(call.args["self"]), engine.value(call.args["mask"])
    first = _whole_rows(engine, x.shape, mask)
    inner = max(prod(x.shape[first:]), 1)
    why = f"rows chosen by a mask at {call.where}"
    engine.fix_all((*x.axes[:first], *mask.axes), why)
    along = (*engine.fresh(engine.made(call)[0] // inner, why), *(f for axis in x.axes[first:] for f in axis))
    return Value((engine.pool.resolve(along),), x.zero)
