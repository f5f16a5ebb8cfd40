"""Signs in canonical form: odd statistics become positive, space by space along the network.

A statistic determines a unit's sign only if no undecided sign affects it, and if the unit's slice is not zero. If
spaces wait for one another (a grid of two signed spaces, residual streams that meet in one product), their bits are
solved together, by elimination over F2: the largest entries become positive, as many as are independent.

Witnesses are the blocks whose odd statistics determine the signs of a space, and of which of its units.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from math import prod
from operator import xor

import torch
from torch import Tensor

from ...groups import Semidirect, SignedPermutation
from ..action import moved
from ..blocks import Member, align, blocks, carrying, parent_dims, unit_rows
from ..detection.equations import BinarySpan, word_of
from ..spaces import Space
from ..symmetry import Symmetry
from ..transformation import Transformation, element, identity

_SEEN = 1e-7  # smallest norm of a unit's slice, relative to the largest, that counts as nonzero
_PIECE = 1 << 22  # entries whose powers are taken at once


@dataclass(frozen=True)
class Witness:
    """One dimension of a block whose odd statistic determines signs of the space that it carries."""

    member: Member  # The dimension
    row: tuple[int, ...]  # For each sign of the space: whether it flips the block's statistic
    tells: Tensor  # Units whose slice is not zero, ``(p..., n)``; the others' statistics would be rounding noise
    # Other spaces of the block whose signs flip the statistic too; also the space itself if it occurs twice
    others: frozenset[str]

    def bits(self, state: Mapping[str, Tensor], power: int) -> Tensor:
        """Units ``(p..., n)`` whose statistic is negative."""
        return odd_statistic(self.member.read(state), power) < 0


def signed_spaces(sym: Symmetry) -> list[Space]:
    """Spaces whose signs must be set: linear ones with one sign per unit; turns of pairs have no separate signs."""
    one_sign = lambda s: replace(s, group=Semidirect(s.group.linear, SignedPermutation(s.size)))
    signed = (s for s in sym.spaces if s.group.signs or (s.group.mixes and not s.group.turns))
    return [one_sign(s) if isinstance(s.group, Semidirect) else s for s in signed]


def witnesses(sym: Symmetry, state: Mapping[str, Tensor]) -> dict[str, list[Witness]]:
    """The witnesses of every space with signs, in the order of the network.

    A sign equivalent to all signs of an inner space together (as a head's) has none.
    """
    signed = {s.name: s for s in signed_spaces(sym)}
    found: dict[str, list[Witness]] = {name: [] for name in signed}
    for name, space in signed.items():
        needed = _needed(sym, space)
        for m in carrying(sym.layouts, space):
            row = tuple(a * b for a, b in zip(parities(m.leaf, space), needed))
            if m.tensor in state and any(row):
                norms = odd_statistic(m.read(state), 2)
                tells = norms > _SEEN**2 * norms.max()
                others = frozenset(o for d, o in enumerate(m.block.spaces) if o in signed and d != m.dim)
                found[name].append(Witness(m, row, tells, others))
    return found


def parities(leaf: object, space: Space) -> tuple[int, ...]:
    """Whether each sign of a space flips what a leaf belongs to."""
    return (1,) if space.group.mixes else tuple(e % 2 for e in leaf.sign)  # type: ignore[attr-defined]


def odd_statistic(x: Tensor, power: int) -> Tensor:
    """Sums of a power of the entries of every unit's slice, ``(p..., n, rest)``."""
    some = max(1, _PIECE * x.shape[-2] // max(x.numel(), 1))  # units at a time
    return torch.cat([y.pow(power).sum(-1) for y in x.split(some, -2)], -1)


def _needed(sym: Symmetry, space: Space) -> tuple[int, ...]:
    """1 for each sign that is not equivalent to signs of inner spaces, flipped for all of their units at once."""
    pieces = [b for layout in sym.layouts.values() for b in blocks(layout)]
    inside = [s for s in signed_spaces(sym) if space.name in s.parents]
    if not inside or any(b.spaces.count(s.name) > 1 for b in pieces for s in (space, *inside)):
        return (1,) * space.group.signs

    def effects(of: Space) -> list[tuple[int, ...]]:
        rows = [next((parities(f, of) for _, f in b.carried if f.space == of.name), ()) for b in pieces]
        return [tuple(row[k] if row else 0 for row in rows) for k in range(of.group.signs)]

    known = BinarySpan(word_of(row) for child in inside for row in effects(child))
    return tuple(int(known.add(word_of(row))) for row in effects(space))


_MOST_BITS = 4096  # that are solved together
_MOST_ENTRIES = 100_000  # that are used then
_EQUAL = 1e-5  # relative difference of their sizes below which order says nothing


def signing(sym: Symmetry, state: Mapping[str, Tensor], power: int = 3) -> Transformation:
    """The signs (as matrices for linear spaces) that make sums of an odd ``power`` positive, with units in order."""
    g = identity(sym)
    found = witnesses(sym, state)
    waiting = {s.name: s for s in signed_spaces(sym)}
    while waiting:
        ready = next((s for s in waiting.values() if _ready(found[s.name], waiting)), None)
        group = [ready] if ready else _connected(found, waiting)
        apart = bool(ready) or sum(s.group.signs * sym.unit_shape(s).numel() for s in group) > _MOST_BITS
        group = group[:1] if apart else group
        current = {**state, **moved(sym, g, state, {w.member.tensor for s in group for w in found[s.name]})}
        if apart:
            space = group[0]
            flips = {space.name: _alone(sym, current, space, found[space.name], waiting, power)}
        else:
            flips = _together(sym, current, group, power)
        mixing = {name: sym.space(name).group.mixes for name in flips}
        matrices = {n: torch.diag_embed(t[0]) for n, t in flips.items() if mixing[n] and bool((t < 0).any())}
        g = element(sym, signs={n: t for n, t in flips.items() if not mixing[n]}, linear=matrices) @ g
        waiting = {n: s for n, s in waiting.items() if s not in group}
    return g


def _ready(found: list[Witness], waiting: Collection[str]) -> bool:
    """Whether the witnesses that no waiting sign affects determine as much about every unit as all of them would."""
    patterns, _ = _patterns(found)
    untouched = [not w.others & set(waiting) for w in found]
    for pattern in patterns:
        known = BinarySpan(word_of(w.row) for w, tells, free in zip(found, pattern, untouched) if tells and free)
        if any(known.add(word_of(w.row)) for w, tells in zip(found, pattern) if tells):
            return False
    return True


def _patterns(found: list[Witness]) -> tuple[list[list[bool]], Tensor]:
    """The distinct lists of witnesses for a unit, and the index of its list for every unit (flattened)."""
    if not found:
        return [], torch.zeros(0, dtype=torch.long)
    table, unit = torch.stack([w.tells.flatten() for w in found], 1).unique(dim=0, return_inverse=True)
    return table.tolist(), unit


def _connected(found: Mapping[str, list[Witness]], waiting: Mapping[str, Space]) -> list[Space]:
    """The first waiting space and all that wait for it or that it waits for, directly or indirectly."""
    group = [next(iter(waiting))]
    for name in group:  # grows during the loop
        beside = {o for w in found[name] for o in w.others if o in waiting}
        beside |= {n for n in waiting for w in found[n] if name in w.others}
        group += [n for n in waiting if n in beside and n not in group]
    return [waiting[n] for n in group]


def _alone(
    sym: Symmetry, state: Mapping[str, Tensor], space: Space, found: list[Witness], waiting: Collection[str], power: int
) -> Tensor:
    """Signs ``(k, p..., n)`` that, for every unit, make the statistics of independent rows, in order, positive."""
    shape = sym.unit_shape(space)
    found = [w for w in found if space.name not in w.others]
    found.sort(key=lambda w: bool(w.others & set(waiting)))  # those that no waiting sign affects come first
    patterns, unit = _patterns(found)
    signs = torch.ones(space.group.signs, shape.numel(), dtype=torch.float64)
    negative: dict[int, Tensor] = {}
    for p, pattern in enumerate(patterns):
        span = BinarySpan()
        chosen = [i for i, tells in enumerate(pattern) if tells and span.add(word_of(found[i].row))]
        for i in chosen:
            if i not in negative:
                negative[i] = found[i].bits(state, power).flatten()
        here = unit == p
        bits = [negative[i][here] for i in chosen]
        signs[:, here] = solve_signs(
            [found[i].row for i in chosen], bits, space.group.signs, torch.Size([int(here.sum())])
        )
    return signs.reshape(space.group.signs, *shape)


def _together(sym: Symmetry, state: Mapping[str, Tensor], waiting: list[Space], power: int) -> dict[str, Tensor]:
    """Signs of several spaces at once."""
    shapes = {s.name: (s.group.signs, *sym.unit_shape(s)) for s in waiting}
    starts, total = {}, 0
    for name, shape in shapes.items():
        starts[name], total = total, total + prod(shape)
    solved = BinarySpan()
    for negative, flips in _equations(sym, state, {s.name: s for s in waiting}, starts, power):
        solved.add(reduce(xor, (1 << bit for bit in flips)), negative)
        if solved.rank == total:
            break
    signs = 1.0 - 2.0 * torch.tensor([solved.reduced(1 << bit)[1] for bit in range(total)], dtype=torch.float64)
    return {n: signs[starts[n] : starts[n] + prod(shape)].reshape(shape) for n, shape in shapes.items()}


def _equations(
    sym: Symmetry, state: Mapping[str, Tensor], waiting: Mapping[str, Space], starts: Mapping[str, int], power: int
) -> list[tuple[int, list[int]]]:
    """Whether an entry is negative, and the bits that flip it; relatively largest entries come first."""
    sizes: list[Tensor] = []
    found: list[tuple[Tensor, list[Tensor]]] = []
    for name, layout in sym.layouts.items():
        for block in blocks(layout) if name in state else ():
            places = [d for d, s in enumerate(block.spaces) if s in waiting]
            dims = {d: parent_dims(waiting[block.spaces[d]], d, block.spaces) for d in places}  # type: ignore[index]
            kept = sorted({d for need in dims.values() for d in need})
            if not places:
                continue
            t = odd_statistic(unit_rows(block.read(state[name]), kept), power)
            bits = []
            for d, need in dims.items():
                space = waiting[block.spaces[d]]  # type: ignore[index]
                shape = sym.unit_shape(space)
                units = torch.arange(prod(shape)).reshape(shape)
                unit = align(units, [kept.index(at) for at in need], t.ndim).expand(t.shape)
                row = parities(block.leaves[d], sym.space(space.name))
                bits += [(starts[space.name] + k * prod(shape) + unit).flatten() for k, e in enumerate(row) if e]
            if bits:
                t = t.double()
                sizes.append((t.abs() / t.abs().max().clamp_min(1e-300)).flatten())
                found.append((t.flatten() < 0, bits))
    joined = torch.cat([torch.zeros(0, dtype=torch.float64), *sizes])
    order = joined.argsort(descending=True, stable=True)
    falling = joined[order]
    smaller = falling.diff(prepend=falling[:1]).abs() > _EQUAL * falling
    # those that balanced scales make equal, up to rounding, come in the order of their tensors
    first = order[(smaller.cumsum(0) * len(order) + order).argsort()][:_MOST_ENTRIES].tolist()
    starting = [0, *accumulate(len(negative) for negative, _ in found)]
    equations = []
    for place in first:
        b = bisect_right(starting, place) - 1
        (negative, bits), i = found[b], place - starting[b]
        equations.append((int(negative[i]), [int(x[i]) for x in bits]))
    return equations


def solve_signs(rows: list[tuple[int, ...]], bits: list[Tensor], k: int, shape: torch.Size) -> Tensor:
    """Signs ``s`` with ``prod_k s_k^row_k = -1`` exactly where the bit is set; signs that rows leave open are 1."""
    span = BinarySpan(map(word_of, rows))
    signs = torch.ones(k, *shape, dtype=torch.float64)
    for column, sign in enumerate(signs):
        told = span.reduced(1 << (k - 1 - column))[1]
        for r, bit in enumerate(bits):
            if told >> r & 1:
                sign *= 1.0 - 2.0 * bit.to(torch.float64)
    return signs
