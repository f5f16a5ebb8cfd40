"""Cost matrices of all spaces, kept up to date as units move.

The inner products of a space's slices depend on where the units of its neighbours are. When a few of those move, only
the entries along them change: the cost changes by ``A[ch] (B_new - B_old)[ch]^T``, a matrix of low rank. Spaces whose
neighbours did not move since they were last solved are clean and are not solved again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..symmetry.action import moved, transform
from ..symmetry.element import Element
from ..symmetry.spaces import Space
from ..symmetry.transformation import Transformation
from .problem import Member, Problem, inner

__all__ = ["Costs"]

Group = tuple[Member, ...]


class Costs:
    """The inner products of all units of ``a`` with all units of the moved ``b``.

    Args:
        problem: Tensors and spaces.
        g: Where ``b`` starts.

    Attributes:
        problem: The same.
        g: How ``b`` was moved so far.
        b: The moved tensors.
        value: The objective: computed at the start and by ``refresh``, and raised by the gain of every move between.
        dirty: Spaces whose costs changed since ``clean`` was called for them.
    """

    def __init__(self, problem: Problem, g: Transformation) -> None:
        self.problem, self.g = problem, g
        self.value = 0.0
        self.b: dict[str, Tensor] = {**problem.b, **moved(problem.sym, g, problem.b)}
        self.dirty = {s.name for s in problem.sym.spaces}
        self._groups = {s.name: _groups(s, problem.members[s.name]) for s in problem.sym.spaces}
        self._products: dict[Group, Tensor] = {}
        self.value = self.objective()

    def of(self, space: str) -> dict[tuple[int, ...], Tensor]:
        """By parities of signs, the sum of inner products ``(p..., n, n)``: unit of ``a`` first, present one second."""
        return self.restricted(self.problem.members[space])

    def restricted(self, members: Iterable[Member]) -> dict[tuple[int, ...], Tensor]:
        """The same for some of a space's members."""
        chosen = set(members)
        found: dict[tuple[int, ...], Tensor] = {}
        for group in {g: None for m in chosen for g in self._groups[m.space] if chosen.issuperset(g)}:
            row, product = group[0].row, self._product(group)
            found[row] = found[row] + product if row in found else product
        return found

    def clean(self, space: str) -> None:
        """Say that a space is solved."""
        self.dirty.discard(space)

    def refresh(self) -> None:
        """Compute everything from scratch when it is next asked for, and mark every space as dirty."""
        self.forget()
        self.b = {**self.problem.b, **moved(self.problem.sym, self.g, self.problem.b)}
        self.value = self.objective()
        self.dirty = {s.name for s in self.problem.sym.spaces}

    def forget(self) -> None:
        """Forget all costs, so that they are computed from scratch."""
        self._products.clear()

    def objective(self) -> float:
        """``Σ <a, g b>``, summed in float64."""
        return inner(self.problem.a, self.b)

    def gain(self, step: Transformation) -> float:
        """By how much the objective would rise.

        Where one space moves and occurs once in each of its blocks, its costs say it; otherwise the tensors are moved.
        """
        active = [name for name, e in step.elements.items() if len(_changed(e))]
        if len(active) == 1 and all(m.block.spaces.count(active[0]) == 1 for m in self.problem.members[active[0]]):
            return self._linear_gain(active[0], step[active[0]])
        names = self._touched(step)
        left = {name: self.problem.a[name] for name in names}
        near = {name: transform(self.b[name], self.problem.sym.layouts[name], step) for name in names}
        return inner(left, near) - inner(left, self.b)

    def _linear_gain(self, space: str, e: Element) -> float:
        total = 0.0
        for row, cost in self.of(space).items():
            now = cost.diagonal(dim1=-2, dim2=-1)
            if e.linear is not None:
                total += float((e.linear.to(cost) * cost).sum(dtype=torch.float64) - now.sum(dtype=torch.float64))
                continue
            then = cost.gather(-1, e.permutation.to(cost.device)[..., None])[..., 0]
            for parity, sign in zip(row, e.signs):
                then = then * sign.to(then) if parity else then
            total += float((then.double() - now.double()).sum())
        return total

    def move(self, step: Transformation, gain: float) -> None:
        """Move the units of ``b`` by ``step``, after ``g``; ``gain`` is what that adds to the objective."""
        self.value += gain
        changed = {name: index for name, e in step.elements.items() if len(index := _changed(e))}
        old = {name: self.b[name] for name in self._touched(step)}
        self.b |= {name: transform(t, self.problem.sym.layouts[name], step) for name, t in old.items()}
        for space in self.problem.sym.spaces:
            for group in self._groups[space.name]:
                here = changed.keys() & {s for m in group for s in m.block.spaces}
                if here - {space.name}:
                    self.dirty.add(space.name)
                if here and group in self._products:
                    self._update(group, space, old, step, {name: changed[name] for name in here})
        self.g = step @ self.g

    def _touched(self, step: Transformation) -> list[str]:
        active = [name for name, e in step.elements.items() if len(_changed(e))]
        return sorted({m.tensor for name in active for m in self.problem.members[name]})

    def _product(self, group: Group) -> Tensor:
        if group not in self._products:
            left, right = (
                torch.cat([m.view(m.block.read(state[m.tensor])) for m in group], -1)
                for state in (self.problem.a, self.b)
            )
            self._products[group] = left @ right.mT
        return self._products[group]

    def _update(
        self, group: Group, space: Space, old: dict[str, Tensor], step: Transformation, changed: dict[str, Tensor]
    ) -> None:
        """Bring inner products up to date after some spaces of their blocks moved, or forget them."""
        member = group[0]
        if changed.keys() == {space.name}:
            if member.block.spaces.count(space.name) == 1 and step[space.name].linear is None:
                self._products[group] = _reordered(self._products[group], step[space.name], member.row)
                return
        elif len(group) == 1 and len(changed) == 1:
            ((name, index),) = changed.items()
            dims = [d for d, s in enumerate(member.block.spaces) if s == name]
            if len(dims) == 1 and 2 * len(index) <= member.block.shape[dims[0]]:
                self._add(member, old[member.tensor], self.b[member.tensor], dims[0], index)
                return
        del self._products[group]

    def _add(self, member: Member, old: Tensor, new: Tensor, dim: int, index: Tensor) -> None:
        """Add the change of the inner products that comes from the units ``index`` along one dimension."""
        index = index.to(new.device)
        a = member.block.read(self.problem.a[member.tensor]).index_select(dim, index)
        change = member.block.read(new).index_select(dim, index) - member.block.read(old).index_select(dim, index)
        product = member.view(a) @ member.view(change).mT
        if dim in member.dims[:-1]:
            self._products[(member,)].index_add_(member.dims.index(dim), index, product)
        else:
            self._products[(member,)] += product


def _groups(space: Space, members: Iterable[Member]) -> tuple[Group, ...]:
    """Members whose inner products are kept in one matrix.

    Vectors, and whatever else no other space moves, go together (by parities); every other member stays alone.
    """
    joined: dict[tuple[int, ...], list[Member]] = {}
    alone = []
    for m in members:
        known = {None, space.name, *space.parents}
        if known.issuperset(m.block.spaces) and m.block.spaces.count(space.name) == 1:
            joined.setdefault(m.row, []).append(m)
        else:
            alone.append((m,))
    return (*(tuple(group) for group in joined.values()), *alone)


def _reordered(product: Tensor, e: Element, row: tuple[int, ...]) -> Tensor:
    """Inner products after the units of ``b`` themselves changed places and signs."""
    index = e.permutation.to(product.device)
    product = product.gather(-1, index[..., None, :].expand_as(product))
    for parity, sign in zip(row, e.signs):
        if parity:
            product = product * sign.to(product.device, product.dtype)[..., None, :]
    return product


def _changed(e: Element) -> Tensor:
    """Units that a step moves, flips or mixes, under any parent."""
    if e.linear is not None:
        return torch.arange(e.permutation.shape[-1])
    there = (e.permutation != torch.arange(e.permutation.shape[-1])) | (e.signs < 0).any(0)
    return there.reshape(-1, there.shape[-1]).any(0).nonzero().flatten()
