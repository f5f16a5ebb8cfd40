"""Terms: what a program computes, written with indices alone, so that no layout, name or packing remains.

A value of a program is a view of a term: its dimensions are products of the term's indices. Reshapes, transpositions
and expansions change the view and make no term: they split and join an index in the same way wherever it occurs. A
slice is carried to the parameters if possible: a third of a packed projection becomes one by a third of its weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from torch import Tensor

Spec: TypeAlias = Sequence[Sequence[str]]
"""The letters of the indices of which each dimension consists."""


class ConflictError(Exception):
    """Two ways of splitting one axis that have no common refinement, such as 4 x 7 and 14 x 2."""


class Axis:
    """One index of a value; ``free`` if the value does not depend on it, as after ``expand``."""

    __slots__ = ("free", "kids", "links", "size")

    def __init__(self, size: int, free: bool = False) -> None:
        self.size, self.free = size, free
        self.kids: tuple[Axis, Axis] | None = None  # the outer and inner index that it was split into, if any
        self.links: list[Axis] = []  # axes that carry the same index in other values; they split together

    def leaves(self) -> list[Axis]:
        """The indices of which the axis consists, outer ones first."""
        return [self] if self.kids is None else self.kids[0].leaves() + self.kids[1].leaves()


def leaves(axes: Iterable[Axis]) -> list[Axis]:
    """The indices of which a row of axes consists."""
    return [leaf for axis in axes for leaf in axis.leaves()]


def grouped(axes: Iterable[Axis], sizes: Sequence[int]) -> list[list[Axis]]:
    """The axes in consecutive groups of given sizes, split if a boundary lies within one; or ``ConflictError``."""
    queue = leaves(axes)[::-1]
    found = []
    for size in sizes:
        group: list[Axis] = []
        while size != 1:
            if not queue:
                raise ConflictError
            axis = queue.pop()
            if axis.kids is not None:  # split meanwhile by another axis of this row
                queue += axis.leaves()[::-1]
            elif axis.size == size or (axis.size and size % axis.size == 0):
                group.append(axis)
                size = size // axis.size if axis.size else 1  # only an empty index is left
            elif axis.size % size == 0:
                _split(axis, size)
                queue.append(axis)
            else:
                raise ConflictError
        found.append(leaves(group))
    return [leaves(group) for group in found]


def join(left: Sequence[Axis], right: Sequence[Axis]) -> None:
    """Make two rows of axes carry the same indices from now on, or raise ``ConflictError``."""
    left, right = leaves(left), leaves(right)
    grouped(right, [axis.size for axis in left])
    grouped(left, [axis.size for axis in leaves(right)])
    for one, other in zip(leaves(left), leaves(right), strict=True):
        one.links.append(other)
        other.links.append(one)


def _split(axis: Axis, outer: int) -> None:
    """Split an index and all axes linked to it."""
    together, todo = {axis}, [axis]
    while todo:
        for other in todo.pop().links:
            if other not in together:
                together.add(other)
                todo.append(other)
    for one in together:
        one.kids = Axis(outer, one.free), Axis(one.size // outer, one.free)
    for one in together:
        for other in one.links:
            for k in (0, 1):
                one.kids[k].links.append(other.kids[k])  # type: ignore[index]


def flat(pairs: Iterable[tuple[Axis, Axis]]) -> list[tuple[Axis, Axis]]:
    """Pairs of axes that carry the same index, split into their leaves."""
    return [pair for a, b in pairs for pair in zip(a.leaves(), b.leaves(), strict=True)]


def volume(axes: Iterable[Axis]) -> int:
    """Number of entries along a row of axes."""
    return prod(axis.size for axis in axes)


@dataclass(eq=False)
class Operand:
    """A term that another reads, with the correspondence of its indices to the reader's."""

    term: Term
    pairs: list[tuple[Axis, Axis]]

    def flat(self) -> list[tuple[Axis, Axis]]:
        """The pairs, split into the leaves of their indices."""
        return flat(self.pairs)


@dataclass(eq=False)
class Factor:
    """Part of a dimension of a stored tensor: of ``full`` entries, those at ``start``, ``start + step``, ..."""

    axis: Axis | None
    full: int
    start: int = 0
    step: int = 1

    @property
    def whole(self) -> bool:
        """Whether the factor holds all entries."""
        return self.full == (1 if self.axis is None else self.axis.size)


@dataclass(eq=False)
class Term:
    """One operation on indices."""

    op: str
    attrs: tuple = ()  # Settings, numbers rounded
    operands: list[Operand] = field(default_factory=list)
    out: list[Axis] = field(default_factory=list)  # Indices that the result has
    # Indices with a meaning other than "for each": what the operation does along them
    roles: list[tuple[Axis, Any]] = field(default_factory=list)
    layout: list[list[Factor]] = field(default_factory=list)  # Of a stored tensor, "input", "state" or "constant"
    source: str | Tensor = ""  # Name of the state or input, or the contents of a constant, if known
    where: tuple[str, str] = ("", "")  # Module and line

    @property
    def number(self) -> float | None:
        """The value that a constant has everywhere."""
        held = self.source
        return float(held) if isinstance(held, Tensor) and held.numel() == 1 else None


@dataclass(frozen=True, eq=False)
class View:
    """A value of a program: the indices of a term that make up each of its dimensions."""

    term: Term
    dims: tuple[tuple[Axis, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(volume(leaves(dim)) for dim in self.dims)

    def of(self, dims: Iterable[Iterable[Axis]]) -> View:
        """The view with other dimensions."""
        return View(self.term, tuple(map(tuple, dims)))

    def reshaped(self, shape: Sequence[int]) -> View:
        """The same entries in row-major order; under new indices if the shape cuts across its present ones."""
        try:
            return self.of(grouped([a for dim in self.dims for a in dim], shape))
        except ConflictError:
            view = recast(self, self.shape)
            return view.of(grouped([a for dim in view.dims for a in dim], shape))

    def permuted(self, order: Sequence[int]) -> View:
        """The view with dimensions in another order."""
        return self.of(self.dims[i] for i in order)

    def expanded(self, shape: Sequence[int]) -> View:
        """The view with dimensions of length one, and new leading ones, repeated."""
        dims = ((),) * (len(shape) - len(self.dims)) + self.dims
        old = (1,) * (len(shape) - len(self.dims)) + self.shape
        return self.of(d if n in (m, -1) else (Axis(n, True),) for d, n, m in zip(dims, shape, old))


def stored(op: str, shape: Sequence[int], source: str | Tensor) -> View:
    """A parameter, buffer, input or constant."""
    layout = [[Factor(Axis(n) if n != 1 else None, n)] for n in shape]
    out = [dim[0].axis for dim in layout if dim[0].axis is not None]
    term = Term(op, (), [], out, [], layout, source)
    return View(term, tuple(() if dim[0].axis is None else (dim[0].axis,) for dim in layout))


def term(
    op: str,
    given: Sequence[tuple[View, Spec]],
    out: Spec,
    sizes: Mapping[str, int],
    attrs: tuple = (),
    roles: Mapping[str, Any] | None = None,
) -> View:
    """An operation written with letters for each dimension of its operands and result; none for length one."""
    made = {letter: Axis(n) for letter, n in sizes.items() if n != 1}
    operands = [Operand(view.term, _related(view, spec, made)) for view, spec in given]
    dims = tuple(tuple(made[letter] for letter in dim if letter in made) for dim in out)
    roles = {letter: role for letter, role in (roles or {}).items() if letter in made}
    found = Term(op, attrs, operands, [a for dim in dims for a in dim], [(made[x], r) for x, r in roles.items()])
    return View(found, dims)


def _related(view: View, spec: Spec, made: Mapping[str, Axis]) -> list[tuple[Axis, Axis]]:
    pairs = []
    for dim, letters in zip(view.dims, spec, strict=True):
        own = leaves(dim)
        inside = [made[letter] for letter in letters if letter in made]
        if not own or not inside:
            continue
        for group, axis in zip(grouped(own, [axis.size for axis in inside]), inside):
            join(group, [axis])
            pairs += [(a, b) for a, b in zip(leaves(group), axis.leaves(), strict=True) if not a.free]
    return pairs


def recast(view: View, shape: Sequence[int]) -> View:
    """The same entries in row-major order under new indices."""
    pairs: list[tuple[Axis, Axis]] = []
    roles: list[tuple[Axis, Any]] = []
    for d, dim in enumerate(view.dims):
        for k, axis in enumerate(leaves(dim)):
            if not axis.free:
                letter = Axis(axis.size)
                join([axis], [letter])
                pairs.append((axis, letter))
                roles.append((letter, ("from", d, k)))
    out = [Axis(n) if n != 1 else None for n in shape]
    roles += [(a, ("to", d)) for d, a in enumerate(out) if a is not None]
    made = Term("reshape", (), [Operand(view.term, pairs)], [a for a in out if a is not None], roles)
    return View(made, tuple(() if a is None else (a,) for a in out))


def told(t: Term) -> tuple[Tensor, list[Axis]]:
    """The entries of its tensor that a leaf reads, and their indices, without those along which they repeat."""
    assert isinstance(t.source, Tensor)
    factors = [f for dim in t.layout for f in dim]
    spread = t.source.reshape([f.full for f in factors])
    read = spread[tuple(f.start if f.axis is None else slice(f.start, f.start + f.step * f.axis.size, f.step)
                        for f in factors)]  # fmt: skip
    axes = leaves(f.axis for f in factors if f.axis is not None)
    found, kept = read.reshape([a.size for a in axes]), list[Axis]()
    for axis in axes:
        first = found.narrow(len(kept), 0, min(axis.size, 1))
        if axis.size and bool((found == first).all()):
            found = first.squeeze(len(kept))
        else:
            kept.append(axis)
    return found, kept


def ordered(roots: Sequence[Term]) -> list[Term]:
    """The terms in an order in which each comes after those it reads."""
    found: dict[Term, None] = {}
    todo = list(roots)[::-1]
    while todo:
        waiting = [o.term for o in todo[-1].operands if o.term not in found]
        if waiting:
            todo += waiting
        else:
            found[todo.pop()] = None
    return [*found]


def letters_of(head: str, count: int) -> list[tuple[str, ...]]:
    """A separate letter for each dimension."""
    return [(f"{head}{d}",) for d in range(count)]
