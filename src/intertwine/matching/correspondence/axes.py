"""Axes as products of indices: what reshapes split and join, kept alike wherever one index goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod


class ConflictError(Exception):
    """Two ways of splitting one axis that have no common refinement, such as 4 x 7 and 14 x 2."""


class Axis:
    """One index of a value.

    Attributes:
        size: Its length.
        kids: The outer and the inner index that it was split into, if it was.
        links: Axes that carry the same index in other values; they split together.
        free: Whether the value does not depend on it, as after ``expand``.
    """

    __slots__ = ("free", "kids", "links", "size")

    def __init__(self, size: int, free: bool = False) -> None:
        self.size, self.free = size, free
        self.kids: tuple[Axis, Axis] | None = None
        self.links: list[Axis] = []

    def leaves(self) -> list[Axis]:
        """The indices that it consists of, the outer ones first."""
        return [self] if self.kids is None else self.kids[0].leaves() + self.kids[1].leaves()


def leaves(axes: Iterable[Axis]) -> list[Axis]:
    """The indices that a row of axes consists of."""
    return [leaf for axis in axes for leaf in axis.leaves()]


def grouped(axes: Iterable[Axis], sizes: Sequence[int]) -> list[list[Axis]]:
    """The axes in consecutive groups of given sizes, split where a boundary lies within one.

    Raises:
        ConflictError: If a boundary cannot be put there.
    """
    queue = leaves(axes)[::-1]
    found = []
    for size in sizes:
        group: list[Axis] = []
        while size > 1:
            if not queue:
                raise ConflictError
            axis = queue.pop()
            if axis.kids is not None:  # split meanwhile, by another of this row
                queue += axis.leaves()[::-1]
            elif size % axis.size == 0:
                group.append(axis)
                size //= axis.size
            elif axis.size % size == 0:
                _split(axis, size)
                queue.append(axis)
            else:
                raise ConflictError
        found.append(leaves(group))
    return [leaves(group) for group in found]


def join(left: Sequence[Axis], right: Sequence[Axis]) -> None:
    """Let two rows of axes carry the same indices from now on.

    Raises:
        ConflictError: If they are split in ways that have no common refinement.
    """  # noqa: DOC502 - raised by what it calls
    left, right = leaves(left), leaves(right)
    grouped(right, _steps(left))
    grouped(left, _steps(right))
    for one, other in zip(leaves(left), leaves(right), strict=True):
        one.links.append(other)
        other.links.append(one)


def _steps(axes: Sequence[Axis]) -> list[int]:
    return [axis.size for axis in leaves(axes)]


def _split(axis: Axis, outer: int) -> None:
    """Split an index, and with it all that are linked."""
    together, todo = {id(axis): axis}, [axis]
    while todo:
        for other in todo.pop().links:
            if id(other) not in together:
                together[id(other)] = other
                todo.append(other)
    for one in together.values():
        one.kids = Axis(outer, one.free), Axis(one.size // outer, one.free)
    for one in together.values():
        for other in one.links:
            for k in (0, 1):
                one.kids[k].links.append(other.kids[k])  # type: ignore[index]


def volume(axes: Iterable[Axis]) -> int:
    """Number of entries along a row of axes."""
    return prod(axis.size for axis in axes)
