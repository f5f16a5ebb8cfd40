"""Which unit of one network is which unit of another: assignments, space by space, until nothing changes.

Slices of units are compared as vectors. Dimensions whose own units are matched already (or are fixed) keep their
order; along the others values are sorted by size, which no permutation or sign of those units alters. So the first
pass needs no starting point, and later passes compare slices entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.blocks import Block, align, blocks, map_leaves
from ..symmetry.element import parent_dims
from ..symmetry.gauge.signs import independent, solve_signs
from ..symmetry.spaces import Leaf, Space
from ..symmetry.transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry

__all__ = ["distance", "match", "monomial", "regrouped"]

_SWEEPS = 20
_MOST_GROUPS = 16  # that are tried at each other's places
_MAX_SIGNS = 4  # up to so many sign generators are tried in all combinations


@dataclass(frozen=True)
class _Member:
    """One block dimension that carries the space under work."""

    name: str
    block: Block
    dim: int
    leaf: Leaf

    def dims(self, space: Space) -> list[int]:
        """The dimensions of the space's parents, then its own."""
        return parent_dims(space, self.dim, self.block.spaces)


@dataclass(frozen=True)
class _Compared:
    """One block's part of the cost: new units along the last dimension but one, old units along the last.

    ``row`` holds the parities of the block's sign; all zero where values are sorted by size, which hides signs.
    """

    squares: Tensor
    inner: Tensor
    row: tuple[int, ...]

    def cost(self, signs: tuple[int, ...]) -> Tensor:
        flip = 1
        for parity, sign in zip(self.row, signs):
            flip *= sign if parity else 1
        return self.squares - 2 * flip * self.inner


def monomial(sym: Symmetry) -> Symmetry:
    """The symmetry that is left in normal bases: linear spaces keep permutations and one sign per unit."""
    linear = {s.name for s in sym.spaces if s.linear != "none"}

    def space(s: Space) -> Space:
        basis = {"permutable": True, "signs": 1, "linear": "none"} if s.name in linear else {}
        return replace(s, scales=0, **basis)  # type: ignore[arg-type]

    def leaf(old: Leaf) -> Leaf:
        return replace(old, scale=(), sign=(1,) if old.space in linear else old.sign, variance=0)

    layouts = {name: map_leaves(layout, leaf) for name, layout in sym.layouts.items()}
    return replace(sym, spaces=tuple(space(s) for s in sym.spaces), layouts=layouts)


def match(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    start: Transformation | None = None,
    known: frozenset[str] = frozenset(),
    votes: Mapping[str, float] | None = None,
) -> Transformation:
    """Permutations and signs ``g`` that bring the weights ``a`` close to ``b``.

    Args:
        sym: A symmetry without scales and matrices (``monomial``).
        a: Tensors to move, in normal form.
        b: Tensors to meet, in normal form.
        start: Where to start; without it, sorted values take the place of the units that are not matched yet.
        known: Spaces that the start matches, if it does not match all.
        votes: How much each tensor says; all alike by default.

    Returns:
        The element; a local optimum, and the exact answer for copies with distinct units.
    """
    g = identity(sym) if start is None else start
    resolved = set(known) if start is None or known else {s.name for s in sym.spaces}
    weights = _norm_weights(sym, b, votes)
    members = {s.name: _members(sym, s) for s in sym.spaces}
    children = {s.name: {c.name for c in sym.spaces if s.name in c.parents} for s in sym.spaces}
    for sweep in range(_SWEEPS):
        before = g
        waiting = [s for s in sym.spaces if sweep or s.name not in known]
        while waiting:
            space = max(
                (s for s in waiting if not any(w.name in s.parents for w in waiting)),
                key=lambda s: _comparable_share(members[s.name], s, resolved - children[s.name]),
            )
            waiting.remove(space)
            if sweep and children[space.name] and space.permutable and 1 < space.size <= _MOST_GROUPS:
                g = regrouped(sym, space, g, a, b, votes)
                continue
            old = g[space.name].permutation
            known_now = resolved - children[space.name] - {space.name}
            g = _match_space(sym, space, members[space.name], g, a, b, known_now, weights)
            resolved.add(space.name)
            if not torch.equal(old, g[space.name].permutation):  # elements inside moved units are stale
                g = g.restrict(spaces=set(g.spaces) - children[space.name])
                resolved -= children[space.name]
        if g.allclose(before, 0.0):
            break
    return g


def regrouped(
    sym: Symmetry,
    outer: Space,
    g: Transformation,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    votes: Mapping[str, float] | None = None,
) -> Transformation:
    """``g`` with groups or heads matched together with what lies inside them.

    Every group of ``a`` is tried at every place, with the best order of its own units there; so a group is told by all
    of its weights, not by sorted values.

    Args:
        sym: A symmetry without scales and matrices.
        outer: A space that others lie inside.
        g: An element that matches the other spaces.
        a: Tensors to move.
        b: Tensors to meet.
        votes: How much each tensor says; all alike by default.

    Returns:
        The element with the best order of groups.
    """
    inside = [s for s in sym.spaces if outer.name in s.parents]
    resolved = {s.name for s in sym.spaces} - {s.name for s in inside}
    weights = _norm_weights(sym, b, votes)
    members = {s.name: _members(sym, s) for s in (outer, *inside)}
    names = {m.name for found in members.values() for m in found}
    still = g[outer.name].permutation
    n, places = outer.size, torch.arange(outer.size)
    carried = torch.empty_like(g[outer.name].signs).scatter(
        -1, still.expand_as(g[outer.name].signs), g[outer.name].signs
    )
    costs = torch.zeros(*still.shape, n, dtype=torch.float64)
    tried = []
    for shift in range(n):
        order = (places + shift) % n
        trial = g.restrict(spaces=set(g.spaces) - {s.name for s in inside})
        trial = with_parts(trial, outer.name, permutation=order.expand_as(still).clone(), signs=carried[..., order])
        known = set(resolved)
        for space in sorted(inside, key=lambda s: len(s.parents)):
            trial = _match_space(sym, space, members[space.name], trial, a, b, known, weights)
            known.add(space.name)
        tried.append(trial)
        near = {**a, **moved(sym, trial, a, names)}
        for m in members[outer.name]:
            x, y = (_features(m.block.read(t[m.name]), m.block, m.dims(outer), None) for t in (near, b))
            costs[..., places, order] += weights[m.name] * (x - y).square().sum(-1)
    order = _assign(costs, still.shape, permutable=True)
    best = with_parts(tried[0], outer.name, permutation=order, signs=carried.gather(-1, order.expand_as(carried)))
    shifts = (order - places) % n
    for space in inside:
        dims = [*(space.parents.index(p) for p in outer.parents), space.parents.index(outer.name)]
        parts = [one[space.name] for one in tried]
        permutation, signs = (torch.stack(some) for some in ([e.permutation for e in parts], [e.signs for e in parts]))
        which = align(shifts, dims, permutation.ndim - 1)
        permutation = permutation.gather(0, which.expand(1, *permutation.shape[1:]))[0]
        signs = signs.gather(0, which.expand(1, *signs.shape[1:]))[0]
        best = with_parts(best, space.name, permutation=permutation, signs=signs)
    return best


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Root mean square sine of the angle between tensors of one name, each tensor weighted by its size.

    A tensor's ``sin^2`` is the share of ``b`` that no positive multiple of ``a`` explains: 0 for equal directions, 1
    for orthogonal or opposite ones.
    """
    total = unexplained = 0.0
    for name, right in b.items():
        norms = float(a[name].norm() * right.norm())
        sine = 0.0 if torch.equal(a[name], right) else 1.0
        if norms > 0:
            unit = right / right.norm()
            inner = (a[name] * unit).sum().clamp_min(0)
            sine = float((a[name] - inner * unit).norm() / a[name].norm()) if inner > 0 else 1.0
        total += right.numel()
        unexplained += right.numel() * sine**2
    return (unexplained / total) ** 0.5 if total else 0.0


def _match_space(
    sym: Symmetry,
    space: Space,
    members: list[_Member],
    g: Transformation,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    resolved: set[str],
    weights: Mapping[str, float],
) -> Transformation:
    """Replace the part of ``g`` on one space by the best assignment, given the spaces that are resolved."""
    if not members or (not space.permutable and not space.signs):
        return g
    fresh = g.restrict(spaces=set(g.spaces) - {space.name})
    here = {name: t for name, t in a.items() if name in {m.name for m in members}}
    here = {**here, **moved(sym, fresh, here, list(here))}
    compared = [_compared(m, space, here, b, resolved, weights) for m in members]
    if space.signs <= _MAX_SIGNS:
        order, signs = _joint(space, compared, g[space.name].permutation.shape)
    else:
        order, signs = _separate(space, compared, g[space.name].permutation.shape)
    return with_parts(g, space.name, permutation=order, signs=signs)


def _compared(
    m: _Member,
    space: Space,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    resolved: set[str],
    weights: Mapping[str, float],
) -> _Compared:
    """Every slice of ``b`` against every slice of ``a`` in one block."""
    dims = m.dims(space)
    left = _features(m.block.read(a[m.name]), m.block, dims, resolved)
    right = _features(m.block.read(b[m.name]), m.block, dims, resolved)
    squares = right.square().sum(-1)[..., :, None] + left.square().sum(-1)[..., None, :]
    in_order = all(s is None or s in resolved or d in dims for d, s in enumerate(m.block.spaces))
    row = tuple(e % 2 for e in m.leaf.sign) if in_order and m.leaf.sign else (0,) * space.signs
    return _Compared(weights[m.name] * squares, weights[m.name] * (right @ left.mT), row)


def _joint(space: Space, compared: list[_Compared], shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The assignment with all combinations of signs tried for every pair of units."""
    choices = list(product((1, -1), repeat=space.signs))
    costs = torch.stack([sum((c.cost(signs) for c in compared), start=torch.zeros(())) for signs in choices])
    best, which = costs.min(0)
    order = _assign(best, shape, space.permutable)
    chosen = which.gather(-1, order[..., None])[..., 0]
    table = torch.tensor(choices, dtype=torch.float64).reshape(len(choices), space.signs)
    return order, table[chosen].movedim(-1, 0).contiguous()


def _separate(space: Space, compared: list[_Compared], shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The assignment as if every slice had a sign of its own; then signs, from the slices that say most first."""
    cost = sum((c.squares - 2 * (c.inner.abs() if any(c.row) else c.inner) for c in compared), start=torch.zeros(()))
    order = _assign(cost, shape, space.permutable)
    said = [(c.row, c.inner.gather(-1, order[..., None])[..., 0]) for c in compared if any(c.row)]
    rows: list[tuple[int, ...]] = []
    bits: list[Tensor] = []
    for row, inner in sorted(said, key=lambda s: -float(s[1].abs().sum())):
        if len(rows) < space.signs and independent([*rows, row]):
            rows.append(row)
            bits.append(inner < 0)
    return order, solve_signs(rows, bits, space.signs, shape)


def _comparable_share(members: list[_Member], space: Space, resolved: set[str]) -> float:
    """Share of a space's slices whose other dimensions are all in a known order."""
    known = resolved | {space.name, *space.parents}
    return sum(all(s is None or s in known for s in m.block.spaces) for m in members) / max(len(members), 1)


def _features(x: Tensor, block: Block, dims: list[int], resolved: set[str] | None) -> Tensor:
    """Slices of units as vectors ``(p..., n, F)``: open dimensions sorted by size, the others in order.

    ``resolved`` names the spaces whose units are in order; ``None`` says that all are.
    """
    in_order = [s is None or resolved is None or s in resolved for s in block.spaces]
    known = [d for d, ordered in enumerate(in_order) if d not in dims and ordered]
    unknown = [d for d in range(x.ndim) if d not in dims and d not in known]
    x = x.permute([*dims, *known, *unknown])
    x = x.reshape(*x.shape[: len(dims) + len(known)], -1)
    if unknown:
        x = x.abs().sort(-1).values
    return x.reshape(*x.shape[: len(dims)], -1)


def _assign(cost: Tensor, shape: torch.Size, permutable: bool) -> Tensor:
    """For each new place the old unit ``(p..., n)``, one assignment for each unit of the parents."""
    if not permutable:
        return torch.arange(shape[-1]).expand(shape).clone()
    flat = cost.reshape(-1, *cost.shape[-2:])
    return torch.stack([torch.from_numpy(linear_sum_assignment(c.numpy())[1]) for c in flat]).reshape(shape)


def _members(sym: Symmetry, space: Space) -> list[_Member]:
    return [
        _Member(name, block, dim, leaf)
        for name, layout in sym.layouts.items()
        for block in blocks(layout)
        for dim, leaf in enumerate(block.leaves)
        if isinstance(leaf, Leaf) and leaf.space == space.name
    ]


def _norm_weights(sym: Symmetry, state: Mapping[str, Tensor], votes: Mapping[str, float] | None) -> dict[str, float]:
    """Entries over squared norm of each tensor, as in ``distance``: every weight has one vote, or as many as given."""
    squares = {name: float(state[name].square().mean()) for name in sym.layouts}
    return {name: (1.0 if votes is None else votes[name]) * (1.0 / s if s > 0 else 1.0) for name, s in squares.items()}
