"""Cost matrices of all spaces, kept up to date as units move.

The inner products of a space's slices depend on where the units of its neighbours are. When a few of those move, only
the entries along them change: the cost changes by ``A[ch] (B_new - B_old)[ch]^T``, a matrix of low rank. Spaces whose
neighbours did not move since they were last solved are clean and are not solved again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..symmetry.action import moved, transform
from ..symmetry.element import Element
from ..symmetry.spaces import Space
from ..symmetry.transformation import Transformation
from .problem import Member, Problem, inner

__all__ = ["Costs", "summed"]


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
        self._products: dict[Member, Tensor] = {}
        self.value = self.objective()

    def of(self, space: str) -> dict[tuple[int, ...], Tensor]:
        """By parities of signs, the sum of inner products ``(p..., n, n)``: unit of ``a`` first, present one second."""
        return self.restricted(self.problem.members[space])

    def restricted(self, members: Iterable[Member]) -> dict[tuple[int, ...], Tensor]:
        """The same for some of a space's members."""
        return summed({m: self._product(m) for m in members})

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
        active = {name for name, e in step.elements.items() if len(_changed(e))}
        for name in self._touched(step):
            old = self.b[name]
            self.b[name] = transform(old, self.problem.sym.layouts[name], step)
            for space in self.problem.sym.spaces:
                for member in self.problem.members[space.name]:
                    if member.tensor == name:
                        self._update(member, space, old, self.b[name], step, active)
        self.g = step @ self.g

    def _touched(self, step: Transformation) -> list[str]:
        active = [name for name, e in step.elements.items() if len(_changed(e))]
        return sorted({m.tensor for name in active for m in self.problem.members[name]})

    def _product(self, member: Member) -> Tensor:
        if member not in self._products:
            self._products[member] = _inner(member, self.problem.a[member.tensor], self.b[member.tensor])
        return self._products[member]

    def _update(
        self, member: Member, space: Space, old: Tensor, new: Tensor, step: Transformation, active: set[str]
    ) -> None:
        """Bring one member's inner products up to date after its tensor moved."""
        here = active & set(member.block.spaces)
        if not here:
            return
        own = space.name in here
        others = here - {space.name}
        if others:
            self.dirty.add(space.name)
        if member not in self._products:
            return
        if not others and _alone(member, space) and step[space.name].linear is None:
            self._products[member] = _reordered(self._products[member], step[space.name], member.row)
            return
        if own or len(others) > 1:
            del self._products[member]
            return
        (name,) = others
        index = _changed(step[name])
        dims = [d for d, s in enumerate(member.block.spaces) if s == name]
        if len(dims) > 1 or 2 * len(index) > member.block.shape[dims[0]]:
            del self._products[member]
            return
        self._add(member, old, new, dims[0], index)

    def _add(self, member: Member, old: Tensor, new: Tensor, dim: int, index: Tensor) -> None:
        """Add the change of the inner products that comes from the units ``index`` along one dimension."""
        index = index.to(new.device)
        a = member.block.read(self.problem.a[member.tensor]).index_select(dim, index)
        change = member.block.read(new).index_select(dim, index) - member.block.read(old).index_select(dim, index)
        product = member.view(a) @ member.view(change).mT
        if dim in member.dims[:-1]:
            self._products[member].index_add_(member.dims.index(dim), index, product)
        else:
            self._products[member] += product


def summed(products: Mapping[Member, Tensor]) -> dict[tuple[int, ...], Tensor]:
    """The inner products of several members, summed by parities of signs."""
    found: dict[tuple[int, ...], Tensor] = {}
    for member, product in products.items():
        found[member.row] = found[member.row] + product if member.row in found else product
    return found


def _inner(member: Member, a: Tensor, b: Tensor) -> Tensor:
    return member.view(member.block.read(a)) @ member.view(member.block.read(b)).mT


def _alone(member: Member, space: Space) -> bool:
    return member.block.spaces.count(space.name) == 1


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
