"""Cost matrices of all spaces, updated when they are asked for.

The inner products of a space's slices depend on the positions of its neighbours' units. If a block joins two spaces,
its products record the order of the neighbour for which they were computed. When asked again, they change by
``A[ch]ᵀ (B[new] - B[old])`` along the units that moved since: a low-rank matrix, gathered from weights that stay in
place. Spaces whose neighbours have not moved since they were last solved are clean and are not solved again.

Near units are found by sketches, without the inner products of all weights. A sketch sums groups of a unit's weights
with random signs, divided by the root of their number: an orthogonal projection, so that it shortens every distance.
"""

from collections.abc import Iterable
from copy import copy
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from .._io.lazy import LazyState
from ..groups import Element, Representation
from ..groups.assignment import assign_nearly
from ..symmetry.action import transform
from ..symmetry.blocks import Member, align
from ..symmetry.spaces import Leaf
from ..symmetry.transformation import Transformation, identity
from .coordinates.problem import Both, Problem, Row, add_to

_SKETCH = 128  # numbers in the sketch of one block: for 10,000 weights, enough for noise of a tenth
_ROWS = 512  # units processed at once


def sketched(x: Tensor, entries: int | None = None) -> Tensor:
    """The sketches ``(n, k)`` of units ``(n, K)``, or of some of their ``entries``; short units are kept whole."""
    group = (x.shape[1] if entries is None else entries) // _SKETCH
    if group < 2 or x.shape[1] < group:
        return x.clone()  # a view would keep the whole tensor in memory
    signs = torch.randint(0, 2, (x.shape[1],), generator=torch.Generator().manual_seed(x.shape[1]))
    signs = ((2 * signs - 1) / group**0.5).to(x)
    kept = x.shape[1] // group * group
    return torch.cat([(some * signs)[:, :kept].unflatten(1, (-1, group)).sum(2) for some in x.split(_ROWS)])


def paired(blocks: Iterable[Both], fast: bool = False) -> Tensor | None:
    """The permutation that pairs near units, by sketches whose squared distances add up; ``None`` without blocks."""
    every = list(blocks)
    if not every:
        return None
    left, right = (torch.cat([both[side] for both in every], 1) for side in (0, 1))
    squares = right.square().sum(1)
    nearest = torch.cat([torch.addmm(squares, x, right.mT, alpha=-2).argmin(1) for x in left.split(_ROWS)])
    if len(nearest.unique()) == len(nearest):
        return nearest
    return assign_nearly(torch.addmm(squares, left, right.mT, alpha=-2).neg_(), fast)


ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}  # of sums of products, relative to the largest possible


class Costs:
    """The inner products of all units of ``a`` with all units of the moved ``b``, which starts at ``g``.

    If tensors are read one by one, only the costs of one space are held at a time, computed from scratch.
    """

    def __init__(self, problem: Problem, g: Transformation) -> None:
        self.problem, self.g = problem, g  # how ``b`` has been moved so far
        self.still = identity(problem.sym)  # steps that share its elements leave those spaces in place
        self.dirty = {s.name for s in problem.sym.spaces}  # spaces whose costs changed since they were solved
        self._streamed = isinstance(problem.a, LazyState)
        # spaces on which the costs of each depend: also itself, if it occurs twice in a block
        self._near: dict[str, set[str]] = {}
        for space, some in problem.members.items():
            others = (m.block.spaces[: m.dim] + m.block.spaces[m.dim + 1 :] for m in some)
            self._near[space] = {s for spaces in others for s in spaces if s is not None}
        followed = (m for some in problem.members.values() for m in some if self._follows(m))
        # tracked members with their blocks in both networks
        self._tracked = {m: [m.block.read(state[m.tensor]) for state in (problem.a, problem.b)] for m in followed}
        self._now: dict[str, dict[Row, Tensor]] = {}
        self._present: dict[str, Tensor] = {}
        self._totals: dict[str, dict[Row, Tensor]] = {}  # of tracked members; units of b in their original places
        self._seen: dict[Member, Element] = {}  # the neighbour for which a tracked member's products were computed
        # the objective, plus the gain of every move; and whether nothing moved since all was computed from scratch
        self.value, self.fresh = problem.objective(g), True

    def _follows(self, m: Member) -> bool:
        """Whether a member's products depend on at most one neighbour, whose units only change places and signs."""
        spaces = [self.problem.sym.space(leaf.space) for _, leaf in m.block.carried]
        apart = len(spaces) == len({s.name for s in spaces}) <= 2 and not any(s.parents for s in spaces)
        return not self._streamed and apart and not any(s.group.mixes for s in spaces if s.name != m.space.name)

    def of(self, space: str) -> dict[Row, Tensor]:
        """Sums of inner products ``(p..., n, n)`` by parities of signs: units of ``a`` first, present ones second."""
        if space not in self._now:
            if self._streamed:
                self._now.clear()
            self._now[space] = self._summed(space)
        return self._now[space]

    def present(self, name: str) -> Tensor:
        """A tensor of ``b`` as moved so far."""
        if name in self._present:
            return self._present[name]
        found = transform(self.problem.b[name], self.problem.sym.layouts[name], self.g)
        if not self._streamed:
            self._present[name] = found
        return found

    def refresh(self) -> None:
        """Compute everything from scratch; spaces whose tracked costs were wrong become dirty."""
        for space in [*self._totals]:
            tracked = self._followed(space)
            for m in self.problem.members[space]:
                self._seen.pop(m, None)
            del self._totals[space]
            if not _agree(tracked, self._followed(space)):
                self.dirty.add(space)
        self._now.clear()
        self.value, self.fresh = self.problem.objective(self.g), True

    def moving(self, step: Transformation) -> list[str]:
        """Spaces that a step moves."""
        return [n for n, e in step.elements.items() if e is not self.still[n] and not e.is_identity(0.0)]

    def gain(self, step: Transformation) -> float:
        """The rise of the objective; from the costs, if only one space moves and each block has it once."""
        active = self.moving(step)
        if len(active) == 1 and (space := active[0]) not in self._near[space]:
            e, still = step[space], self.still[space]
            costs = self.of(space).items()
            return sum(_moved_trace(cost, e, row) - _moved_trace(cost, still, row) for row, cost in costs)
        total = 0.0
        for name in sorted({m.tensor for space in active for m in self.problem.members[space]}):
            left, here = self.problem.a[name], self.present(name)
            near = transform(here, self.problem.sym.layouts[name], step)
            total += float((left * near).sum(dtype=torch.float64)) - float((left * here).sum(dtype=torch.float64))
        return total

    def move(self, step: Transformation, gain: float) -> None:
        """Move the units of ``b`` by ``step``, after ``g``; ``gain`` is the rise of the objective."""
        self.value += gain
        self.fresh = False
        active = set(self.moving(step))
        active |= {s.name for s in self.problem.sym.spaces if active & set(s.parents)}
        new = {name: step[name] @ self.g[name].reindexed(step.elements) for name in active}
        self.g = Transformation({**self.g.elements, **new})
        for space, near in self._near.items():
            if near & active:
                self.dirty.add(space)
            if space in active or near & active:
                self._now.pop(space, None)
        for name in {m.tensor for space in active for m in self.problem.members[space]} if self._present else ():
            self._present.pop(name, None)

    def saved(self) -> dict[str, Any]:
        """The state that ``restore`` needs to return here."""
        kept = ("g", "value", "fresh", "dirty", "_now", "_present", "_totals", "_seen")
        return {name: copy(getattr(self, name)) for name in kept}

    def restore(self, saved: dict[str, Any]) -> None:
        """Return to the point where ``saved`` was called; the saved state is consumed."""
        vars(self).update(saved)

    def _summed(self, space: str) -> dict[Row, Tensor]:
        """The current costs: tracked ones from what changed, the others from the moved tensors."""
        found = {row: _placed(x, self.g[space], row) for row, x in self._followed(space).items()}
        rest = (m for m in self.problem.members[space] if m not in self._tracked)
        for name, some in groupby(rest, key=lambda m: m.tensor):
            ours, theirs = self.problem.a[name], self.present(name)
            for m in some:
                add_to(found, m.row, m.view(m.block.read(ours)) @ m.view(m.block.read(theirs)).mT)
            del ours, theirs  # before the next ones are read
        return found

    def _followed(self, space: str) -> dict[Row, Tensor]:
        """The products of a space's tracked members, updated for their neighbours."""
        totals = dict(self._totals.get(space, {}))  # what was saved stays
        for m in self.problem.members[space]:
            if m in self._tracked:
                beside = next((one for one in m.block.carried if one[0] != m.dim), None)
                known, here = self._seen.get(m), (self.still[space] if beside is None else self.g[beside[1].space])
                if known is not here:
                    self._seen[m] = here
                    if (product := self._changed(m, beside, known, here)) is not None:
                        totals[m.row] = product.add_(totals[m.row]) if m.row in totals else product
        self._totals[space] = totals
        return totals

    def _changed(self, m: Member, beside: tuple[int, Leaf] | None, old: Element | None, new: Element) -> Tensor | None:
        """The change of a member's products since the neighbour's old positions; ``None`` if nothing changed."""
        a, b = self._tracked[m]
        if beside is None:
            return m.view(a) @ m.view(b).mT
        dim, row = beside[0], tuple(e % 2 for e in beside[1].sign)
        if old is None:
            return m.view(a) @ m.view(_gathered(b, dim, new, row)).mT
        one, signs = torch.ones(()), Representation(sign=row)  # how the neighbour's units are flipped
        before, after = (one if (d := e.diagonal(signs)) is None else d for e in (old, new))
        moved = (old.permutation != new.permutation) | (before != after)
        chosen = moved.nonzero().flatten()
        if not len(chosen):
            return None
        # gathering many units from both networks costs more than multiplying by zeros
        some = None if 2 * len(chosen) > len(moved) else chosen
        a = a if some is None else _taken(a, dim, some)
        change = _gathered(b, dim, new, row, some) - _gathered(b, dim, old, row, some)
        return m.view(a) @ m.view(change).mT


def _gathered(b: Tensor, dim: int, neighbour: Element, row: Row, chosen: Tensor | None = None) -> Tensor:
    """A block of ``b`` with the neighbour's units, or some of them, moved along ``dim``."""
    index, sign = neighbour.permutation, neighbour.diagonal(Representation(sign=row))
    if chosen is not None:
        index, sign = index[chosen], None if sign is None else sign[chosen]
    x = _taken(b, dim, index)
    return x if sign is None else x * align(sign.to(x), [dim], x.ndim)


def _taken(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Some units of a block along a dimension, in the given order."""
    index = index.to(x.device)
    if dim < x.ndim - 1:
        return x.index_select(dim, index)
    return x.gather(dim, index.expand(*x.shape[:-1], -1))  # many times faster than index_select on the last dimension


def _placed(product: Tensor, e: Element, row: Row) -> Tensor:
    """Inner products with unmoved units of ``b``, after these are moved by ``e``."""
    if e.linear is not None:
        return product @ e.linear.to(product).mT
    index = e.permutation.to(product.device)
    product = product.gather(-1, index[..., None, :].expand_as(product))
    sign = e.diagonal(Representation(sign=row))
    return product if sign is None else product * sign.to(product)[..., None, :]


def _moved_trace(product: Tensor, e: Element, row: Row) -> float:
    """The trace of ``_placed``, from the entries that land on the diagonal."""
    if e.linear is not None:
        return float((product * e.linear.to(product)).sum(dtype=torch.float64))
    entries = product.gather(-1, e.permutation.to(product.device)[..., None])[..., 0]
    sign = e.diagonal(Representation(sign=row))
    return float((entries if sign is None else entries * sign.to(entries)).sum(dtype=torch.float64))


def _agree(known: dict[Row, Tensor], fresh: dict[Row, Tensor]) -> bool:
    """Whether tracked costs equal fresh ones up to rounding."""
    pairs = ((x, known[row]) for row, x in fresh.items() if x.numel())
    return all(float((x - y).abs().max()) <= ROUNDING[x.dtype] * float(x.abs().max()) for x, y in pairs)
