"""Signs in canonical form: odd statistics become positive, space by space along the network.

A statistic says something of a unit only if no sign that is still open touches it. Where spaces wait for one another
(heads times rotary planes, a grid of two signed spaces) their bits are solved together, by elimination over two
elements: the largest entries become positive, as many as are independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .action import moved
from .blocks import Block, blocks
from .element import parent_dims
from .spaces import Space
from .transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from .symmetry import Symmetry

__all__ = ["independent", "signing", "solve_signs"]

_MOST_BITS = 4096  # that are solved together
_MOST_ENTRIES = 100_000  # that are looked at then


def signing(sym: Symmetry, state: Mapping[str, Tensor], power: int = 3) -> Transformation:
    """The signs that bring weights with ordered units into canonical form.

    Args:
        sym: The symmetry.
        state: Tensors in float64.
        power: Odd power of the entries whose sums must become positive.

    Returns:
        An element of signs; a linear space gets them as a diagonal matrix.
    """
    g = identity(sym)
    waiting = [s if s.linear == "none" else replace(s, signs=1) for s in sym.spaces if s.signs or s.linear != "none"]
    while waiting:
        current = {**state, **moved(sym, g, state)}
        names = {s.name for s in waiting}
        ready = next((s for s in waiting if _rank(sym, current, s, names) == _rank(sym, current, s, set())), None)
        if ready is None and sum(_bits(sym, s) for s in waiting) <= _MOST_BITS:
            return _flipping(sym, _together(sym, current, waiting, power)) @ g
        space = ready or waiting[0]
        waiting.remove(space)
        g = _flipping(sym, {space.name: _alone(sym, current, space, names, power)}) @ g
    return g


def _flipping(sym: Symmetry, signs: Mapping[str, Tensor]) -> Transformation:
    g = identity(sym)
    for name, flips in signs.items():
        if sym.space(name).linear == "none":
            g = with_parts(g, name, signs=flips)
        elif bool((flips < 0).any()):
            g = with_parts(g, name, linear=torch.diag_embed(flips[0]))
    return g


def _rows(
    sym: Symmetry, state: Mapping[str, Tensor], space: Space, waiting: set[str]
) -> list[tuple[str, Block, int, tuple[int, ...]]]:
    """Blocks whose odd statistics tell signs of one space; zeros, and blocks of other waiting spaces, are left out."""
    found = []
    for name, layout in sym.layouts.items():
        for block in blocks(layout) if name in state and bool(state[name].any()) else ():
            if block.spaces.count(space.name) == 1 and not (waiting - {space.name}) & set(block.spaces):
                dim = block.spaces.index(space.name)
                row = _parities(block.leaves[dim], sym.space(space.name))
                if any(row):
                    found.append((name, block, dim, row))
    return found


def _parities(leaf: object, space: Space) -> tuple[int, ...]:
    return (1,) if space.linear != "none" else tuple(e % 2 for e in leaf.sign)  # type: ignore[attr-defined]


def _rank(sym: Symmetry, state: Mapping[str, Tensor], space: Space, waiting: set[str]) -> int:
    rows: list[tuple[int, ...]] = []
    for *_, row in _rows(sym, state, space, waiting):
        if independent([*rows, row]):
            rows.append(row)
    return len(rows)


def _alone(sym: Symmetry, state: Mapping[str, Tensor], space: Space, waiting: set[str], power: int) -> Tensor:
    """Signs ``(k, p..., n)``: independent rows of exponents are taken in order and their statistics made positive."""
    rows: list[tuple[int, ...]] = []
    bits: list[Tensor] = []
    for known in (waiting, set()):  # statistics that no waiting sign touches come first
        for name, block, dim, row in _rows(sym, state, space, known):
            if independent([*rows, row]):
                rows.append(row)
                bits.append(_odd_statistic(block.read(state[name]), parent_dims(space, dim, block.spaces), power) < 0)
    return solve_signs(rows, bits, space.signs, _shape(sym, space))


def _odd_statistic(x: Tensor, dims: list[int], power: int) -> Tensor:
    y = x.permute([*dims, *(d for d in range(x.ndim) if d not in dims)])
    return y.reshape(*y.shape[: len(dims)], -1).pow(power).sum(-1)


def _together(sym: Symmetry, state: Mapping[str, Tensor], waiting: list[Space], power: int) -> dict[str, Tensor]:
    """Signs of several spaces at once."""
    shapes = {s.name: (s.signs, *_shape(sym, s)) for s in waiting}
    starts, total = {}, 0
    for name, shape in shapes.items():
        starts[name], total = total, total + prod(shape)
    solved: dict[int, tuple[int, int]] = {}  # leading bit -> (mask, right-hand side)
    for negative, flips in _equations(sym, state, {s.name: s for s in waiting}, starts, power):
        mask, right = 0, negative
        for bit in flips:
            mask ^= 1 << bit
        while mask and (lead := mask.bit_length() - 1) in solved:
            mask, right = mask ^ solved[lead][0], right ^ solved[lead][1]
        if mask:
            solved[lead] = (mask, right)
        if len(solved) == total:
            break
    values = torch.zeros(total, dtype=torch.int64)
    for lead in sorted(solved):  # every other bit of a mask is lower, and known
        mask, right = solved[lead]
        lower = mask ^ (1 << lead)
        while lower:
            bit = lower.bit_length() - 1
            right, lower = right ^ int(values[bit]), lower ^ (1 << bit)
        values[lead] = right
    signs = 1.0 - 2.0 * values.to(torch.float64)
    return {n: signs[starts[n] : starts[n] + prod(shape)].reshape(shape) for n, shape in shapes.items()}


def _equations(
    sym: Symmetry, state: Mapping[str, Tensor], waiting: Mapping[str, Space], starts: Mapping[str, int], power: int
) -> list[tuple[int, list[int]]]:
    """Whether an entry is negative, and the bits that flip it; relatively largest entries first."""
    sizes: list[Tensor] = []
    found: list[tuple[Tensor, list[Tensor]]] = []
    for name, layout in sym.layouts.items():
        for block in blocks(layout) if name in state else ():
            places = [d for d, s in enumerate(block.spaces) if s in waiting]
            dims = {d: parent_dims(waiting[block.spaces[d]], d, block.spaces) for d in places}  # type: ignore[index]
            kept = sorted({d for need in dims.values() for d in need})
            if not places:
                continue
            t = _odd_statistic(block.read(state[name]), kept, power)
            grid = torch.meshgrid(*(torch.arange(n) for n in t.shape), indexing="ij")
            bits = []
            for d, need in dims.items():
                space = waiting[block.spaces[d]]  # type: ignore[index]
                shape = _shape(sym, space)
                unit = torch.zeros_like(grid[0])
                for n, at in zip(shape, need):
                    unit = unit * n + grid[kept.index(at)]
                row = _parities(block.leaves[d], sym.space(space.name))
                bits += [(starts[space.name] + k * prod(shape) + unit).flatten() for k, e in enumerate(row) if e]
            if bits:
                sizes.append((t.abs() / t.abs().max().clamp_min(1e-300)).flatten())
                found.append((t.flatten() < 0, bits))
    flat = [(b, i) for b, (negative, _) in enumerate(found) for i in range(len(negative))]
    joined = torch.cat(sizes) if sizes else torch.zeros(0)
    order = joined.argsort(descending=True, stable=True)[:_MOST_ENTRIES].tolist()
    return [(int(found[b][0][i]), [int(x[i]) for x in found[b][1]]) for b, i in (flat[at] for at in order)]


def solve_signs(rows: list[tuple[int, ...]], bits: list[Tensor], k: int, shape: torch.Size) -> Tensor:
    """Signs ``s`` with ``prod_k s_k^row_k = -1`` exactly where the bit is set: elimination over two elements."""
    table = [(list(row), bit.clone()) for row, bit in zip(rows, bits)]
    pivots: dict[int, int] = {}
    for r in range(len(table)):
        column = next(c for c in range(k) if table[r][0][c] and c not in pivots)
        pivots[column] = r
        for other in range(len(table)):
            if other != r and table[other][0][column]:
                mixed = [(a + b) % 2 for a, b in zip(table[other][0], table[r][0])]
                table[other] = (mixed, table[other][1] ^ table[r][1])
    signs = torch.ones(k, *shape, dtype=torch.float64)
    for column, r in pivots.items():
        signs[column] = 1.0 - 2.0 * table[r][1].to(torch.float64)
    return signs


def independent(rows: list[tuple[int, ...]]) -> bool:
    """Whether 0-1 rows are independent over two elements."""
    masks = [sum(bit << i for i, bit in enumerate(row)) for row in rows]
    basis: list[int] = []
    for mask in masks:
        for b in basis:
            mask = min(mask, mask ^ b)
        if not mask:
            return False
        basis.append(mask)
    return True


def _bits(sym: Symmetry, space: Space) -> int:
    return space.signs * prod(_shape(sym, space))


def _shape(sym: Symmetry, space: Space) -> torch.Size:
    sizes = {s.name: s.size for s in sym.spaces}
    return torch.Size([*(sizes[p] for p in space.parents), space.size])
