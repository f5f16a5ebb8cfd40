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

from .action import moved
from .blocks import Block, blocks, map_leaves
from .element import parent_dims
from .spaces import Leaf, Space
from .transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from .symmetry import Symmetry

__all__ = ["distance", "match", "monomial"]

_SWEEPS = 20
_MAX_SIGNS = 6  # sign generators that are tried in all combinations


@dataclass(frozen=True)
class _Member:
    """One block dimension that carries the space under work."""

    name: str
    block: Block
    dim: int
    leaf: Leaf


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
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], start: Transformation | None = None
) -> Transformation:
    """Permutations and signs ``g`` that bring the weights ``a`` close to ``b``.

    Args:
        sym: A symmetry without scales and matrices (``monomial``).
        a: Tensors to move, in normal form.
        b: Tensors to meet, in normal form.
        start: Where to start; without it, sorted values take the place of the units that are not matched yet.

    Returns:
        The element; a local optimum, and the exact answer for copies with distinct units.
    """
    g = identity(sym) if start is None else start
    resolved = set() if start is None else {s.name for s in sym.spaces}
    weights = _norm_weights(sym, b)
    children = {s.name: {c.name for c in sym.spaces if s.name in c.parents} for s in sym.spaces}
    for _ in range(_SWEEPS):
        before, waiting = g, list(sym.spaces)
        while waiting:
            space = max(
                (s for s in waiting if not any(w.name in s.parents for w in waiting)),
                key=lambda s: _comparable_share(sym, s, resolved - children[s.name]),
            )
            waiting.remove(space)
            old = g[space.name].permutation
            g = _match_space(sym, space, g, a, b, resolved - children[space.name] - {space.name}, weights)
            resolved.add(space.name)
            if not torch.equal(old, g[space.name].permutation):  # elements inside moved units are stale
                g = g.restrict(spaces=set(g.spaces) - children[space.name])
                resolved -= children[space.name]
        if g.allclose(before, 0.0):
            break
    return g


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
    g: Transformation,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    resolved: set[str],
    weights: Mapping[str, float],
) -> Transformation:
    """Replace the part of ``g`` on one space by the best assignment, given the spaces that are resolved."""
    members = _members(sym, space)
    if not members or (not space.permutable and not space.signs):
        return g
    fresh = g.restrict(spaces=set(g.spaces) - {space.name})
    here = {name: t for name, t in a.items() if name in {m.name for m in members}}
    here = {**here, **moved(sym, fresh, here, list(here))}
    shape = g[space.name].permutation.shape
    choices = _sign_choices(space)
    costs = torch.zeros(len(choices), *shape, shape[-1], dtype=torch.float64)
    for m in members:
        dims = parent_dims(space, m.dim, m.block.spaces)
        left = _features(m.block.read(here[m.name]), m.block, dims, resolved)
        right = _features(m.block.read(b[m.name]), m.block, dims, resolved)
        squares = right.square().sum(-1)[..., :, None] + left.square().sum(-1)[..., None, :]
        inner = right @ left.mT
        comparable = all(s is None or s in resolved or d in dims for d, s in enumerate(m.block.spaces))
        for c, signs in enumerate(choices):
            flip = _flip(m.leaf, signs) if comparable else 1.0
            costs[c] += weights[m.name] * (squares - 2 * flip * (inner if comparable else inner.abs()))
    best, which = costs.min(0)
    order = _assign(best) if space.permutable else torch.arange(shape[-1]).expand(shape).clone()
    chosen = which.gather(-1, order[..., None])[..., 0]
    table = torch.tensor(choices, dtype=torch.float64).reshape(len(choices), space.signs)
    return with_parts(g, space.name, permutation=order, signs=table[chosen].movedim(-1, 0).contiguous())


def _comparable_share(sym: Symmetry, space: Space, resolved: set[str]) -> float:
    """Share of a space's slices whose other dimensions are all in a known order."""
    known = resolved | {space.name, *space.parents}
    members = _members(sym, space)
    return sum(all(s is None or s in known for s in m.block.spaces) for m in members) / max(len(members), 1)


def _features(x: Tensor, block: Block, dims: list[int], resolved: set[str]) -> Tensor:
    """Slices of units as vectors ``(p..., n, F)``: open dimensions sorted by size, the others in order."""
    known = [d for d, s in enumerate(block.spaces) if d not in dims and (s is None or s in resolved)]
    unknown = [d for d in range(x.ndim) if d not in dims and d not in known]
    x = x.permute([*dims, *known, *unknown])
    x = x.reshape(*x.shape[: len(dims) + len(known)], -1)
    if unknown:
        x = x.abs().sort(-1).values
    return x.reshape(*x.shape[: len(dims)], -1)


def _assign(cost: Tensor) -> Tensor:
    """For each new place the old unit, one assignment for each unit of the parents."""
    flat = cost.reshape(-1, *cost.shape[-2:])
    found = [torch.from_numpy(linear_sum_assignment(c.numpy())[1]) for c in flat]
    return torch.stack(found).reshape(cost.shape[:-1])


def _sign_choices(space: Space) -> list[tuple[int, ...]]:
    k = space.signs
    if k <= _MAX_SIGNS:
        return list(product((1, -1), repeat=k))
    return [tuple(-1 if i == flipped else 1 for i in range(k)) for flipped in range(-1, k)]


def _flip(leaf: Leaf, signs: tuple[int, ...]) -> float:
    flip = 1
    for parity, sign in zip(leaf.sign, signs):
        flip *= sign if parity % 2 else 1
    return float(flip)


def _members(sym: Symmetry, space: Space) -> list[_Member]:
    return [
        _Member(name, block, dim, leaf)
        for name, layout in sym.layouts.items()
        for block in blocks(layout)
        for dim, leaf in enumerate(block.leaves)
        if isinstance(leaf, Leaf) and leaf.space == space.name
    ]


def _norm_weights(sym: Symmetry, state: Mapping[str, Tensor]) -> dict[str, float]:
    """One over the squared norm of each tensor, so that every tensor has one vote."""
    squares = {name: float(state[name].square().sum()) for name in sym.layouts}
    return {name: 1.0 / s if s > 0 else 1.0 for name, s in squares.items()}
