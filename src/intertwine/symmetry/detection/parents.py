"""Parents of spaces: a space has an element of its own for every unit of its parents.

A space depends on every space that accompanies it in each tensor that carries it, parameters and intermediate values
alike, unless an operation mixes units of the companion, or the companion occurs twice so that it is not clear which
occurrence is meant. It is clear where the companion stands before the space on the same axis (channels of groups, of a
tensor that maps them to other channels of the groups), and no other tensor put it there. A tensor that a held space
leaves as it is, such as a table of rotary angles, asks nothing of it.

Adjacent segments merged: those that always lie side by side are one space.

The two zero-padded ends of an option-A shortcut are S(16), not S(8) x S(8).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from .axis_terms import UNIT, Axis, Segments, Slot, slots


def dependences(
    tensors: Iterable[Sequence[Axis]],
    mixed: Iterable[tuple[Sequence[Axis], Axis]],
    rank: dict[int, int],
    beside: Collection[tuple[int, int]] = (),
    held: Collection[int] = (),
    still: Collection[int] = (),
) -> dict[int, list[int]]:
    """The parents of every space, outermost first.

    ``mixed`` holds axes along which units are mixed, with the tensor in which they are; ``rank`` the spaces that
    parameters carry, with the order in which they first appear; ``beside`` pairs of spaces of which the first is on one
    axis with the second only since they met there; ``held`` those whose units keep their places, so that
    they act on nothing where they have no scale; ``still`` those that never act: they are parents alone.
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
                later = space if rank[parent] < rank[space] else parent
                earlier = parent if later == space else space
                if earlier == space or not found[parent] & {space}:
                    found[space].discard(parent)
                else:
                    found[parent].discard(space)
    return {s: sorted(p, key=rank.__getitem__) for s, p in found.items()}


def _companions(
    axes: Sequence[Axis], rank: dict[int, int], beside: Collection[tuple[int, int]]
) -> Iterator[tuple[Slot, list[int]]]:
    """Every occurrence of a ranked space, with the spaces that certainly accompany it exactly once."""
    if not any(isinstance(factor, Segments) for axis in axes for factor in axis):
        rows = [[f for f in axis if isinstance(f, Slot) and f.space in rank] for axis in axes]
        here = Counter(f.space for row in rows for f in row)
        for row in rows:
            own = Counter(f.space for f in row)
            for i, slot in enumerate(row):
                outer = {f.space for f in row[:i] if own[f.space] == 1 and (f.space, slot.space) not in beside}
                yield slot, [c for c in here if c != slot.space and (here[c] == 1 or c in outer)]
        return
    tallies = [_tally(axis) for axis in axes]
    total = sum(tallies, Counter())
    for axis, own in zip(axes, tallies):
        yield from _walk(axis, total - own)


def _tally(axis: Axis) -> Counter:
    """Occurrences of spaces; what is inside segments is there in some blocks only, and counts as unclear."""
    count: Counter = Counter()
    for factor in axis:
        if isinstance(factor, Slot):
            count[factor.space] += 1
        elif isinstance(factor, Segments):
            for slot in slots((factor,)):
                count[slot.space] += 2
    return count


def _walk(axis: Axis, outside: Counter) -> Iterator[tuple[Slot, list[int]]]:
    for i, factor in enumerate(axis):
        around = outside + _tally((*axis[:i], *axis[i + 1 :]))
        if isinstance(factor, Slot):
            yield factor, [c for c, n in around.items() if n == 1 and c != factor.space]
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
                    repeated.add(space)  # twice in one concatenation: which of its siblings belongs to which?
                known.add(place)
    groups: dict[frozenset, list[int]] = {}
    for space, places in seen.items():
        if space not in repeated:
            groups.setdefault(frozenset(places), []).append(space)
    return [sorted(spaces) for spaces in groups.values() if len(spaces) > 1]


def _places(axis: Axis, path: tuple) -> Iterator[tuple[int, Any]]:
    """Occurrences of every space: a whole segment is known by its concatenation, anything else by the space."""
    for i, factor in enumerate(axis):
        if isinstance(factor, Slot):
            yield factor.space, ("alone", factor.space)
        elif isinstance(factor, Segments):
            for k, part in enumerate(factor.parts):
                if len(part) == 1 and isinstance(part[0], Slot):
                    yield part[0].space, (*path, i)
                else:
                    yield from _places(part, (*path, i, k))
