"""Runs of calls that are read as one: shuffles of units, parts of packed tensors, and rotary turns of pairs.

A shuffle is a run of views and transpositions whose result has the shape of its input, and the same units along every
axis. Read one by one, these calls would split an axis into factors.

A turn maps a tensor ``x`` to another of its shape, by angles that depend on no parameter, with
``y_i = c x_i - s x_j`` and ``y_j = s x_i + c x_j`` for all pairs ``i, j``: each pair, as a complex number, is
multiplied by ``c + s i``, which commutes with all turns and scales of the pair. Whether a run does this is a polynomial
identity in ``x`` and the entries of the tables, so it holds everywhere if it holds at random numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...._nested import by_key
from ....programs import Call, Program, Ref
from ....programs.calls import makers, reached, readers
from ....programs.operations import COPIES, FILLS, PARTS, REARRANGEMENTS, REPEATS, RESHAPES, TRANSPOSES, aten
from ....programs.program import float64_handler, run_call
from ...spaces import Cause
from ..axis_terms import Value, axis_size, rearranged
from ..engine import Engine
from ..parents import SHUFFLE
from .norms_and_reductions import ordered
from .registry import is_pointwise, register_rule
from .shapes import IN_TURN
from .writing import PART, Unreadable, cut_at, factors_of

Orders = tuple[tuple[int, ...], ...]  # for every axis: which of its old units each unit is


@register_rule(SHUFFLE)
def shuffle(engine: Engine, call: Call) -> Value:
    """Units rearranged along some axes."""
    x = engine.value(call.args["self"])
    return Value(tuple(map(rearranged, x.axes, call.args["orders"])), x.zero, via=x.via)


@register_rule(*aten("flip roll"))
def reversed_or_rolled(engine: Engine, call: Call) -> list[Value]:
    """Units reversed or rolled along some axes; axes where no unit may move are fixed, as by an ordered read."""
    x = engine.value(call.args["self"])
    dims, shifts = call.args["dims"], call.args.get("shifts")
    told = shifts is None or not engine.program.drawn  # otherwise they may be random
    if not dims or not told or x.names is not None or not all(engine.may_move(x.axes[dim]) for dim in dims):
        return ordered(engine, call)
    for k, dim in enumerate(dims):
        units = list(range(x.shape[dim]))
        start = 0 if shifts is None else -shifts[k] % len(units)
        order = units[::-1] if shifts is None else units[start:] + units[:start]
        x = x.put(dim % len(x.axes), rearranged(x.axes[dim], order), via=x.via)
    return [x]


def _as_one(calls: Sequence[Call], part: Callable[[Call], tuple[Call, Sequence[Call]] | None]) -> list[Call]:
    """The calls, with each run that ``part`` finds for its last call replaced by one call."""
    kept, gone = list[Call](), set[int]()
    for call in reversed(calls):
        if id(call) not in gone:
            one, inside = part(call) or (call, ())
            gone.update(map(id, inside))
            kept.append(one)
    return kept[::-1]


def with_shuffles(program: Program, calls: Sequence[Call]) -> list[Call]:
    """The calls, with those that together form a shuffle as one, unless another path may read intermediate results."""
    made, read = makers(calls), readers(calls)

    def part(end: Call) -> tuple[Call, Sequence[Call]] | None:
        inside = [] if program.reads or end.op not in RESHAPES else _inside(program, end, made, read)
        orders = _orders(program, inside) if inside else None
        if orders is None:
            return None
        args = {"self": inside[-1].inputs[0], "orders": orders}
        return Call(SHUFFLE, args, end.outputs, module=end.module, line=end.line), inside

    return _as_one(calls, part)


def _inside(program: Program, end: Call, made: dict[int, Call], read: dict[int, list[Call]]) -> list[Call]:
    """The calls of a possible shuffle with a given last call, last one first; empty if there is none."""
    inside, at = list[Call](), end
    value = program.values[out.id] if (out := end.outputs[0]) is not None else None
    while value is not None and at.op in REARRANGEMENTS and len(at.inputs) == 1:
        inside.append(at)
        (x,) = at.inputs
        if program.values[x.id].dtype != value.dtype or not value.dtype.is_floating_point:
            return []
        if program.values[x.id].shape == value.shape and any(call.op in TRANSPOSES for call in inside):
            return [] if 0 in value.shape else inside
        if len(read[x.id]) > 1 or x in program.outputs or x.id not in made:
            return []
        at = made[x.id]
    return []


def _orders(program: Program, inside: Sequence[Call]) -> Orders | None:
    """The order into which a shuffle puts the units of every axis; ``None`` if units change axes, or none moves."""
    shape, found = program.values[inside[-1].inputs[0].id].shape, list[tuple[int, ...]]()
    for dim, size in enumerate(shape):
        along = [1] * dim + [size] + [1] * (len(shape) - dim - 1)
        x = torch.arange(size, device="cpu").reshape(along).expand(shape)
        for call in reversed(inside):
            (x,) = run_call(call, {call.inputs[0].id: x}, float64_handler)
        order = x.movedim(dim, 0).reshape(size, -1)[:, 0]
        if not torch.equal(x, order.reshape(along).expand(shape)):
            return None
        found.append(tuple(order.tolist()))
    return tuple(found) if any(order != tuple(range(len(order))) for order in found) else None


_LAID = RESHAPES | TRANSPOSES | COPIES | PARTS


def with_parts(program: Program, calls: Sequence[Call]) -> list[Call]:
    """The calls, where picks of rows from tensors in a new layout become picks from the original tensors.

    Stacks are bypassed if one of their tensors is picked, or if their axis is merged with an adjacent one. Views and
    parts of which only the shape is read are left out.
    """
    made, kept, wanted = makers(calls), list[Call](), {ref.id for ref in program.outputs}
    calls = [_unstacked(program, _filled(call), made) for call in calls]
    made = makers(calls)
    for call in reversed([_part(program, call, made) for call in calls]):
        if call.op not in _LAID | {"aten::stack"} or any(ref.id in wanted for ref in call.made):
            kept.append(call)
            wanted.update(ref.id for ref in call.inputs)
    return kept[::-1]


def _filled(call: Call) -> Call:
    """A call that only takes the shape of a tensor, without it: what made that tensor may not be needed."""
    return replace(call, args={k: v for k, v in call.args.items() if k != "self"}) if call.op in FILLS else call


def _unstacked(program: Program, call: Call, made: Mapping[int, Call]) -> Call:
    """A call that reads a stack, rewritten to read its tensors: it picks one, concatenates or interleaves them."""
    stack = made.get(call.inputs[0].id) if call.op in RESHAPES | PARTS else None
    if stack is None or stack.op != "aten::stack":
        return call
    old, new = (program.values[one.made[0].id].shape for one in (stack, call))
    dim, tensors = stack.args["dim"] % len(old), stack.args["tensors"]
    if call.op == "aten::select" and call.args["dim"] % len(old) == dim:
        picked = tensors[call.args["index"]]
        return replace(call, op="aten::alias", func=torch.ops.aten.alias.default, args={"self": picked})
    merged = lambda d: (*old[:d], old[d] * old[d + 1], *old[d + 2 :])
    fits = [d for d in (dim, dim - 1) if 0 <= d < len(old) - 1 and new == merged(d)]
    if call.op in PARTS or len(fits) != 1 or min(old[fits[0] : fits[0] + 2]) < 2:
        return call
    op, func = ("aten::cat", torch.ops.aten.cat.default) if fits[0] == dim else (IN_TURN, None)
    return replace(call, op=op, func=func, args={"tensors": tensors, "dim": fits[0]})


def _part(program: Program, call: Call, made: Mapping[int, Call]) -> Call:
    """A call that picks rows, rewritten for the nearest earlier tensor in which they are rows of one axis."""
    chain, at = list[Call](), call if call.op in PARTS else None
    while at is not None and at.op in _LAID and at.args.get("step", 1) == 1 and not _reads_bits(at):
        (source,) = at.inputs
        value = program.values[source.id]
        chain.append(at)
        if at.op in RESHAPES and value.dtype.is_floating_point and (geometry := _geometry(program, value, chain)):
            return replace(call, op=PART, args={"self": source, "shown": geometry})
        at = made.get(source.id)
    return call


def _geometry(program: Program, source: Any, chain: Sequence[Call]) -> tuple[Any, ...] | None:
    """Memory layout of a tensor and of what calls show of it, if the last one cuts an axis into larger pieces."""
    shown = torch.empty(source.shape, device="meta")
    there = list(zip(shown.shape, shown.stride()))
    try:
        for at in reversed(chain):
            shape, settings = program.values[at.made[0].id].shape, {k: v for k, v in at.args.items() if k != "self"}
            given = shown
            shown = shown if at.op in COPIES else shown.view(shape) if at.op in RESHAPES else at.func(shown, **settings)
        found = there, list(zip(shown.shape, shown.stride())), int(shown.storage_offset())
        factors = by_key((f.axis, f) for f in factors_of(*found)).values()
    except (RuntimeError, Unreadable):
        return None
    sizes = [prod(f.size for f in own[cut - 1 :]) for own in factors if (cut := cut_at(own))]
    return found if any(size != given.shape[chain[0].args["dim"]] for size in sizes) else None


_TURN = "intertwine::turn"
_JOINS = aten("cat stack")
_ENDS = RESHAPES | aten("add sub cat")
_LINEAR = _ENDS | COPIES | PARTS | aten("stack neg mul view_as_complex view_as_real")
_MOVES = PARTS | REPEATS | TRANSPOSES | _JOINS | aten("index_select index gather embedding")
_LONGEST = 40  # calls of a part
_SAME = 1e-9  # relative difference of numbers that are equal up to rounding


@register_rule(_TURN)
def turn(engine: Engine, call: Call) -> Value:
    """Turned pairs: each keeps its place; only what commutes passes: turns, and one scale for both entries."""
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
    """The calls on which outputs and reads of numbers depend; those that together turn pairs become one.

    It has ``halves`` if ``i`` is paired with ``i + n/2``, ``tables``, and the axes ``along`` which these may vary.
    """
    # results that nothing reads impose no conditions; reads of numbers have no outputs
    calls = program.live(kept=lambda call: not call.outputs)
    return _as_one(calls, _TurnFinder(program, calls).part)


class _TurnFinder:
    """A run, and what is known about its tables."""

    def __init__(self, program: Program, calls: Sequence[Call]) -> None:
        self._values, self._makers, self._readers = program.values, makers(calls), readers(calls)
        self._place = {ref.id: k for k, call in enumerate(calls) for ref in call.made}
        learned = (ref for ref in program.states.values() if program.values[ref.id].kind == "parameter")
        self._learned, self._returned = reached(calls, learned), frozenset(program.outputs)
        self._numbers = cache(self._drawn)

    def part(self, end: Call) -> tuple[Call, list[Call]] | None:
        """The call that replaces the part of the run with a given end, and the calls in it; ``None`` if no turn."""
        inside = list[Call]()
        front = {ref for ref in end.outputs[:1] if end.op in _ENDS and ref is not None and ref.id in self._learned}
        shape = self._values[next(iter(front)).id].shape if front else ()
        while front and len(inside) < _LONGEST:
            ref = max(front, key=lambda r: self._place.get(r.id, -1))
            if len(front) == 1 and len(inside) > 1 and self._values[ref.id].shape == shape != ():
                return self._turn(ref, inside)
            call = self._makers.get(ref.id)
            returned = ref in self._returned and call is not end
            if call is None or call.op not in _LINEAR or _reads_bits(call) or returned:
                return None
            inside.append(call)
            front = (front - {ref}) | {r for r in call.inputs if r.id in self._learned}
        return None

    def _turn(self, x: Ref, inside: list[Call]) -> tuple[Call, list[Call]] | None:
        """The turn, if each pair is multiplied by one complex ``f(z) / z`` for all ``z``: two random ``z`` tell."""
        known, end, shape = {id(call) for call in inside}, inside[0], self._values[x.id].shape
        read = (reader for call in inside[1:] for ref in call.made for reader in self._readers.get(ref.id, ()))
        tables = {ref: call for call in inside for ref in call.inputs if ref.id not in self._learned}
        if 0 in shape or shape[-1] % 2 or not all(id(reader) in known for reader in read) or not tables:
            return None
        if any(call.op != "aten::mul" for call in tables.values()):
            return None
        along = {k for ref, call in tables.items() for k in self._changing(ref, call) if k < len(shape) - 1}
        lead = [n if k in along else 1 for k, n in enumerate(shape[:-1])]
        angles = 6 * _random((2, *lead, shape[-1] // 2), 0)
        z = torch.polar(torch.ones_like(angles), angles)
        for halves in (True, False):
            made = [self._made(x, inside, _entries(one, halves)) for one in z]
            if made[0] is None or made[1] is None:
                return None
            first, second = (_pairs(y, halves) for y in made if y is not None)
            turns = first / z[0]
            off, turned = (second - turns * z[1]).abs().max(), turns.imag.abs().reshape(-1, turns.shape[-1]).amax(0)
            if off < _SAME * turns.abs().max() and bool((turned > _SAME).all()):
                args = {"self": x, "tables": [*tables], "along": sorted(along), "halves": halves}
                return Call(_TURN, args, end.outputs, module=end.module, line=end.line), inside
        return None

    def _changing(self, table: Ref, call: Call) -> list[int]:
        """The axes of a product along which its table has several entries."""
        rank, shape = len(self._values[call.made[0].id].shape), self._values[table.id].shape
        return [rank - len(shape) + k for k, n in enumerate(shape) if n > 1]

    def _made(self, x: Ref, inside: Sequence[Call], numbers: Tensor) -> Tensor | None:
        """The calls' result on numbers constant along some axes before the last; ``None`` if these axes change size.

        Operations that act along those axes are not part of a turn, which the shapes of their results reveal.
        """
        lead, known = numbers.shape[:-1], {x.id: numbers}
        for call in reversed(inside):
            (ref,) = call.made
            shape = self._values[ref.id].shape
            if shape[: len(lead)] != self._values[x.id].shape[:-1]:
                return None
            known |= {r.id: self._numbers(r) for r in call.inputs if r.id not in self._learned}
            if call.op in RESHAPES:
                made = known[call.inputs[0].id].reshape(*lead, *shape[len(lead) :])
            else:
                (made,) = run_call(call, known, float64_handler)
            known[ref.id] = made.contiguous()
        return known[inside[0].made[0].id]

    def _drawn(self, ref: Ref) -> Tensor:
        """Random numbers in the shape of a table: two are equal only where the entries are, for all positions."""
        value = self._values[ref.id]
        call = self._makers.get(ref.id, value.source)
        if value.data is not None and value.dtype.is_floating_point:
            return _scrambled(value.data.detach().cpu())
        real = [r for r in call.inputs if self._values[r.id].dtype.is_floating_point] if call is not None else []
        if call is not None and real and call.op in COPIES | RESHAPES and not _reads_bits(call):
            return self._numbers(real[0]).reshape(value.shape)
        if call is not None and real and call.op in _MOVES and (call.op not in _JOINS or len(real) == len(call.inputs)):
            known: Any = {r.id: self._numbers(r) if r in real else self._values[r.id].data for r in call.inputs}
            if all(x is not None for x in known.values()):
                return run_call(replace(call, outputs=(ref,)), known, float64_handler)[0]
        drawn = call is not None and torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ())
        if call is not None and len(real) == 1 == len(call.inputs) and is_pointwise(call) and not drawn:
            return _scrambled(self._numbers(real[0]) + ref.id)
        numbers = _random((*value.shape, 2), ref.id + 1)
        return torch.view_as_complex(numbers) if value.dtype.is_complex else numbers[..., 0]


def _random(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")


def _scrambled(x: Tensor) -> Tensor:
    """Numbers between 0 and 1 that reveal only which entries of ``x`` are equal."""
    bits = (x.double() + 0.0).contiguous().view(torch.int64)
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB), (31, 1)):
        bits = (bits ^ (bits >> shift)) * factor
    return bits.double() * 2.0**-63


def _pairs(x: Tensor, halves: bool) -> Tensor:
    return torch.complex(*(x.chunk(2, -1) if halves else x.unflatten(-1, (-1, 2)).unbind(-1)))


def _entries(z: Tensor, halves: bool) -> Tensor:
    return torch.cat((z.real, z.imag), -1) if halves else torch.view_as_real(z).flatten(-2)


def _reads_bits(call: Call) -> bool:
    """Whether a view reinterprets memory as another type."""
    return call.op in RESHAPES and "dtype" in call.args
