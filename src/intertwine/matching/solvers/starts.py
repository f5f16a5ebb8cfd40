"""A start for every space at once: units whose weights have similar profiles.

Norms of a unit's weights, taken over the units of all other spaces, do not depend on where those are. So exact and
nearly exact copies are matched before anything else is known; for unrelated networks this is as good as any start.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from ...symmetry.action import transform, transform_block
from ...symmetry.coupling import narrowed
from ...symmetry.gauge.signs import signing
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.problem import Both, Member, Problem, Row, add_to, single_spaces
from ..costs.nearest import paired, sketched
from .steps import best_parts

_KERNEL = 4  # positions beside the units of two spaces from which on a block is a kernel
_SLAB = 1 << 22  # entries whose profiles are compared at once


def profiles(stated: Problem, fast: bool = False) -> Transformation:
    """Permutations that match units by norms of their weights, then rotations; no signs.

    Norms are taken over the units of other spaces; weights along fixed axes (inputs, kernel positions) stay apart.
    Spaces that lie in or around others stay. Bases are turned from the ends of a network to its middle.
    """
    g = identity(stated.sym)
    free = single_spaces(stated.sym)
    for space in free:
        order = paired(profiles_of(stated, space.name), fast)
        if order is not None:
            g = with_parts(g, space.name, permutation=order.cpu())
    waiting = [s.name for s in stated.sym.spaces if s.group.mixes and not s.parents]
    return _placed(stated, g, {s.name for s in free}, waiting, fast)


def signed(stated: Problem, g: Transformation) -> Transformation:
    """``g`` with the signs that make its products with ``a`` positive, largest first.

    Tensors of spaces that lie in or around others, which ``profiles`` leaves in place, tell nothing yet.
    """
    if not any(s.group.signs for s in stated.sym.spaces):
        return g
    left = {name for s in stated.sym.spaces if s.parents for name in (s.name, *s.parents)}
    told = {n: x for n, x in stated.sym.layouts.items() if not left & x.spaces}
    products = {n: transform(stated.b[n], x, g) * stated.a[n] for n, x in told.items()}
    return signing(narrowed(stated.sym, told), products, power=1) @ g


def outwards(stated: Problem, fast: bool = False) -> Transformation:
    """Spaces placed one after the other from the input on, each by the weights that join it to what is placed."""
    return _placed(stated, identity(stated.sym), set(), [s.name for s in stated.sym.spaces], fast)


def _placed(stated: Problem, g: Transformation, known: set[str], waiting: list[str], fast: bool) -> Transformation:
    """``g`` with waiting spaces solved one after the other, those first of whose weights the most can be compared."""
    sizes = {m: float(stated.a[m.tensor].square().sum()) for name in waiting for m in stated.members[name]}

    def usable(name: str) -> list[Member]:
        return [m for m in stated.members[name] if {s for s in m.block.spaces if s is not None} <= known | {name}]

    def share(name: str) -> float:
        total = sum(sizes[m] for m in stated.members[name])
        return sum(sizes[m] for m in usable(name)) / total if total else 0.0

    while waiting:
        name = max(waiting, key=share)
        waiting.remove(name)
        if not share(name):
            continue
        costs: dict[Row, Tensor] = {}
        for m in usable(name):
            b = transform_block(m.block.read(stated.b[m.tensor]), m.block, g)
            add_to(costs, m.row, m.read(stated.a) @ m.view(b).mT)
        g = with_parts(g, name, **best_parts(costs, stated.sym.space(name).group, fast))
        known.add(name)
    return g


def profiles_of(stated: Problem, space: str) -> Iterator[Both]:
    """Profiles of all units of one space, sketched; their squared distances add up.

    They come block by block; each block is freed before the next one is read.
    """
    linear = {s.name for s in stated.sym.spaces if s.group.mixes}
    still = {s.name for s in stated.sym.spaces if not s.group.permutes} - linear  # units in place, up to signs
    for m in stated.members[space]:
        if not linear & set(m.block.spaces):
            yield from _of_member(stated, m, still)


def _of_member(stated: Problem, m: Member, still: set[str]) -> Iterator[Both]:
    """Profiles in one block, slab by slab."""
    units = [d for d, s in enumerate(m.block.spaces) if s is not None and s not in still and d != m.dim]
    kernels = prod(n for d, n in enumerate(m.block.shape) if d not in units and d != m.dim) >= _KERNEL
    entries = None if units else prod(m.block.shape) // m.block.shape[m.dim]
    for x, y in _slabs(m, units, *(m.block.read(state[m.tensor]) for state in (stated.a, stated.b))):
        yield sketched(_profile(m, x, units, kernels), entries), sketched(_profile(m, y, units, kernels), entries)


def _slabs(m: Member, units: list[int], x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Two large blocks slab by slab, along the longest dimension of positions: distances of profiles add up."""
    rest = [d for d in range(x.ndim) if d not in units and d != m.dim]
    if not rest or x.numel() <= _SLAB:
        return iter([(x, y)])
    dim = max(rest, key=lambda d: x.shape[d])
    return zip(*(t.split(max(_SLAB * x.shape[dim] // x.numel(), 1), dim) for t in (x, y)))


def _profile(m: Member, x: Tensor, units: list[int], kernels: bool) -> Tensor:
    """Norms of the slices of a block ``(n, F)`` over other units; values where none of these change places or signs."""
    if not units:
        others = any(s is not None for d, s in enumerate(m.block.spaces) if d != m.dim)
        x = x.movedim(m.dim, 0).reshape(x.shape[m.dim], -1)
        return x.abs() if others or any(m.row) else x
    norms = _norms(x, units, kernels)
    at = sum(d not in units for d in range(m.dim))
    return norms.movedim(at, 0).reshape(x.shape[m.dim], -1)


def _norms(x: Tensor, dims: list[int], kernels: bool) -> Tensor:
    """Power means ``(mean |x|^p)^(1/p)`` over some dimensions, times the root of their size, for p = 1, 2 and 4.

    Many positions of a kernel tell units apart by Euclidean norms alone.
    """

    def powers(x: Tensor) -> Tensor:
        square = x * x
        means = [square.mean(dims).sqrt()]
        if not kernels:
            means += [x.abs().mean(dims), (square * square).mean(dims).sqrt().sqrt()]
        return torch.stack(means, -1) * prod(x.shape[d] for d in dims) ** 0.5

    norms = powers(x)
    return norms if bool(torch.isfinite(norms).all()) else powers(x.double()).to(x)
