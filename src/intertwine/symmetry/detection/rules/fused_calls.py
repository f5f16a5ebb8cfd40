"""Runs of calls that are read as one: shuffles of units, and turns of pairs by positions.

A shuffle is a run of views and transpositions whose result has the shape of what it began with, and the same units
along every axis. Read one by one, these would take an axis apart into factors.

A turn makes of one tensor ``x`` another of its shape, by angles in which no parameter has a part. It is read
symbolically along the last axis: every entry is a form, a sum of entries of ``x`` times entries of tables. The run
becomes one call where its result is ``y_i = c x_i - s x_j`` and ``y_j = s x_i + c x_j`` for all pairs ``i, j``: each
pair, as a complex number, is multiplied by ``c + s i``, which commutes with all turns and scales of the pair.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...._nested import map_leaves
from ....programs import Call, Program, Ref
from ....programs.calls import makers, reached, readers
from ....programs.operations import COPIES, PARTS, REARRANGEMENTS, REPEATS, RESHAPES, TRANSPOSES, aten
from ...spaces import Cause
from ..axis_terms import Slot, Value, axis_size, rearranged, slots
from ..engine import Engine
from ..parents import SHUFFLE
from .norms_and_reductions import ordered
from .registry import RULES, is_pointwise, register_rule

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


Form = dict[tuple[int, tuple], int]  # places of entries of ``x`` with the entries of tables that each is multiplied by

_TURN = "intertwine::turn"
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_JOINS = aten("cat stack")
_ENDS = RESHAPES | aten("add sub cat")
_LINEAR = _ENDS | COPIES | PARTS | aten("stack neg mul view_as_complex view_as_real")
_MOVES = PARTS | REPEATS | TRANSPOSES | _JOINS | aten("index_select index gather embedding")
_LONGEST = 40  # calls of a part
_FIRST = 1 << 33  # number that is none of the bits of a constant


@register_rule(_TURN)
def turn(engine: Engine, call: Call) -> Value:
    """Turned pairs: each keeps its place, and what commutes with its turns: turns and one scale for both entries."""
    x, halves = engine.value(call.args["self"]), call.args["halves"]
    why = Cause("turned by positions" + (f" in {call.module}" if call.module else ""), "positions")
    for table in call.args["tables"]:
        engine.fix_all(engine.value(table).axes, why)
    engine.fix_all((x.axes[k] for k in call.args["along"]), why)
    sizes = (2, axis_size(x.axes[-1]) // 2)
    axes = engine.split(x.axes[-1], sizes if halves else sizes[::-1])
    plane, pairs = axes if halves else axes[::-1]
    engine.hold(pairs, why)
    engine.turned(plane, why)
    engine.mix((*x.axes[:-1], *axes), plane)
    return Value((*x.axes[:-1], (*axes[0], *axes[1])), x.zero)


def fused(program: Program) -> list[Call]:
    """The calls that outputs and reads of numbers depend on; those that together turn pairs are one.

    It has ``halves`` where ``i`` goes with ``i + n/2``, ``tables``, and the axes ``along`` which these may change.
    """
    # what nothing reads puts no condition on anything; reads of numbers have no outputs
    calls = program.live(kept=lambda call: not call.outputs)
    finder, kept, gone = _TurnFinder(program, calls), list[Call](), set[int]()
    for call in reversed(calls):
        part = finder.part(call) if call.op in _ENDS and id(call) not in gone else None
        if part is not None:
            gone.update(map(id, part[1][1:]))
        if id(call) not in gone:
            kept.append(call if part is None else part[0])
    return kept[::-1]


class _TurnFinder:
    """A run, and what is known of the tables in it."""

    def __init__(self, program: Program, calls: Sequence[Call]) -> None:
        self._values, self._makers, self._readers = program.values, makers(calls), readers(calls)
        self._place = {ref.id: k for k, call in enumerate(calls) for ref in call.made}
        learned = (ref for ref in program.states.values() if program.values[ref.id].kind == "parameter")
        self._learned, self._returned = reached(calls, learned), frozenset(program.outputs)
        self._code, self._next = cache(self._coded), _FIRST

    def part(self, end: Call) -> tuple[Call, list[Call]] | None:
        """The call that stands for the part of the run with a given end, and the calls in it; ``None`` for no turn."""
        inside = list[Call]()
        front = {ref for ref in end.outputs[:1] if ref is not None and ref.id in self._learned}
        shape = self._values[next(iter(front)).id].shape if front else ()
        while front and len(inside) < _LONGEST:
            ref = max(front, key=lambda r: self._place.get(r.id, -1))
            if len(front) == 1 and len(inside) > 1 and self._values[ref.id].shape == shape != ():
                return self._turn(ref, inside)
            call = self._makers.get(ref.id)
            if (
                call is None
                or call.op not in _LINEAR
                or _reads_bits(call)
                or (call is not end and ref in self._returned)
            ):
                return None
            inside.append(call)
            front = (front - {ref}) | {r for r in call.inputs if r.id in self._learned}
        return None

    def _turn(self, x: Ref, inside: list[Call]) -> tuple[Call, list[Call]] | None:
        known, end = {id(call) for call in inside}, inside[0]
        inner = (ref for call in inside[1:] for ref in call.made)
        size = self._values[x.id].shape[-1]
        if (
            not size
            or size % 2
            or not all(id(reader) in known for ref in inner for reader in self._readers.get(ref.id, ()))
        ):
            return None
        forms = _Forms(self._values[x.id].shape)
        ids = {x: forms.ids}
        new: Tensor | None = None
        for call in reversed(inside):
            ref = call.outputs[0]
            new = None if ref is None else forms.of(call, ids, self._code, self._values[ref.id])
            if ref is None or new is None:
                return None
            ids[ref] = new
        found = [] if new is None else [forms.known[k] for k in new.flatten().tolist()]
        tables = [*dict.fromkeys(ref for call in inside for ref in call.inputs if ref.id not in self._learned)]
        for halves, partner in ((True, lambda i: (i + size // 2) % size), (False, lambda i: i ^ 1)):
            if tables and all(_turned(found, i, partner(i)) for i in range(size)):
                args = {"self": x, "tables": tables, "along": sorted(forms.along), "halves": halves}
                return Call(_TURN, args, end.outputs, module=end.module, line=end.line), inside
        return None

    def _coded(self, ref: Ref) -> Tensor:
        """Whole numbers in the shape of a table: where two are equal the entries are, whatever the positions."""
        value = self._values[ref.id]
        call = self._makers.get(ref.id, value.source)
        if value.data is not None and value.dtype in _BITS:
            return value.data.detach().cpu().contiguous().view(_BITS[value.dtype]).long()
        real = [r for r in call.inputs if self._values[r.id].dtype.is_floating_point] if call is not None else []
        if call is not None and real and call.op in COPIES | RESHAPES and not _reads_bits(call):
            return self._code(real[0]).reshape(value.shape)
        if call is not None and real and call.op in _MOVES and (call.op not in _JOINS or len(real) == len(call.inputs)):
            known = {r: self._code(r) if r in real else self._values[r.id].data for r in call.inputs}
            if all(x is not None for x in known.values()):
                return call.func(**_filled(call.args, known))
        drawn = call is not None and torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ())
        if call is not None and len(real) == 1 == len(call.inputs) and is_pointwise(call) and not drawn:
            return self._numbered(torch.unique(self._code(real[0]), return_inverse=True)[1])
        if value.data is not None and value.dtype.is_floating_point:
            return self._numbered(torch.unique(value.data.detach().cpu(), return_inverse=True)[1])
        return self._numbered(torch.arange(prod(value.shape), device="cpu").reshape(value.shape))

    def _numbered(self, x: Tensor) -> Tensor:
        """Numbers of entries that no other table has."""
        self._next += x.numel()
        return x + self._next - x.numel()


class _Forms:
    """Forms by number, of tensors whose axes before the last one of ``x`` have one entry that stands for all.

    Operations that do something along those axes are none of a turn: the shapes of their results tell.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.known: list[Form] = [{(i, ()): 1} for i in range(shape[-1])]
        self.along: set[int] = set()  # axes before the last along which entries of tables change
        self._lead = shape[:-1]
        self.ids = torch.arange(shape[-1], device="cpu").reshape(*[1] * len(self._lead), -1)

    def of(self, call: Call, ids: Mapping[Ref, Tensor], code: Callable[[Ref], Tensor], value: Any) -> Tensor | None:
        """The forms of a call's result, a complex one with both parts along a last axis; ``None`` if none are known."""
        given = [ids[ref] for ref in call.inputs if ref in ids]
        tables = [ref for ref in call.inputs if ref not in ids]
        lead, parts = len(self._lead), (2,) if value.dtype.is_complex else ()
        shape = (*[1] * lead, *value.shape[lead:], *parts)
        numbers = value.dtype.is_floating_point or value.dtype.is_complex
        if value.shape[:lead] != self._lead or len(tables) != (call.op == "aten::mul") or not numbers:
            return None
        if call.op == "aten::neg":
            new = self._each(lambda a: _sum({}, a, -1), *given)
        elif call.op == "aten::mul":
            if len(given) != 1 or given[0].shape != shape:
                return None
            new = self._times(given[0], code(tables[0]), lead, bool(parts))
        elif call.op in ("aten::add", "aten::sub"):
            if len(given) != 2 or call.args["alpha"] != 1 or given[0].shape != given[1].shape:
                return None
            new = self._each(lambda a, b: _sum(a, b, 1 if call.op == "aten::add" else -1), *given)
        elif call.op in RESHAPES:
            new = given[0].reshape(shape)
        elif call.op in PARTS | _JOINS:
            new = call.func(**_filled(call.args, ids))
        else:
            new = given[0]
        return new if new.shape == shape else None

    def _each(self, make: Callable[..., Form], *tensors: Tensor) -> Tensor:
        first = len(self.known)
        self.known += [make(*(self.known[k] for k in some)) for some in zip(*(x.flatten().tolist() for x in tensors))]
        return torch.arange(first, len(self.known), device="cpu").reshape(tensors[0].shape)

    def _times(self, ids: Tensor, codes: Tensor, lead: int, is_complex: bool) -> Tensor:
        """Forms times entries of a table, each of which is named by its numbers at all places of the other axes."""
        codes = codes.reshape(*[1] * (ids.ndim - is_complex - codes.ndim), *codes.shape)
        self.along |= {axis for axis, n in enumerate(codes.shape[:lead]) if n > 1}
        inner = ids.shape[lead : ids.ndim - is_complex]
        columns = codes.expand(*codes.shape[:lead], *inner).reshape(*codes.shape[:lead], -1).unbind(-1)
        names = [(tuple(codes.shape[:lead]), column.contiguous().numpy().tobytes()) for column in columns]

        def named(ids: Tensor, part: str = "") -> Tensor:
            own = iter(names)
            return self._each(lambda a: {(i, (*n, part, *k)): v for k in [next(own)] for (i, n), v in a.items()}, ids)

        if not is_complex:
            return named(ids)
        x, y = ids.unbind(-1)
        real = self._each(lambda a, b: _sum(a, b, -1), named(x, "re"), named(y, "im"))
        return torch.stack([real, self._each(lambda a, b: _sum(a, b, 1), named(x, "im"), named(y, "re"))], -1)


def _reads_bits(call: Call) -> bool:
    """Whether a view shows memory as numbers of another type."""
    return call.op in RESHAPES and "dtype" in call.args


def _sum(a: Form, b: Form, sign: int) -> Form:
    total = dict(a)
    for entry, v in b.items():
        total[entry] = total.get(entry, 0) + sign * v
    return {entry: v for entry, v in total.items() if v}


def _filled(args: Mapping[str, Any], known: Mapping[Ref, Any]) -> dict[str, Any]:
    """Arguments with tensors in the place of references."""
    return map_leaves(dict(args), lambda x: known[x] if isinstance(x, Ref) else x)


def _turned(forms: Sequence[Form], i: int, j: int) -> bool:
    """Whether entries ``i`` and ``j`` are ``c x_i - s x_j`` and ``s x_i + c x_j``, with some ``s``."""
    part = lambda at, of: {names: v for (place, names), v in forms[at].items() if place == of}
    own, other, back = part(i, i), part(i, j), part(j, i)
    whole = len(own) + len(other) == len(forms[i])
    return whole and bool(other) and own == part(j, j) and other == {names: -v for names, v in back.items()}
