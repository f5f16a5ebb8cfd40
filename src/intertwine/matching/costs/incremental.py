"""Cost matrices of all spaces, brought up to date when they are asked for.

The inner products of a space's slices depend on where the units of its neighbours are. Where tensors join two spaces,
their products remember the order of the neighbour for which they were made. Asked again, they change by
``A[ch]ᵀ (B[new] - B[old])`` along the units that moved since: a matrix of low rank, gathered from weights that stay
where they are. Spaces whose neighbours did not move since they were last solved are clean and are not solved again.
"""

from copy import copy
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ...groups import Element, Representation
from ...symmetry.action import transform, transform_block
from ...symmetry.spaces import Space
from ...symmetry.transformation import Transformation, identity
from ..coordinates.problem import Problem
from .nearest import LARGE, Units, certified
from .weight_blocks import Joint, Member, Row, add_to

_AGREE = {torch.float32: 1e-5, torch.float64: 1e-12}  # tracked and fresh costs, relative to the largest


class Costs:
    """The inner products of all units of ``a`` with all units of the moved ``b``, which starts at ``g``.

    Attributes:
        still: The identity; steps that keep its elements are known to leave those spaces where they are.
        g: How ``b`` was moved so far.
        value: The objective: computed at the start and by ``refresh``, and raised by the gain of every move between.
        dirty: Spaces whose costs changed since they were solved.
        fresh: Whether nothing moved since everything was computed from scratch.
    """

    def __init__(self, problem: Problem, g: Transformation) -> None:
        self.problem, self.g = problem, g
        self.still = identity(problem.sym)
        self.dirty = {s.name for s in problem.sym.spaces}
        # spaces on which the costs of each depend: itself too where it occurs twice in a block
        self._near: dict[str, set[str]] = {}
        for space, some in problem.members.items():
            others = (m.block.spaces[: m.dim] + m.block.spaces[m.dim + 1 :] for m in some)
            self._near[space] = {s for spaces in others for s in spaces if s is not None}
        self._now: dict[str, dict[Row, Tensor]] = {}
        self._present: dict[str, Tensor] = {}
        self._products: dict[Member, _Product] = {}
        # of units that no neighbour moves, and with all joints of a space; units of b where they were
        self._totals: dict[str, dict[Row, Tensor]] = {}
        self._seen: dict[tuple[Joint, int], Element] = {}  # the neighbour for which a joint was multiplied
        self.value, self.fresh = problem.objective(g), True

    def settled(self, space: Space) -> bool:
        """Whether sketches certify that the best step of a large space is none; else its costs have to be computed."""
        if space.size < LARGE or space.parents or space.group.mixes or space.name in self._totals:
            return False
        return certified(lambda: self._units(space.name), space.group.permutes)

    def _units(self, space: str) -> Units:
        """The units of both networks where they are now, with the parities of their signs, block by block."""
        for m in self.problem.members[space]:
            theirs = transform_block(m.block.read(self.problem.b[m.tensor]), m.block, self.g)
            yield m.row, m.read(self.problem.a), m.view(theirs)

    def of(self, space: str) -> dict[Row, Tensor]:
        """By parities of signs, the sum of inner products ``(p..., n, n)``: unit of ``a`` first, present one second."""
        if space not in self._now:
            self._now[space] = self._summed(space)
        return self._now[space]

    def present(self, name: str) -> Tensor:
        """A tensor of ``b`` as it was moved so far."""
        if name not in self._present:
            self._present[name] = transform(self.problem.b[name], self.problem.sym.layouts[name], self.g)
        return self._present[name]

    def refresh(self) -> None:
        """Compute everything from scratch; spaces whose costs were not what they were taken for become dirty."""
        for space in [*self._totals]:
            self._follow(space)
            tracked, self._totals[space] = self._totals[space], self._from_scratch(space)
            if not _agree(tracked, self._totals[space]):
                self.dirty.add(space)
        self._now.clear()
        self.value, self.fresh = self.problem.objective(self.g), True

    def moving(self, step: Transformation) -> list[str]:
        """Spaces that a step moves."""
        return [n for n, e in step.elements.items() if e is not self.still[n] and not e.is_identity(0.0)]

    def gain(self, step: Transformation) -> float:
        """By how much the objective would rise.

        Where one space moves and occurs once in each of its blocks, its costs say it; otherwise the tensors are moved.
        """
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
        """Move the units of ``b`` by ``step``, after ``g``; ``gain`` is what that adds to the objective."""
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
        """What ``restore`` needs to come back here."""
        totals = {space: {row: x.clone() for row, x in of.items()} for space, of in self._totals.items()}
        kept = ("g", "value", "fresh", "dirty", "_now", "_present", "_seen")
        return {"_totals": totals, **{name: copy(getattr(self, name)) for name in kept}}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go back to where ``saved`` was called; what was saved is used up."""
        vars(self).update(saved)

    def _summed(self, space: str) -> dict[Row, Tensor]:
        """Costs as they are now, from what changed."""
        self._follow(space)
        found = {row: _placed(x, self.g[space], row) for row, x in self._totals[space].items()}
        for m in self.problem.parts.members[space]:
            if m not in self._products:
                self._products[m] = _Product(m, self.problem)
            add_to(found, m.row, self._products[m].product(self.g))
        return found

    def _follow(self, space: str) -> None:
        """Bring the products of a space's joints up to date with its neighbours."""
        if space not in self._totals:
            self._totals[space] = self._from_scratch(space)
        for joint, side in self.problem.parts.at[space]:
            known, here = self._seen[joint, side], self.g[joint.spaces[1 - side]]
            if known is not here:
                _update(self._totals[space][joint.rows[side]], joint, side, known, here)
                self._seen[joint, side] = here

    def _from_scratch(self, space: str) -> dict[Row, Tensor]:
        """The products of a space in all blocks of one or two spaces, computed anew; its units of b where they were."""
        totals: dict[Row, Tensor] = {}
        for row, a, b in self.problem.parts.alone[space]:
            add_to(totals, row, a @ b.mT)
        for joint, side in self.problem.parts.at[space]:
            neighbour = self.g[joint.spaces[1 - side]]
            add_to(totals, joint.rows[side], _product(joint.a, _gathered(joint, side, neighbour), side))
            self._seen[joint, side] = neighbour
        return totals


class Streamed(Costs):
    """Costs of one space at a time, always from scratch, for networks whose tensors are read one by one."""

    def of(self, space: str) -> dict[Row, Tensor]:
        """As in ``Costs``; only those of the space that was asked for last are kept."""
        if space not in self._now:
            found: dict[Row, Tensor] = {}
            for name, some in groupby(self.problem.members[space], key=lambda m: m.tensor):
                ours, theirs = self.problem.a[name], self.present(name)
                for m in some:
                    add_to(found, m.row, m.view(m.block.read(ours)) @ m.view(m.block.read(theirs)).mT)
                del ours, theirs  # before the next ones are read
            self._now = {space: found}
        return self._now[space]

    def present(self, name: str) -> Tensor:
        """A tensor of ``b`` as it was moved so far, read anew."""
        return transform(self.problem.b[name], self.problem.sym.layouts[name], self.g)


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
            self._value = m.read(self._problem.a) @ m.view(b).mT
            self._known = here
        return _placed(self._value, e, m.row) if self._own else self._value


def _update(total: Tensor, joint: Joint, side: int, old: Element, new: Element) -> None:
    """Add what changes in the products of one side when the units of the other one move."""
    one, signs = torch.ones(()), Representation(sign=joint.rows[1 - side])  # how the neighbour's units are flipped
    before, after = (one if (d := e.diagonal(signs)) is None else d for e in (old, new))
    moved = (old.permutation != new.permutation) | (before != after)
    changed = moved.nonzero().flatten()
    if not len(changed):
        return
    if 2 * len(changed) > len(moved):  # gathering both networks costs more than multiplying by zeros
        total.add_(_product(joint.a, _gathered(joint, side, new) - _gathered(joint, side, old), side))
        return
    change = _gathered(joint, side, new, changed) - _gathered(joint, side, old, changed)
    total.add_(_product(_units(joint.a, 1 - side, changed), change, side))


def _gathered(joint: Joint, side: int, neighbour: Element, chosen: Tensor | None = None) -> Tensor:
    """The block of ``b`` with the neighbour's units in their places, or some of these."""
    index, sign = neighbour.permutation, neighbour.diagonal(Representation(sign=joint.rows[1 - side]))
    if chosen is not None:
        index, sign = index[chosen], None if sign is None else sign[chosen]
    x = _units(joint.b, 1 - side, index)
    return x if sign is None else x * (sign.to(x)[:, None, None] if side else sign.to(x))


def _units(x: Tensor, side: int, index: Tensor) -> Tensor:
    """Some units of a block, in that order."""
    index = index.to(x.device)
    if side == 0:
        return x.index_select(0, index)
    return x.gather(2, index.expand(*x.shape[:2], -1))  # many times faster than index_select on the last dimension


def _product(a: Tensor, b: Tensor, side: int) -> Tensor:
    """Inner products of the units of one side of two blocks, ``(n, n)``."""
    if side == 0:
        return a.reshape(len(a), -1) @ b.reshape(len(b), -1).mT
    return a.reshape(-1, a.shape[2]).mT @ b.reshape(-1, b.shape[2])


def _placed(product: Tensor, e: Element, row: Row) -> Tensor:
    """Inner products with the units of ``b`` where they were, once these are moved by ``e``."""
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
    """Whether tracked costs are the fresh ones up to rounding."""
    for row, x in fresh.items():
        if row not in known:
            return False
        if x is known[row] or not x.numel():
            continue
        if not float((x - known[row]).abs().max()) <= _AGREE[x.dtype] * float(x.abs().max()):
            return False
    return True
