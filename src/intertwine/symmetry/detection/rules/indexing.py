"""Rules of row lookups: embeddings, indices, sorting.

Also of routing to experts: counts of chosen experts, and grouped matrix products.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from ....programs import Call, Ref
from ..axis_terms import Axis, Flat, Names, Pick, Slot, Value, axis_size, bare, slots
from ..engine import Engine
from .registry import opaque, register_rule, relaid, unknown
from .unit_indices import distinct, joined, named, plain


@register_rule("aten::embedding")
def embedding(engine: Engine, call: Call) -> Value:
    """Rows of a table: rows stand for given symbols, so they are fixed, unless the symbols name their units."""
    table, index = engine.value(call.args["weight"]), engine.value(call.args["indices"])
    if named(engine, call.args["indices"], table.shape[0]) is not None:
        return _rows(engine, table, call.args["indices"], 0, f"rows looked up at {call.where}")
    engine.fix(table.axes[0], "vocabulary")
    axes = tuple(engine.fix(a, "symbols looked up") for a in index.axes)
    return Value((*axes, *table.axes[1:]))


@register_rule("aten::index", "aten::index_select")
def index(engine: Engine, call: Call) -> Value:
    """Rows picked by an index: the indexed axes are fixed, unless the index names their units."""
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
    for given in (engine.value(pick) for pick in picks if isinstance(pick, Ref)):
        engine.fix_all(given.axes, why)
        engine.drop(given)
    indexed, first, count = replaced_axes(engine, picks)
    if not indexed:  # a mask without axes
        engine.drop(x)
        return relaid(engine, x, shape, {}, why)
    beside = [i for i in range(len(x.axes)) if i not in indexed]
    kept = {i + count * (i >= first): old for i, old in enumerate(beside)}
    return replace(relaid(engine, x, shape, kept, why), names=_kept_names(x))


def _rows(engine: Engine, x: Value, pick: Ref, dim: int, why: str) -> Value:
    """Rows picked from one axis: they inherit what is known of the index's axes, and record the unit they came from."""
    index, chosen = engine.value(pick), engine.program.values[pick.id]
    units = named(engine, pick, x.shape[dim])
    told = chosen.data is not None and chosen.data.ndim == 1 and not (chosen.drawn or engine.program.drawn)
    if chosen.data is not None and told and engine.may_move(x.axes[dim]):
        places = (chosen.data % x.shape[dim]).tolist()
        some = engine.taken(x.axes[dim], places) if len({*places}) == len(places) else None
        if some is not None:
            engine.parts.add(engine.index)
            return replace(x.put(dim, some), names=_kept_names(x))
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
    """What chose the rows: an index, or the sort that ordered it."""
    call, axes = engine.producer(ref), engine.value(ref).axes
    if call is not None and call.op == "aten::sort" and call.outputs[0] == ref and len(axes) == len(axes[0]) == 1:
        node = engine.pool.node(axes[0][0].space) if isinstance(axes[0][0], Slot) else None
        if node is not None and node.sorted is not None:
            return "order", node.sorted
    return "rows", ref.id


def _kept_names(x: Value) -> Names | None:
    return replace(x.names, all=False) if x.names and x.names.kind == "units" else None


def replaced_axes(engine: Engine, picks: list[Any]) -> tuple[list[int], int, int]:
    """Axes that an index replaces, the position of its own axes among the remaining ones, and their number."""
    indexed: list[int] = []
    count = at = 0
    for pick in picks:
        taken = 1
        if isinstance(pick, Ref):
            mask = engine.dtype(pick) in (torch.bool, torch.uint8)
            rank = len(engine.value(pick).axes)
            taken = rank if mask else 1
            count = max(count, 1 if mask else rank)
            if not taken:
                return [], 0, 0
            indexed += range(at, at + taken)
        at += taken
    adjacent = all(b == a + 1 for a, b in pairwise(indexed))
    return indexed, indexed[0] if adjacent and indexed else 0, count


@register_rule("aten::gather")
def gather(engine: Engine, call: Call) -> Value:
    """Entries gathered along one axis, which is fixed unless the index names its units; other axes move together."""
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
            engine.fix_all((axis, index), why)
            axes.append(engine.fresh(size, why, i))
    return Value(tuple(axes), x.zero, names=_kept_names(x))


def follow(engine: Engine, axis: Axis, index: Axis) -> Axis:
    """An axis along which an index chooses for every unit separately; one index for all units restricts nothing."""
    if all(isinstance(f, Flat) for f in index):
        return axis
    engine.rigid(index)
    if not axis:
        return index
    return engine.zip(engine.monomial(axis), index, lambda x, i: i if isinstance(x, Flat) else x)


@register_rule("aten::sort", "aten::topk", "aten::argsort")
def sort(engine: Engine, call: Call) -> list[Value]:
    """Sorted entries along one axis, whose units the indices name; along others, scales and permutations pass."""
    x = engine.value(call.args["self"])
    if not x.axes:
        return [x, Value(())]
    dim = call.args["dim"] % len(x.axes)
    size = engine.made(call)[dim]
    units, along = _ordered(engine, call, x, dim, size)
    axes = [along if i == dim else engine.homogeneous(axis) for i, axis in enumerate(x.axes)]
    places = [a if i == dim else engine.unscaled(a) for i, a in enumerate(axes)]
    every = size == x.shape[dim] and len(x.axes) == 1
    values = Value(tuple(axes), x.zero, names=_kept_names(x) if every else None)
    if x.names is not None and values.names is None:  # of several rows each has an order of its own
        engine.drop(x)
    indices = Value(tuple(places), names=Names(units, all=every) if units else None)
    return [indices] if call.op == "aten::argsort" else [values, indices]


def _ordered(engine: Engine, call: Call, x: Value, dim: int, size: int) -> tuple[Axis, Axis]:
    """The axis that is sorted, and the axis of the sorted entries; numbers that name units are put in unit order."""
    why = f"order matters to {call.where}"
    axis = x.axes[dim]
    if not plain(axis):  # of equal copies the first is taken, whichever it is: the indices name no units
        engine.fix(axis, why)
        engine.drop(x)
        return (), engine.fresh(size, why)
    if x.names is not None and x.names.kind == "units" and len(x.axes) == 1 and size == axis_size(axis):
        units = engine.pool.resolve(x.names.of)
        # each unit once: rows come in unit order
        return axis, bare(units) if x.names.all else engine.in_order(size, (units, axis))
    if distinct(engine, call.args["self"], dim, 0 if call.op in ("aten::sort", "aten::argsort") else size):
        engine.rigid(axis, why)
    else:
        engine.fix(axis, why)
    return bare(axis), engine.fresh(size, why)


@register_rule("aten::argmax", "aten::argmin")
def first_place(engine: Engine, call: Call) -> Value:
    """The index of the largest or smallest entry along an axis, which names its unit."""
    x = engine.value(call.args["self"])
    dim: Any = call.args.get("dim")
    if dim is None or not x.axes:
        engine.fix_all(x.axes, f"order matters to {call.where}")
        return Value(())
    return places(engine, call, x, dim % len(x.axes))


def places(engine: Engine, call: Call, x: Value, dim: int) -> Value:
    """Index of the largest or smallest entry along an axis, for each position of the others."""
    units, _ = _ordered(engine, call, replace(x, names=None), dim, 1)
    engine.drop(x)
    rest = [engine.homogeneous(a) for i, a in enumerate(x.axes) if i != dim]
    axes = [engine.unscaled(a) for a in rest]
    if call.args.get("keepdim"):
        axes.insert(dim, ())
    return Value(tuple(axes), names=Names(units) if units else None)


@register_rule("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(engine: Engine, call: Call) -> list[Value]:
    """Sums, means or maxima of rows of a table: the rows are fixed."""
    table, why = engine.value(call.args["weight"]), f"bags of {call.where}"
    engine.fix(table.axes[0], "vocabulary")
    named = (call.args.get(name) for name in ("indices", "offsets", "per_sample_weights"))
    engine.fix_read((ref for ref in named if isinstance(ref, Ref)), "symbols looked up")
    if call.args.get("mode") == 2:
        engine.homogeneous(table.axes[1])
    bags = relaid(engine, table, engine.made(call), {1: 1}, why)
    return [bags, *(opaque(engine, ref, why, k) for k, ref in enumerate(call.outputs[1:]))]


@register_rule("aten::histc")
def count(engine: Engine, call: Call) -> Value:
    """The number of rows that named each unit: the counts move with the units."""
    x, bins = engine.value(call.args["self"]), call.args["bins"]
    units = named(engine, call.args["self"], bins)
    if units is None or (call.args["min"], call.args["max"]) != (0, bins - 1):
        for axis in x.axes:
            engine.rigid(axis)
        engine.drop(x)
        return Value((engine.fresh(bins, f"bins of {call.where}"),))
    return Value((bare(units),), names=Names(units, "counts", x.axes[0] if len(x.axes) == 1 else ()))


@register_rule("aten::_grouped_mm", "transformers::grouped_mm_fallback")
def grouped(engine: Engine, call: Call) -> Any:
    """Groups of rows, given by where they end, each multiplied by its own matrix."""
    x = engine.value(call.args["self" if "self" in call.args else "input"])
    w = engine.value(call.args["mat2" if "mat2" in call.args else "weight"])
    ends = call.args.get("offs")
    engine.drop(x, w)
    if not isinstance(ends, Ref) or len(x.axes) != 2 or len(w.axes) != 3 or call.args.get("bias") is not None:
        return unknown(engine, call)
    rows, of, label = _groups(engine, call, x, w, ends)
    engine.contracted(x.axes[1], w.axes[1])
    engine.met.append((*x.axes, *w.axes[1:], of))
    return Value((rows, w.axes[2]), x.zero or w.zero, via=joined(engine, [x.via, (Pick(label, rows, of),)]))


def _groups(engine: Engine, call: Call, x: Value, w: Value, ends: Ref) -> tuple[Axis, Axis, Any]:
    """The rows, the matrices that multiply them, and what chose these."""
    names = engine.value(ends).names
    if names is not None and names.kind == "offsets" and axis_size(names.of) == w.shape[0]:
        order = engine.pool.resolve(names.rows)
        node = engine.pool.node(order[0].space) if len(order) == 1 and isinstance(order[0], Slot) else None
        same = [slot.space for slot in slots(order)] == [slot.space for slot in slots(x.axes[0])]
        if node is not None and node.sorted is not None and same:
            of = engine.rigid(engine.equal(w.axes[0], engine.pool.resolve(names.of))) if w.axes[0] else ()
            return x.axes[0], bare(of), ("order", node.sorted)
    engine.drop(engine.value(ends))
    why = f"groups of rows in {call.where}"
    engine.fix_all(engine.value(ends).axes, why)
    rows, of = (engine.hold(engine.rigid(value.axes[0], why), why) for value in (x, w))
    return rows, bare(of), ("ends", ends.id)


@register_rule("aten::nonzero", "aten::bincount", "aten::unique_consecutive", "aten::_ctc_loss")
def looked_at(engine: Engine, call: Call) -> list[Value]:
    """Indices, extremes or counts of fixed axes, sums over all alignments of labels: nothing moves in them."""
    if call.op == "aten::_ctc_loss" and any(ref is not None and ref.id in engine.readers for ref in call.outputs[1:]):
        return unknown(engine, call)
    why = f"numbers taken by {call.where}"
    engine.fix_read(call.inputs, why)
    return [opaque(engine, ref, why, i) for i, ref in enumerate(call.outputs)]
