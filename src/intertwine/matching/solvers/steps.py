"""Steps of one space from cost matrices (best permutation and signs, or closest rotation); and starts for all spaces.

A space and the spaces inside it (heads and their dimensions, groups and their channels) may step together.

Norms of a unit's weights, taken over the units of all other spaces, do not depend on the positions of these. So a start
that matches units with similar weight profiles finds exact and nearly exact copies before anything else is known; for
unrelated networks it is as good as any other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import torch
from torch import Tensor

from ...groups import SpaceGroup, assign
from ...groups.dense import polar_factor
from ...symmetry.action import transform, transform_block
from ...symmetry.blocks import Block, Member
from ...symmetry.coupling import narrowed
from ...symmetry.detection.equations import BinarySpan, word_of
from ...symmetry.gauge.signs import signing, solve_signs
from ...symmetry.spaces import Space
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.problem import Both, Problem, Row, add_to, single_spaces
from ..costs import Costs, paired, sketched

_TABLE = 1 << 20  # gains of several combinations held at a time
_MAX_SIGNS = 6  # most sign generators of which all combinations are tried if their effects are entangled

Products = Mapping[Row, Tensor]


def best_parts(
    costs: Products, group: SpaceGroup, fast: bool = False, inside: Tensor | float = 0.0
) -> dict[str, Tensor]:
    """The parts of the element of one space with the largest total inner product: a rotation, or a monomial step.

    What spaces ``inside`` add to each pair of units counts for the assignment.
    """
    if group.mixes:
        return {"linear": polar_factor(sum(costs.values(), start=torch.zeros(())), group.turns).cpu()}
    order, signs = monomial_step(costs, group.signs, group.permutes, fast, inside)
    return {"permutation": order, "signs": signs}


def monomial_step(
    costs: Products, signs: int, permutable: bool, fast: bool = False, inside: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """The permutation ``(p..., n)`` and signs ``(k, p..., n)`` with the largest total inner product, on the CPU."""
    gain, choose = best_signs(costs, signs)
    gain = gain + inside
    shape = gain.shape[:-1]
    order = assign(gain, fast).cpu() if permutable else torch.arange(shape[-1]).expand(shape).clone()
    return order, choose(order)


def best_signs(costs: Products, signs: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The best value over signs for each pair of units ``(p..., n, n)``, and a map from permutations to those signs."""
    signed = {row: c for row, c in costs.items() if any(row)}
    plain = next((c for row, c in costs.items() if not any(row)), None)
    if plain is None:
        plain = torch.zeros_like(next(iter(costs.values()), torch.zeros(())))
    if not signed:
        return plain, lambda order: torch.ones(signs, *order.shape, dtype=torch.float64)
    if BinarySpan(map(word_of, signed)).rank == len(signed) or signs > _MAX_SIGNS:
        return plain + sum(c.abs() for c in signed.values()), lambda order: _untangled(signed, signs, order)
    flips = torch.tensor(list(product((0.0, 1.0), repeat=signs)), dtype=torch.float64)
    parities = 1 - 2 * (flips @ torch.tensor([*signed], dtype=torch.float64).mT % 2)
    stacked, choices = torch.stack([*signed.values()]), 1 - 2 * flips
    best, which = plain.new_full(plain.shape, -torch.inf), torch.zeros_like(plain, dtype=torch.int64)
    for some in torch.arange(len(flips)).split(max(1, _TABLE // max(1, plain.numel()))):
        gain, first = torch.tensordot(parities[some].to(stacked), stacked, 1).max(0)
        better = gain > best
        best, which = torch.where(better, gain, best), torch.where(better, some[0].item() + first, which)
    best, table = plain + best, which.cpu()
    return best, lambda order: choices[table.gather(-1, order[..., None])[..., 0]].movedim(-1, 0).contiguous()


def _untangled(signed: Products, signs: int, order: Tensor) -> Tensor:
    """Signs that make the inner products of matched units positive, largest total inner product first."""
    said = [(row, c.cpu().gather(-1, order[..., None])[..., 0]) for row, c in signed.items()]
    said.sort(key=lambda s: -float(s[1].abs().sum()))
    return solve_signs([row for row, _ in said], [value < 0 for _, value in said], signs, order.shape)


@dataclass(frozen=True, eq=False)
class _Node:
    """Inner products of the units of one space, for all pairs of units around them."""

    space: Space  # The space
    chain: tuple[str, ...]  # Parents matched together with the space, outermost first
    # By parities of signs, ``(outer, c_1, c_1', ..., n, n')``: the parents of the outermost space form one dimension,
    # and ``c_i, c_i'`` are units of the chain in ``a`` and ``b``
    rows: dict[Row, Tensor]
    inside: "tuple[_Node, ...]"  # Spaces whose innermost parent this one is


def nested_step(costs: Costs, space: Space, fast: bool = False) -> Transformation:
    """The best step of a space together with all spaces inside it.

    The gain of putting unit ``j`` in place ``i`` includes, for each inner space, the best assignment (or rotation) of
    the inner units of ``j`` to those of ``i``. Blocks that carry several inner spaces count for the innermost, or the
    first one, so the step is only a proposal; the caller keeps it if the objective rises.
    """
    still = costs.still
    if not space.group.permutes:
        return still
    tree = _tree(costs, space)
    step = still
    for node, parts in _solved(tree, fast) if tree.rows or tree.inside else ():
        names = (*space.parents, *node.chain)
        step = with_parts(step, node.space.name, **{k: _ordered(costs, node, names, x, k) for k, x in parts.items()})
    return step


def _tree(costs: Costs, outer: Space) -> _Node:
    """The space and those inside it, with the inner products of the blocks of each."""
    spaces = {s.name: s for s in costs.problem.sym.spaces}
    around = {outer.name, *outer.parents}
    within = {s.name for s in spaces.values() if outer.name in s.parents}
    taken: set[tuple[str, Block]] = set()

    def node(space: Space) -> _Node:
        chain = tuple(sorted({*space.parents} - {*outer.parents}, key=lambda p: len(spaces[p].parents)))
        inside = [spaces[n] for n in spaces if n in within and space.name in spaces[n].parents]
        nearest = [s for s in inside if not any(space.name in spaces[p].parents for p in s.parents)]
        found = [node(s) for s in nearest if {*s.parents} <= around | within]
        rows: dict[Row, Tensor] = {}
        for m in costs.problem.members[space.name]:
            if (m.tensor, m.block) not in taken:
                taken.add((m.tensor, m.block))
                add_to(rows, m.row, _table(costs, m, [space.parents.index(p) for p in (*outer.parents, *chain)], chain))
        return _Node(space, chain, rows, tuple(child for child in found if child.rows or child.inside))

    return node(outer)


def _table(costs: Costs, m: Member, order: list[int], chain: tuple[str, ...]) -> Tensor:
    """Inner products of one member for all pairs of units of the chain, as in ``_Node.rows``, with ordered parents."""
    sides = []
    for tensor in (costs.problem.a[m.tensor], costs.present(m.tensor)):
        x = m.view(m.block.read(tensor)).permute([*order, len(order), len(order) + 1])
        sizes = x.shape[len(order) - len(chain) : -1]
        sides.append(x.reshape(prod(x.shape[: len(order) - len(chain)]), prod(sizes), -1))
    table = sides[0] @ sides[1].mT
    table = table.reshape(len(table), *sizes, *sizes)
    return table.permute([0, *(d for i in range(len(sizes)) for d in (1 + i, 1 + i + len(sizes)))])


def _inside(node: _Node, fast: bool) -> Tensor | float:
    """The largest inner product that the spaces inside can reach, for each pair of units around them."""
    return sum((_reached(child, fast) for child in node.inside), start=torch.zeros(()))


def _reached(node: _Node, fast: bool) -> Tensor:
    """The largest total inner product of a space for every pair of units around it."""
    if node.space.group.mixes:
        total = sum(node.rows.values(), start=torch.zeros(()))
        turned = node.space.group.turns
        return (polar_factor(total, True) * total).sum((-2, -1)) if turned else torch.linalg.svdvals(total).sum(-1)
    gain = best_signs(node.rows, node.space.group.signs)[0] + _inside(node, fast)
    if not node.space.group.permutes:
        return gain.diagonal(dim1=-2, dim2=-1).sum(-1)
    return gain.gather(-1, assign(gain, fast)[..., None])[..., 0].sum(-1)


def _solved(node: _Node, fast: bool) -> Iterator[tuple[_Node, dict[str, Tensor]]]:
    """The best parts of a space whose chain is matched, then those of its inner spaces."""
    parts = best_parts(node.rows, node.space.group, fast, _inside(node, fast))
    yield node, parts
    for child in node.inside:
        yield from _solved(_picked(child, parts["permutation"]), fast)


def _picked(node: _Node, order: Tensor) -> _Node:
    """A node and its inner nodes, for the pairs of units given by an order of the surrounding space."""
    dim = order.ndim

    def picked(table: Tensor) -> Tensor:
        index = order.to(table.device).reshape(*order.shape, *[1] * (table.ndim - dim))
        return table.gather(dim, index.expand(*table.shape[:dim], 1, *table.shape[dim + 1 :])).squeeze(dim)

    rows = {row: picked(table) for row, table in node.rows.items()}
    return replace(node, rows=rows, inside=tuple(_picked(child, order) for child in node.inside))


def _ordered(costs: Costs, node: _Node, names: tuple[str, ...], x: Tensor, kind: str) -> Tensor:
    """A part of an element whose leading dimensions belong to named spaces, in the order of the parents."""
    start, last = int(kind == "signs"), 2 if kind == "linear" else 1
    sizes = [costs.problem.sym.space(name).size for name in names]
    x = x.reshape(*x.shape[:start], *sizes, *x.shape[x.ndim - last :])
    where = [start + names.index(p) for p in node.space.parents]
    return x.permute([*range(start), *where, *range(start + len(names), x.ndim)]).contiguous()


_KERNEL = 4  # number of positions beside the units of two spaces from which a block counts as a kernel
_SLAB = 1 << 22  # entries with profiles compared at once


def profiles(stated: Problem, fast: bool = False) -> Transformation:
    """Permutations from norms of units' weights over other spaces, then rotations; no signs; nested spaces stay."""
    g = identity(stated.sym)
    free = single_spaces(stated.sym)
    for space in free:
        order = paired(profiles_of(stated, space.name), fast)
        if order is not None:
            g = with_parts(g, space.name, permutation=order.cpu())
    waiting = [s.name for s in stated.sym.spaces if s.group.mixes and not s.parents]
    return _placed(stated, g, {s.name for s in free}, waiting, fast)


def signed(stated: Problem, g: Transformation) -> Transformation:
    """``g`` with the signs that make its products with ``a`` positive, largest first, ignoring nested spaces."""
    if not any(s.group.signs for s in stated.sym.spaces):
        return g
    left = {name for s in stated.sym.spaces if s.parents for name in (s.name, *s.parents)}
    told = {n: x for n, x in stated.sym.layouts.items() if not left & x.spaces}
    products = {n: transform(stated.b[n], x, g) * stated.a[n] for n, x in told.items()}
    return signing(narrowed(stated.sym, told), products, power=1) @ g


def outwards(stated: Problem, fast: bool = False) -> Transformation:
    """Spaces placed in turn, starting at the input, each by the weights that join it to those already placed."""
    return _placed(stated, identity(stated.sym), set(), [s.name for s in stated.sym.spaces], fast)


def _placed(stated: Problem, g: Transformation, known: set[str], waiting: list[str], fast: bool) -> Transformation:
    """``g`` with waiting spaces solved in turn, first those with the largest comparable share of weights."""
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
    """Profiles of all units of a space, sketched block by block; their squared distances add up."""
    linear = stated.sym.mixing
    still = {s.name for s in stated.sym.spaces if not s.group.permutes} - linear  # units in place, up to signs
    for m in stated.members[space]:
        if not linear & set(m.block.spaces):
            yield from _of_member(stated, m, still)


def _of_member(stated: Problem, m: Member, still: set[str]) -> Iterator[Both]:
    """Profiles in one block, slab by slab; a function, so that the block is released before the next is read."""
    units = [d for d, s in enumerate(m.block.spaces) if s is not None and s not in still and d != m.dim]
    kernels = prod(n for d, n in enumerate(m.block.shape) if d not in units and d != m.dim) >= _KERNEL
    entries = None if units else prod(m.block.shape) // m.block.shape[m.dim]
    for x, y in _slabs(m, units, *(m.block.read(state[m.tensor]) for state in (stated.a, stated.b))):
        yield sketched(_profile(m, x, units, kernels), entries), sketched(_profile(m, y, units, kernels), entries)


def _slabs(m: Member, units: list[int], x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Two large blocks in slabs along the longest dimension of positions; distances of profiles add up."""
    rest = [d for d in range(x.ndim) if d not in units and d != m.dim]
    if not rest or x.numel() <= _SLAB:
        return iter([(x, y)])
    dim = max(rest, key=lambda d: x.shape[d])
    return zip(*(t.split(max(_SLAB * x.shape[dim] // x.numel(), 1), dim) for t in (x, y)))


def _profile(m: Member, x: Tensor, units: list[int], kernels: bool) -> Tensor:
    """Norms of slices of a block ``(n, F)`` over other units, or the values if these change neither place nor sign."""
    if not units:
        others = any(s is not None for d, s in enumerate(m.block.spaces) if d != m.dim)
        x = x.movedim(m.dim, 0).reshape(x.shape[m.dim], -1)
        return x.abs() if others or any(m.row) else x
    norms = _norms(x, units, kernels)
    at = sum(d not in units for d in range(m.dim))
    return norms.movedim(at, 0).reshape(x.shape[m.dim], -1)


def _norms(x: Tensor, dims: list[int], kernels: bool) -> Tensor:
    """Power means ``(mean |x|^p)^(1/p)`` over some dimensions, times the root of their size, for p = 1, 2 and 4.

    If a kernel has many positions, Euclidean norms alone distinguish units.
    """

    def powers(x: Tensor) -> Tensor:
        square = x * x
        means = [square.mean(dims).sqrt()]
        if not kernels:
            means += [x.abs().mean(dims), (square * square).mean(dims).sqrt().sqrt()]
        return torch.stack(means, -1) * prod(x.shape[d] for d in dims) ** 0.5

    norms = powers(x)
    return norms if bool(torch.isfinite(norms).all()) else powers(x.double()).to(x)
