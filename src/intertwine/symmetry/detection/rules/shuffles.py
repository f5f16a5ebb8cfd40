"""Fixed rearrangements: shuffles, reversals and rotations of units, which stay one space in another order.

A shuffle is a run of views and transpositions whose result has the shape of what it began with, and the same units
along every axis. Read one by one, these would take an axis apart into factors.
"""

from collections.abc import Sequence
from math import prod

import torch

from ....programs import Call, Program, Ref
from ....programs.calls import makers, readers
from ....programs.operations import REARRANGEMENTS, RESHAPES, TRANSPOSES, aten
from ..axis_terms import Slot, Value, rearranged, slots
from ..engine import Engine
from ..parents import SHUFFLE
from .reductions import ordered
from .registry import RULES, register_rule

Orders = tuple[tuple[int, ...], ...]  # for every axis, which of its units each one is


@register_rule(SHUFFLE)
def shuffle(engine: Engine, call: Call) -> Value:
    """Units in another order along some axes."""
    x = engine.value(call.args["self"])
    return Value(tuple(map(rearranged, x.axes, call.args["orders"])), x.zero, via=x.via)


@register_rule(*aten("flip roll"))
def reversed_or_rolled(engine: Engine, call: Call) -> list[Value]:
    """Units in reverse, or rotated, along some axes; where no unit moves these are fixed, as by what reads an order."""
    x = engine.value(call.args["self"])
    dims, shifts = call.args["dims"], call.args.get("shifts")
    told = shifts is None or not engine.program.drawn  # else they may be random
    if not dims or not told or x.names is not None or not all(engine.may_move(x.axes[dim]) for dim in dims):
        return ordered(engine, call)
    for k, dim in enumerate(dims):
        units = list(range(x.shape[dim]))
        start = 0 if shifts is None else -shifts[k] % len(units)
        order = units[::-1] if shifts is None else units[start:] + units[:start]
        x = x.put(dim % len(x.axes), rearranged(x.axes[dim], order), via=x.via)
    return [x]


def with_shuffles(program: Program, calls: Sequence[Call]) -> list[Call]:
    """The calls, those that together are a shuffle as one; unless another path may read what is inside."""
    made, read = makers(calls), readers(calls)
    kept, gone = list[Call](), set[int]()
    for call in reversed(calls):
        if id(call) in gone:
            continue
        inside = [] if program.reads or call.op not in RESHAPES else _inside(program, call, made, read)
        orders = _orders(program, inside) if inside else None
        if orders is not None:
            gone.update(map(id, inside))
            args = {"self": inside[-1].inputs[0], "orders": orders}
            call = Call(SHUFFLE, args, call.outputs, module=call.module, line=call.line)
        kept.append(call)
    return kept[::-1]


def _inside(program: Program, end: Call, made: dict[int, Call], read: dict[int, list[Call]]) -> list[Call]:
    """The calls of what may be a shuffle with a given end, last one first; none where there is none."""
    inside, at = list[Call](), end
    value = program.values[out.id] if (out := end.outputs[0]) is not None else None
    while value is not None and at.op in REARRANGEMENTS and len(at.inputs) == 1:
        inside.append(at)
        (x,) = at.inputs
        if program.values[x.id].dtype != value.dtype or not value.dtype.is_floating_point:
            return []
        if program.values[x.id].shape == value.shape and any(call.op in TRANSPOSES for call in inside):
            return inside
        if len(read[x.id]) > 1 or x in program.outputs or x.id not in made:
            return []
        at = made[x.id]
    return []


def _orders(program: Program, inside: Sequence[Call]) -> Orders | None:
    """The order in which a shuffle puts the units of every axis; ``None`` where units change axes, or none moves."""
    trial, (made,) = Engine(program, [], {}), inside[-1].inputs
    sizes = program.values[made.id].shape
    axes = tuple((Slot(trial.pool.new(n), n),) if n > 1 else () for n in sizes)
    trial.values[made.id] = Value(axes)
    for call in reversed(inside):
        (ref,) = call.outputs
        if not isinstance(ref, Ref):
            return None
        made, trial.values[ref.id] = ref, RULES[call.op](trial, call)
    found = list[tuple[int, ...]]()
    for old, new in zip(map(trial.pool.resolve, axes), trial.value(made).axes):
        places = {slot.space: k for k, slot in enumerate(slots(old))}
        if places.keys() != {slot.space for slot in slots(new)}:
            return None
        lengths = [factor.size for factor in old]
        units = torch.arange(prod(lengths), device="cpu").reshape(lengths)
        found.append(tuple(units.permute([places[slot.space] for slot in slots(new)]).flatten().tolist()))
    return tuple(found) if any(order != tuple(range(len(order))) for order in found) else None
