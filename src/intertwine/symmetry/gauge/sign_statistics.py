"""Witnesses of signs: the blocks whose odd statistics tell the signs of a space, and of which of its units."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...groups import Semidirect, SignedPermutation
from ..blocks import Block, blocks
from ..detection.linear_equations import BinarySpan, word_of
from ..parent_axes import parent_dims
from ..spaces import Leaf, Space
from ..symmetry import Symmetry

_SEEN = 1e-7  # smallest norm of a unit's slice, relative to the largest, that is not rounding
_PIECE = 1 << 22  # entries whose powers are taken at once


@dataclass(frozen=True)
class Witness:
    """One dimension of a block that carries a space."""

    name: str  # Name of the tensor
    block: Block  # Where the block is in it
    dim: int  # The block's dimension that carries the space
    row: tuple[int, ...]  # For each sign of the space whether it flips the block's statistic
    tells: Tensor  # Units whose slice is not zero, ``(p..., n)``; the statistic of the others would be rounding
    # Other spaces of the block whose signs flip the statistic too; the space itself where it comes twice
    others: frozenset[str]

    def bits(self, state: Mapping[str, Tensor], space: Space, power: int) -> Tensor:
        """Units ``(p..., n)`` whose statistic is negative."""
        dims = parent_dims(space, self.dim, self.block.spaces)
        return odd_statistic(self.block.read(state[self.name]), dims, power) < 0


def signed_spaces(sym: Symmetry) -> list[Space]:
    """Spaces whose signs are to be set; a linear space in its normal basis counts with one sign per unit."""
    return [_signed(s) for s in sym.spaces if s.group.signs or s.group.mixes]


def _signed(space: Space) -> Space:
    if not isinstance(space.group, Semidirect):
        return space
    return replace(space, group=Semidirect(space.group.linear, SignedPermutation(space.size)))


def witnesses(sym: Symmetry, state: Mapping[str, Tensor]) -> dict[str, list[Witness]]:
    """The witnesses of every space with signs, in the order of the network.

    A sign that does no more than all signs of a space inside it together (a head's, beside the signs of its units) has
    none: it stays.
    """
    signed = {s.name: s for s in signed_spaces(sym)}
    found: dict[str, list[Witness]] = {name: [] for name in signed}
    needed = {name: _needed(sym, space) for name, space in signed.items()}
    for name, layout in sym.layouts.items():
        for block in blocks(layout) if name in state else ():
            for dim, s in enumerate(block.spaces):
                if s in signed:
                    row = tuple(a * b for a, b in zip(parities(block.leaves[dim], signed[s]), needed[s]))
                    if any(row):
                        norms = odd_statistic(block.read(state[name]), parent_dims(signed[s], dim, block.spaces), 2)
                        tells = norms > _SEEN**2 * norms.max()
                        others = frozenset(o for d, o in enumerate(block.spaces) if o in signed and d != dim)
                        found[s].append(Witness(name, block, dim, row, tells, others))
    return found


def parities(leaf: object, space: Space) -> tuple[int, ...]:
    """For each sign of a space whether it flips what a leaf belongs to."""
    return (1,) if space.group.mixes else tuple(e % 2 for e in leaf.sign)  # type: ignore[attr-defined]


def odd_statistic(x: Tensor, dims: list[int], power: int) -> Tensor:
    """Sums of a power of the entries over all dimensions but some, which come first in the order given."""
    y = x.permute([*dims, *(d for d in range(x.ndim) if d not in dims)])
    y = y.reshape(*y.shape[: len(dims)], -1)
    some = max(1, _PIECE * y.shape[-2] // max(y.numel(), 1))  # units at a time
    return torch.cat([z.pow(power).sum(-1) for z in y.split(some, -2)], -1)


def unit_shape(sym: Symmetry, space: Space) -> torch.Size:
    """``(p..., n)``: units of the parents, then of the space."""
    sizes = {s.name: s.size for s in sym.spaces}
    return torch.Size([*(sizes[p] for p in space.parents), space.size])


def _needed(sym: Symmetry, space: Space) -> tuple[int, ...]:
    """1 for each sign that is more than signs of spaces inside this one, taken for all of their units at once."""
    pieces = [b for layout in sym.layouts.values() for b in blocks(layout)]
    inside = [s for s in signed_spaces(sym) if space.name in s.parents]
    if not inside or any(b.spaces.count(s.name) > 1 for b in pieces for s in (space, *inside)):
        return (1,) * space.group.signs

    def effects(of: Space) -> list[tuple[int, ...]]:
        rows = [
            next((parities(f, of) for f in b.leaves if isinstance(f, Leaf) and f.space == of.name), ()) for b in pieces
        ]
        return [tuple(row[k] if row else 0 for row in rows) for k in range(of.group.signs)]

    known = BinarySpan(word_of(row) for child in inside for row in effects(child))
    return tuple(int(known.add(word_of(row))) for row in effects(space))
