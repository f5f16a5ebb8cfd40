"""Cost matrices of all spaces, brought up to date when they are asked for.

The inner products of a space's slices depend on where the units of its neighbours are. Where a tensor joins two spaces,
its products remember the order of the neighbour for which they were made. Asked again, they change by
``A[ch]ᵀ (B[new] - B[old])`` along the units that moved since: a matrix of low rank, gathered from weights that stay
where they are. Spaces whose neighbours did not move since they were last solved are clean and are not solved again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..symmetry.action import transform, transform_block
from ..symmetry.element import Element, compose, reindex
from ..symmetry.spaces import Space
from ..symmetry.transformation import Transformation, identity
from .problem import Member, Problem, inner

__all__ = ["Costs"]

Row = tuple[int, ...]


class Costs:
    """The inner products of all units of ``a`` with all units of the moved ``b``.

    Args:
        problem: Tensors and spaces.
        g: Where ``b`` starts.

    Attributes:
        problem: The same.
        still: The identity; steps that keep its elements are known to leave those spaces where they are.
        g: How ``b`` was moved so far.
        value: The objective: computed at the start and by ``refresh``, and raised by the gain of every move between.
        dirty: Spaces whose costs changed since ``clean`` was called for them.
    """

    def __init__(self, problem: Problem, g: Transformation) -> None:
        self.problem, self.g = problem, g
        self.still = identity(problem.sym)
        self.dirty = {s.name for s in problem.sym.spaces}
        self._near = {s.name: _neighbours(s, problem.members[s.name]) for s in problem.sym.spaces}
        self._parts: dict[Member, _Joint | _Product] = {}
        self._totals: dict[tuple[str, Row], Tensor] = {}  # of all joints of a space, units of b where they were
        self._now: dict[str, dict[Row, Tensor]] = {}
        self._present: dict[str, Tensor] = {}
        self.value = self.objective()

    def of(self, space: str) -> dict[Row, Tensor]:
        """By parities of signs, the sum of inner products ``(p..., n, n)``: unit of ``a`` first, present one second."""
        if space not in self._now:
            self._now[space] = self._summed(space, self.problem.members[space])
        return self._now[space]

    def restricted(self, members: Iterable[Member]) -> dict[Row, Tensor]:
        """The same for some members of one space, computed from scratch."""
        found: dict[Row, Tensor] = {}
        for m in members:
            a = m.view(m.block.read(self.problem.a[m.tensor]))
            _add(found, m.row, a @ m.view(m.block.read(self.present(m.tensor))).mT)
        return found

    def present(self, name: str) -> Tensor:
        """A tensor of ``b`` as it was moved so far."""
        if name not in self._present:
            self._present[name] = transform(self.problem.b[name], self.problem.sym.layouts[name], self.g)
        return self._present[name]

    def clean(self, space: str) -> None:
        """Say that a space is solved."""
        self.dirty.discard(space)

    def refresh(self) -> None:
        """Compute everything from scratch when it is next asked for, and mark every space as dirty."""
        self.forget()
        self.value = self.objective()
        self.dirty = {s.name for s in self.problem.sym.spaces}

    def forget(self) -> None:
        """Forget all inner products, so that they are computed from scratch."""
        for part in self._parts.values():
            part.forget()
        for total in self._totals.values():
            total.zero_()
        self._now.clear()

    def objective(self) -> float:
        """``Σ <a, g b>``, summed in float64."""
        return self.problem.objective(self.g)

    def moving(self, step: Transformation) -> list[str]:
        """Spaces that a step moves."""
        return [n for n, e in step.elements.items() if e is not self.still[n] and _moves(e)]

    def gain(self, step: Transformation) -> float:
        """By how much the objective would rise.

        Where one space moves and occurs once in each of its blocks, its costs say it; otherwise the tensors are moved.
        """
        active = self.moving(step)
        if len(active) == 1 and active[0] not in self._near[active[0]]:
            return self._linear_gain(active[0], step[active[0]])
        names = sorted({m.tensor for name in active for m in self.problem.members[name]})
        left = {name: self.problem.a[name] for name in names}
        here = {name: self.present(name) for name in names}
        near = {name: transform(x, self.problem.sym.layouts[name], step) for name, x in here.items()}
        return inner(left, near) - inner(left, here)

    def move(self, step: Transformation, gain: float) -> None:
        """Move the units of ``b`` by ``step``, after ``g``; ``gain`` is what that adds to the objective."""
        self.value += gain
        active = set(self.moving(step))
        active |= {s.name for s in self.problem.sym.spaces if active & set(s.parents)}
        new = {name: compose(step[name], reindex(self.g[name], step.elements)) for name in active}
        self.g = Transformation({**self.g.elements, **new})
        for space, near in self._near.items():
            if near & active:
                self.dirty.add(space)
            if space in active or near & active:
                self._now.pop(space, None)
        for name in {m.tensor for space in active for m in self.problem.members[space]}:
            self._present.pop(name, None)

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

    def _summed(self, space: str, members: Iterable[Member]) -> dict[Row, Tensor]:
        found: dict[Row, Tensor] = {}
        rows = set()
        for m in members:
            part = self._part(m)
            if isinstance(part, _Joint):
                n = m.block.shape[m.dim]
                total = self._totals.setdefault((space, m.row), part.b.new_zeros(n, n))
                part.bring(total, self.g)
                rows.add(m.row)
            else:
                _add(found, m.row, part.product(self.g))
        for row in sorted(rows):
            _add(found, row, _placed(self._totals[space, row], self.g[space], row))
        return found

    def _part(self, m: Member) -> _Joint | _Product:
        if m not in self._parts:
            kind = _Joint if _joins(m, self.problem) else _Product
            self._parts[m] = kind(m, self.problem)
        return self._parts[m]


class _Joint:
    """Slices of a tensor that joins a space with one neighbour (or none), and the order for which they were multiplied.

    Attributes:
        a: ``(t, k, n)``: units of the neighbour, everything that is fixed, units of the space.
        b: The same of the network that moves, before it does.
    """

    def __init__(self, member: Member, problem: Problem) -> None:
        others = [d for d, s in enumerate(member.block.spaces) if s is not None and d != member.dim]
        fixed = [d for d, s in enumerate(member.block.spaces) if s is None]
        self.neighbour = member.block.spaces[others[0]] if others else None
        leaf = member.block.leaves[others[0]] if others else None
        self._parities = tuple(e % 2 for e in getattr(leaf, "sign", ()))
        first = member.block.shape[others[0]] if others else 1
        last = member.block.shape[member.dim]
        self.a, self.b = (
            member.block.read(state[member.tensor])
            .permute([*others, *fixed, member.dim])
            .reshape(first, -1, last)
            .contiguous()
            for state in (problem.a, problem.b)
        )
        self._known: tuple[Tensor, Tensor] | None = None

    def bring(self, total: Tensor, g: Transformation) -> None:
        """Add to ``total`` what is new in the products since they were last brought up to date."""
        if self._known is not None and self.neighbour is None:
            return
        order, sign = self._order(g)
        if self._known is None:
            total.addmm_(_flat(self.a).mT, _flat(self._gathered(order, sign)))
        else:
            old, flipped = self._known
            changed = ((order != old) | (sign != flipped)).nonzero().flatten()
            if not len(changed):
                return
            change = self._gathered(order[changed], sign[changed]) - self._gathered(old[changed], flipped[changed])
            total.addmm_(_flat(self.a.index_select(0, changed.to(self.a.device))).mT, _flat(change))
        self._known = order, sign

    def forget(self) -> None:
        """Start from nothing."""
        self._known = None

    def _order(self, g: Transformation) -> tuple[Tensor, Tensor]:
        """Which unit of the neighbour is where, and its sign on this tensor."""
        if self.neighbour is None:
            return torch.zeros(1, dtype=torch.int64), torch.ones(1)
        e = g[self.neighbour]
        sign = torch.ones(len(e.permutation), dtype=torch.float64)
        for parity, s in zip(self._parities, e.signs):
            sign = sign * s if parity else sign
        return e.permutation, sign

    def _gathered(self, order: Tensor, sign: Tensor) -> Tensor:
        x = self.b.index_select(0, order.to(self.b.device))
        return x * sign.to(x)[:, None, None] if bool((sign < 0).any()) else x


class _Product:
    """Inner products of one member of any kind, kept until a space that they depend on moves."""

    def __init__(self, member: Member, problem: Problem) -> None:
        self._member, self._problem = member, problem
        spaces = {s for s in member.block.spaces if s is not None}
        holds = any(member.space in s.parents for s in problem.sym.spaces if s.name in spaces)
        self._own = member.block.spaces.count(member.space) == 1 and not holds  # own moves can be put in afterwards
        self._depends = sorted(spaces - {member.space} if self._own else spaces)
        self._still = identity(problem.sym)[member.space]
        self._known: list[Element] = []
        self._value: Tensor | None = None

    def product(self, g: Transformation) -> Tensor:
        """The products ``(p..., n, n)`` with the units of ``b`` where they are now."""
        m, e = self._member, g[self._member.space]
        here = [g[name] for name in self._depends]
        if self._value is None or any(x is not y for x, y in zip(here, self._known)):
            rest = Transformation({**g.elements, m.space: self._still}) if self._own else g
            b = transform_block(m.block.read(self._problem.b[m.tensor]), m.block, rest)
            self._value = m.view(m.block.read(self._problem.a[m.tensor])) @ m.view(b).mT
            self._known = here
        return _placed(self._value, e, m.row) if self._own else self._value

    def forget(self) -> None:
        """Start from nothing."""
        self._value = None


def _joins(m: Member, problem: Problem) -> bool:
    """Whether a member has at most one neighbour, once, and neither depends on other spaces or mixes the neighbour."""
    spaces = [s for s in m.block.spaces if s is not None]
    kinds = {s.name: s for s in problem.sym.spaces}
    if len(spaces) > 2 or len(set(spaces)) < len(spaces) or any(kinds[s].parents for s in spaces):
        return False
    return all(s == m.space or kinds[s].linear == "none" for s in spaces)


def _neighbours(space: Space, members: Iterable[Member]) -> set[str]:
    """Spaces on which the costs of a space depend: itself too where it occurs twice in a block."""
    near = {s for m in members for s in m.block.spaces if s is not None and s != space.name}
    return near | {space.name for m in members if m.block.spaces.count(space.name) > 1}


def _placed(product: Tensor, e: Element, row: Row) -> Tensor:
    """Inner products with the units of ``b`` where they were, once these are moved by ``e``."""
    if e.linear is not None:
        return product @ e.linear.to(product).mT
    index = e.permutation.to(product.device)
    if index.ndim == 1:
        product = product.index_select(-1, index)
    else:
        product = product.gather(-1, index[..., None, :].expand_as(product))
    for parity, sign in zip(row, e.signs):
        if parity:
            product = product * sign.to(product)[..., None, :]
    return product


def _add(found: dict[Row, Tensor], row: Row, product: Tensor) -> None:
    found[row] = found[row] + product if row in found else product


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _moves(e: Element) -> bool:
    """Whether an element moves, flips or mixes units."""
    if e.linear is not None:
        return True
    return bool((e.permutation != torch.arange(e.permutation.shape[-1])).any()) or bool((e.signs < 0).any())
