"""Dependences among spaces, and between them and the outputs.

Parents: a space has its own element for every unit of its parents. It depends on every space that accompanies it in
each tensor that carries it, unless an operation mixes units of the companion, or the companion occurs twice and it is
ambiguous which occurrence is meant. It is unambiguous if the companion stands before the space on the same axis and no
other tensor put it there. A tensor that a held space leaves unchanged, such as a table of rotary angles, makes no
demands on it. Adjacent segments that always lie side by side are one space.

Influence: moving parameter slices on which the outputs do not depend would be wrong as soon as another input, a longer
sequence or another path reads them. Going back from the outputs, a call that only moves entries passes on the relevant
spaces of its result; any other call adds the spaces of its arguments that do not reach its result.

Other paths: a host read may have decided which modules ran. Then a parameter that was not read may meet whatever its
module, or the module that would call it, can see. All that is fixed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from ..._nested import by_key
from ...programs import Ref
from ...programs.operations import PARTS, aten
from .axis_terms import UNIT, Axis, Segments, Slot, slots
from .engine import Engine


def dependences(
    tensors: Iterable[Sequence[Axis]],
    mixed: Iterable[tuple[Sequence[Axis], Axis]],
    rank: dict[int, int],
    beside: Collection[tuple[int, int]] = (),
    held: Collection[int] = (),
    still: Collection[int] = (),
) -> dict[int, list[int]]:
    """The parents of every space, outermost first.

    ``rank`` holds the spaces that parameters carry, with their order of first appearance; for ``mixed`` and ``beside``
    see ``Algebra``. Units of ``held`` spaces keep their places, so that these act on nothing without a scale; ``still``
    spaces never act and are only parents.
    """
    found: dict[int, set[int]] = {}
    for axes in tensors:
        for slot, companions in _companions(axes, rank, beside):
            space = slot.space
            if space in rank and not (space in held and slot.expr == UNIT):
                common = {c for c in companions if c in rank}
                found[space] = found[space] & common if space in found else common
    for axes, along in mixed:
        inside = {s.space for s in slots(along)}
        for axis in axes:
            for slot in slots(axis):
                if slot.space in found and slot.space not in inside:
                    found[slot.space] -= inside
    found.update((space, set()) for space in still if space in found)
    for space in sorted(found, key=rank.__getitem__):
        for parent in sorted(found[space], key=rank.__getitem__, reverse=True):
            if _reaches(found, parent, space):
                # each accompanies the other: the outer one, which appears first, is the parent
                if rank[space] < rank[parent] or space not in found[parent]:
                    found[space].discard(parent)
                else:
                    found[parent].discard(space)
    return {s: sorted(p, key=rank.__getitem__) for s, p in found.items()}


def _companions(
    axes: Sequence[Axis], rank: dict[int, int], beside: Collection[tuple[int, int]]
) -> Iterator[tuple[Slot, set[int]]]:
    """Every occurrence of a ranked space, with the spaces that certainly accompany it exactly once."""
    axes = [_opened(axis) for axis in axes]
    tallies = [_tally(axis) for axis in axes]
    total = sum(tallies, Counter())
    whole = not any(isinstance(factor, Segments) for axis in axes for factor in axis)
    for axis, own in zip(axes, tallies):
        for slot, around, before in _walk(axis, total - own):
            outer = {c for c in before if whole and own[c] == 1 and (c, slot.space) not in beside}
            yield slot, {c for c, n in around.items() if (n == 1 or c in outer) and c != slot.space}


def _opened(axis: Axis) -> Axis:
    """An axis with rearrangements opened, since the order of rows does not matter here."""
    parts = ((f, f.parts if isinstance(f, Segments) else ()) for f in axis)
    return tuple(inner for f, own in parts for inner in (_opened(own[0]) if len(own) == 1 else (f,)))


def _tally(axis: Axis) -> Counter:
    """Occurrences of spaces; those inside segments occur in some blocks only, and count as ambiguous."""
    count: Counter = Counter()
    for factor in axis:
        if isinstance(factor, Slot):
            count[factor.space] += 1
        elif isinstance(factor, Segments):
            for slot in slots((factor,)):
                count[slot.space] += 2
    return count


def _walk(axis: Axis, outside: Counter) -> Iterator[tuple[Slot, Counter, set[int]]]:
    """Every slot of an axis, with the occurrences of spaces around it and those before it."""
    for i, factor in enumerate(axis):
        around = outside + _tally((*axis[:i], *axis[i + 1 :]))
        if isinstance(factor, Slot):
            yield factor, around, {f.space for f in axis[:i] if isinstance(f, Slot)}
        elif isinstance(factor, Segments):
            for part in factor.parts:
                yield from _walk(part, around)


def _reaches(found: dict[int, set[int]], start: int, goal: int) -> bool:
    seen, waiting = set(), [start]
    while waiting:
        at = waiting.pop()
        if at == goal:
            return True
        if at not in seen:
            seen.add(at)
            waiting += found.get(at, ())
    return False


def always_siblings(tensors: Iterable[Sequence[Axis]]) -> list[list[int]]:
    """Sets of spaces that occur only as whole segments of the same concatenations."""
    seen: dict[int, set[Any]] = {}
    repeated: set[int] = set()
    for number, axes in enumerate(tensors):
        for dim, axis in enumerate(axes):
            for space, place in _places(axis, (number, dim)):
                known = seen.setdefault(space, set())
                if place in known and place[0] != "alone":
                    repeated.add(space)  # twice in one concatenation: it is ambiguous which siblings belong together
                known.add(place)
    groups = by_key((frozenset(places), space) for space, places in seen.items() if space not in repeated)
    return [sorted(spaces) for spaces in groups.values() if len(spaces) > 1]


def _places(axis: Axis, path: tuple) -> Iterator[tuple[int, Any]]:
    """Occurrences of every space: a whole segment is identified by its outermost concatenation, others by the space."""
    for i, factor in enumerate(axis):
        if isinstance(factor, Slot):
            yield factor.space, ("alone", factor.space)
        elif isinstance(factor, Segments):
            for k, part in enumerate(factor.parts):
                if len(part) == 1 and isinstance(part[0], Slot):
                    yield part[0].space, (*path, i)
                else:
                    alone = len(part) == 1 and len(factor.parts) == 1
                    yield from _places(part, path if alone else (*path, i, k))


Demand = tuple[set[int], set[int]]  # spaces that something depends on, and spaces that some call multiplied by zeros


def demands(engine: Engine) -> dict[int, Demand]:
    """The spaces that influence outputs or host reads, by value; values without influence are omitted."""
    found: dict[int, Demand] = {}

    def ask(ref: Ref, *more: set[int]) -> None:
        for known, new in zip(found.setdefault(ref.id, (set(), set())), more):
            known |= new

    for ref in engine.program.outputs:
        ask(ref, engine.spaces(ref))
    for index in range(len(engine.calls) - 1, -1, -1):
        call = engine.calls[index]
        asked = [found[out.id] for out in call.made if out.id in found and not engine.is_zero(out)]
        if call.made and not asked:
            continue
        wanted, given = set().union(*(spaces for spaces, _ in asked)), set().union(*map(engine.spaces, call.made))
        zeros = set(map(engine.pool.find, engine.idle.get(index, ())))
        idle = zeros.union(*(idle for _, idle in asked))
        for ref in dict.fromkeys(call.inputs):
            if ref.id in engine.skipped.get(index, ()):
                continue
            here = engine.spaces(ref)
            # views of all kinds, their copies, and writes into parts only move entries
            moves = index in engine.parts or call.op.removesuffix("_copy") in PARTS | _WRITES
            moves = moves or bool(getattr(call.func, "is_view", False))
            passed = here & wanted if moves else (here - given - zeros) | (here & wanted)
            ask(ref, passed, here & idle)
    return found


def beside(axis: Axis, idle: set[int]) -> Iterator[Slot]:
    """Every slot of an axis except those of segments beside the idle ones."""
    for factor in axis:
        if isinstance(factor, Segments) and any(s.space in idle for s in slots((factor,))):
            for part in factor.parts:
                if any(s.space in idle for s in slots(part)):
                    yield from beside(part, idle)
        else:
            yield from slots((factor,))


SHUFFLE = "intertwine::shuffle"
_WRITES = aten("constant_pad_nd slice_scatter select_scatter as_strided_scatter") | {
    "intertwine::part_of_write", "intertwine::written_into", "intertwine::part", SHUFFLE,
}  # fmt: skip


def fix_unseen(engine: Engine, unread: Iterable[str]) -> None:
    """Fix all that ``unread`` parameters and buffers may meet on another path, if there is more than one path."""
    program = engine.program
    if not program.reads:
        return
    callers: dict[str, str] = {}  # the innermost module around a parameter that ran -> the parameter
    for name in unread:
        place = name.rpartition(".")[0]
        while place and place not in program.visible:
            place = place.rpartition(".")[0]
        callers[place] = name
    for place, name in callers.items():
        why = f"{name} may read it on another path: it was not read on the path of the example"
        for number in sorted(program.visible.get(place, ())):
            for axis in engine.values[number].axes if number in engine.values else ():
                for slot in slots(engine.pool.resolve(axis)):
                    engine.fix((slot,), why)
