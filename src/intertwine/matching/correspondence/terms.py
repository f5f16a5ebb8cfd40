"""Terms: what a program computes, written with indices alone, so that no layout, name or packing is left in it.

A value of a program is a view of a term: its dimensions are products of the term's indices. Reshapes, transpositions
and expansions change the view and make no term. A slice is carried to the parameters where it can be: a third of a
packed projection is then a projection by a third of its weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, zeros

from .axes import Axis, ConflictError, grouped, join, leaves, volume

Spec: TypeAlias = Sequence[Sequence[str]]
"""For every dimension the letters of the indices that it consists of."""
SUNK = {"add", "mul", "contract", "map", "rows", "cat"}  # operations that a slice of what they return can pass
_DEPTH = 12  # operations that a slice passes


@dataclass(eq=False)
class Operand:
    """A term that another reads: which of its indices is which of the reader's."""

    term: Term
    pairs: list[tuple[Axis, Axis]]

    def flat(self) -> list[tuple[Axis, Axis]]:
        """The pairs, split as far as the indices are."""
        return [pair for a, b in self.pairs for pair in zip(a.leaves(), b.leaves(), strict=True)]


@dataclass(eq=False)
class Factor:
    """Part of a dimension of a stored tensor: of ``full`` entries those at ``start``, ``start + step``, ...

    ``axis`` runs over them; it is ``None`` where there is one.
    """

    axis: Axis | None
    full: int
    start: int = 0
    step: int = 1

    @property
    def whole(self) -> bool:
        """Whether it holds all entries."""
        return self.full == (1 if self.axis is None else self.axis.size)


@dataclass(eq=False)
class Term:
    """One operation on indices.

    Attributes:
        op: Its kind.
        attrs: Settings, numbers rounded.
        operands: What it reads.
        out: Indices that the result has.
        roles: Other meaning of an index than "for each": with what the operation does along it.
        layout: Dimensions of a stored tensor (``op`` is "state" or "constant").
        source: Name of the state, or its contents.
        where: Module and line.
    """

    op: str
    attrs: tuple = ()
    operands: list[Operand] = field(default_factory=list)
    out: list[Axis] = field(default_factory=list)
    roles: list[tuple[Axis, Any]] = field(default_factory=list)
    layout: list[list[Factor]] = field(default_factory=list)
    source: str | Tensor = ""
    where: tuple[str, str] = ("", "")


@dataclass(frozen=True, eq=False)
class View:
    """A value of a program: the indices of a term that make up each of its dimensions."""

    term: Term
    dims: tuple[tuple[Axis, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(volume(leaves(dim)) for dim in self.dims)

    def reshaped(self, shape: Sequence[int]) -> View:
        """The same entries, row by row in the same order; ``ConflictError`` where indices would be cut across."""
        return View(self.term, tuple(map(tuple, grouped([a for dim in self.dims for a in dim], shape))))

    def permuted(self, order: Sequence[int]) -> View:
        """Dimensions in another order."""
        return View(self.term, tuple(self.dims[i] for i in order))

    def expanded(self, shape: Sequence[int]) -> View:
        """Dimensions of length one, and new ones in front, repeated."""
        dims = ((),) * (len(shape) - len(self.dims)) + self.dims
        old = (1,) * (len(shape) - len(self.dims)) + self.shape
        return View(self.term, tuple(d if n in (m, -1) else (Axis(n, True),) for d, n, m in zip(dims, shape, old)))


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
    """An operation written with letters: for every dimension of what it reads and returns those that it consists of.

    A dimension of length one has no letter. Where indices of an operand are split in a way that no common refinement
    has, it is read through a copy without a past.
    """
    made = {letter: Axis(n) for letter, n in sizes.items() if n != 1}
    operands = []
    for view, spec in given:
        pairs = []
        try:
            pairs = _related(view, spec, made)
        except ConflictError:
            pairs = _related(view := recast(view, view.shape), spec, made)
        operands.append(Operand(view.term, pairs))
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
    """The same entries row by row under new indices."""
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


Cut: TypeAlias = tuple[Term, Axis | None, list[tuple[Axis, Axis]]]
"""A restricted term, the index over what is left, and its other indices beside the old ones."""


class Slicer:
    """Slices of terms, each made once."""

    def __init__(self) -> None:
        self._made: dict[tuple, Cut | None] = {}
        self._kept: list[Any] = []

    def part(self, view: View, dim: int, start: int, stop: int, step: int = 1) -> View:
        """``view[..., start:stop:step, ...]``; carried to the parameters where all operations on the way let it."""
        count = len(range(start, stop, step))
        dims = list(view.dims)
        own = leaves(dims[dim])
        if count == volume(own):
            return view
        if count == 0:
            shape = (*view.shape[:dim], 0, *view.shape[dim + 1 :])
            return stored("constant", shape, zeros(shape))
        if all(axis.free for axis in own):
            dims[dim] = (Axis(count, True),) if count > 1 else ()
            return View(view.term, tuple(dims))
        found = None
        if not any(axis.free for axis in own):
            found = self._cut(view.term, own, (start, stop, step), _DEPTH)
        if found is None:
            letters = [f"d{d}" for d in range(len(dims))]
            sizes = dict(zip(letters, view.shape))
            out: Spec = [(x,) if d != dim else ("out",) for d, x in enumerate(letters)]
            roles = {letters[dim]: "in", "out": "out"}
            spec: Spec = [(x,) for x in letters]
            return term("cut", [(view, spec)], out, {**sizes, "out": count}, (start, step), roles)
        new, fresh, renamed = found
        names = _by_id(renamed)
        changed = [tuple(names.get(id(x), x) for x in leaves(axes)) for axes in dims]
        changed[dim] = () if fresh is None else (fresh,)
        return View(new, tuple(changed))

    def _cut(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int], depth: int) -> Cut | None:
        """A term restricted along a row of its indices."""
        key = (id(old), tuple(map(id, xs)), region)
        if key not in self._made:
            self._kept.append((old, xs))
            self._made[key] = self._leaf(old, xs, region) if old.layout else self._passed(old, xs, region, depth)
        return self._made[key]

    def _leaf(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int]) -> Cut | None:
        start, stop, step = region
        if old.op == "input":
            return None
        renamed: list[tuple[Axis, Axis]] = []
        fresh: Axis | None = None
        layout: list[list[Factor]] = []
        for factors in old.layout:
            here: list[Factor] = []
            for f in factors:
                parts = [] if f.axis is None else f.axis.leaves()
                place = next((i for i, a in enumerate(parts) if a is xs[0]), None)
                if place is None:
                    twin = None if f.axis is None else _twin(f.axis, renamed)
                    here.append(Factor(twin, f.full, f.start, f.step))
                    continue
                if [id(a) for a in parts[place : place + len(xs)]] != [id(a) for a in xs]:
                    return None
                count = len(range(start, stop, step))
                fresh = Axis(count) if count > 1 else None
                head = len(xs) if place == 0 else 1  # what carries the region that was taken before
                rest = volume(parts[head:])
                if not f.whole and (f.full % rest or f.start % rest or (f.step != 1 and rest > 1)):
                    return None
                first, full = (f.start // rest, f.full // rest) if not f.whole else (0, volume(parts[:head]))
                if place == 0:
                    here.append(Factor(fresh, full, first + start * f.step, f.step * step))
                else:
                    here.append(Factor(_twin(parts[0], renamed), full, first, f.step))
                    here += [Factor(_twin(a, renamed), a.size) for a in parts[1:place]]
                    here.append(Factor(fresh, volume(xs), start, step))
                here += [Factor(_twin(a, renamed), a.size) for a in parts[max(place, 0) + len(xs) :]]
            layout.append(here)
        out = [f.axis for factors in layout for f in factors if f.axis is not None]
        return Term(old.op, old.attrs, [], out, [], layout, old.source, old.where), fresh, renamed

    def _passed(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int], depth: int) -> Cut | None:
        bound = {id(leaf) for axis, _ in old.roles for leaf in axis.leaves()}
        if old.op not in SUNK or depth == 0:
            return None
        if old.op == "cat" and any(id(x) in bound for x in xs):
            return self._piece(old, xs, region, depth)
        if any(id(x) in bound for x in xs):
            return None
        cut: list[Any] = []
        for operand in old.operands:
            inside = {id(b): a for a, b in operand.flat()}
            own = [inside[id(x)] for x in xs if id(x) in inside]
            if own and len(own) < len(xs):
                return None
            cut.append(self._cut(operand.term, own, region, depth - 1) if own else ())
            if cut[-1] is None:
                return None
        count = len(range(*region))
        fresh = Axis(count) if count > 1 else None
        renamed: list[tuple[Axis, Axis]] = []
        gone, seen = {id(x) for x in xs}, set[int]()
        for axis in leaves([*old.out, *(b for o in old.operands for _, b in o.pairs), *(a for a, _ in old.roles)]):
            if id(axis) not in gone and id(axis) not in seen:
                seen.add(id(axis))
                _twin(axis, renamed)
        new = _by_id(renamed)
        operands = []
        for operand, found in zip(old.operands, cut):
            read, left, others = found or (operand.term, None, [])
            names = _by_id(others)
            pairs = [(names.get(id(a), a), new[id(b)]) for a, b in operand.flat() if id(b) not in gone]
            if left is not None and fresh is not None:
                join([left], [fresh])
                pairs += list(zip(left.leaves(), fresh.leaves(), strict=True))
            operands.append(Operand(read, pairs))
        out = [new[id(a)] for a in leaves(old.out) if id(a) in new] + ([] if fresh is None else [fresh])
        roles = [(new[id(a)], role) for axis, role in old.roles for a in axis.leaves()]
        return Term(old.op, old.attrs, operands, out, roles, where=old.where), fresh, renamed

    def _piece(self, old: Term, xs: Sequence[Axis], region: tuple[int, int, int], depth: int) -> Cut | None:
        """A slice within one of the tensors that were put side by side."""
        start, stop, step = region
        ends = [0]
        for n in old.attrs:
            ends.append(ends[-1] + n)
        k = next((k for k in range(len(old.attrs)) if ends[k] <= start and stop <= ends[k + 1]), None)
        if k is None or volume(xs) != ends[-1]:
            return None
        operand = old.operands[k]
        roles = {id(leaf): role for axis, role in old.roles for leaf in axis.leaves()}
        own = [a for a, b in operand.flat() if roles.get(id(b)) == ("piece", k)]
        names = [(b, a) for a, b in operand.flat() if id(b) not in roles]
        here = {id(b) for b, _ in names} | {id(x) for x in xs}
        if any(id(a) not in here for a in leaves(old.out)):
            return None  # a dimension along which that piece was repeated
        if (start, stop, step) == (ends[k], ends[k + 1], 1):
            if len(own) > 1:
                return None
            return operand.term, own[0] if own else None, names
        found = self._cut(operand.term, own, (start - ends[k], stop - ends[k], step), depth - 1) if own else None
        if found is None:
            return None
        new, fresh, renamed = found
        now = _by_id(renamed)
        return new, fresh, [(b, now.get(id(a), a)) for b, a in names]


def _twin(axis: Axis, renamed: list[tuple[Axis, Axis]]) -> Axis:
    twin = Axis(axis.size)
    join([axis], [twin])
    renamed.append((axis, twin))
    return twin


def _by_id(renamed: Sequence[tuple[Axis, Axis]]) -> dict[int, Axis]:
    """The new axis by the id of the old one, both split as far as they are."""
    return {id(a): b for old, new in renamed for a, b in zip(old.leaves(), new.leaves(), strict=True)}
