"""Adjacent segments merged: those that always lie side by side are one space.

The two zero-padded ends of an option-A shortcut are S(16), not S(8) x S(8).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .axis_terms import Axis, Segments, Slot


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
