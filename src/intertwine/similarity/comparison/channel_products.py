"""Products of the channels of several layers at once, by folds of examples and parts of the positions."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from .._linalg import multiplies_half
from .estimates import How, folds_of
from .layers import Layer

WIDE = 384  # channels from which on products are rounded to 16 bits, and best maps are expensive
_PARTS = 4  # parts of the positions, whose differences give the error of sampling them
_TABLE = 48 << 20  # numbers in the products of all folds and parts at a time: 192 MB
_FOLDS = 20
_ROWS = 1024  # rows of 16 bits in one product
_ROWS_EACH = 4  # rows per channel: with fewer, what rounding adds to small singular values is much of a trace
_NUMBERS = 1 << 22  # numbers of a side that are upcast to float64 at a time


class Stack:
    """Rows of some layers of equal width at one size, their channels side by side, about their means.

    Each layer is multiplied by the power of 2 that brings its largest value near 1. Many centred channels with many
    rows are rounded to 16 bits where the processor multiplies those: the error of a score includes this random 0.2 % of
    each number.
    """

    def __init__(
        self, layers: Sequence[Layer], space: tuple[int, ...], center: bool, exact: bool, keeps: bool = False
    ) -> None:
        self.every, self.centred = prod(space), center
        self.shape = len(layers), layers[0].shape[0]
        self.positive = torch.tensor([bool((layer.low >= 0).all()) for layer in layers])
        self._rows = [layer.rows(space) for layer in layers]
        self.positions = min(parts[0].shape[1] for parts in self._rows)
        self._silent = torch.cat([layer.constant if center else layer.dead for layer in layers])
        self.living = ~self._silent.cpu().view(self.shape)  # living channels, by all examples and positions, ``(L, C)``
        tops = [float(torch.stack([part.abs().max() for part in parts]).max()) or 1.0 for parts in self._rows]
        exponents = torch.tensor(tops, dtype=torch.float64).log2().round().int()
        self.scales = torch.ldexp(torch.ones(len(tops), dtype=torch.float64), -exponents)
        self._means: list[Tensor] = []
        offsets = []
        for parts, scale in zip(self._rows, self.scales.tolist()):
            total = sum(part.flatten(0, 1).sum(0, dtype=torch.float64) for part in parts)
            mean = torch.as_tensor(total) / sum(part.shape[0] * part.shape[1] for part in parts)
            self._means.append(mean if center else torch.zeros_like(mean))
            offsets.append(mean * scale - self._means[-1] * scale)
        self.offset = torch.where(self._silent.to(mean.device), 0.0, torch.cat(offsets))  # means still in the rows
        self.squares: dict[tuple[int, ...], Tensor] = {}  # of the channels, by fold and part, for tables of a kind
        self.device, self.dtype = (getattr(self._rows[0][0], of) for of in ("device", "dtype"))
        rows = self.positions * sum(part.shape[0] for part in self._rows[0])
        wide = len(self.offset) >= WIDE and rows >= _ROWS_EACH * self.shape[1]
        self.narrow = center and not exact and wide and multiplies_half(self.device)
        # Blocks that several tables read; blocks of several layers are cheap to round and too many to keep.
        self._keeps, self._kept = keeps or (self.narrow and len(layers) == 1), dict[int, Tensor]()

    def block(self, b: int) -> Tensor:
        """Rows of a block, ``(n, positions, C)``, rounded to 16 bits where that costs nothing."""
        if b in self._kept:
            return self._kept[b]
        found = self.precise_block(b).bfloat16() if self.narrow else self.precise_block(b)
        if self._keeps:
            self._kept[b] = found
        return found

    def precise_block(self, b: int) -> Tensor:
        """Rows of a block in the precision of the features."""
        width = self.shape[1]
        found = self._rows[0][b].new_empty(*self._rows[0][b].shape[:2], len(self.offset))
        for k, (parts, mean, scale) in enumerate(zip(self._rows, self._means, self.scales.tolist())):
            own, first = found[:, :, k * width : (k + 1) * width], mean.to(parts[b])
            torch.sub(parts[b], first, out=own).sub_((mean - first.double()).to(first)).mul_(scale)
        if self._silent.any():
            found[:, :, self._silent.to(found.device)] = 0
        return found


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the products of the channels of two sides."""
    if left.dtype == torch.bfloat16:  # products are rounded too, but there are many, so errors average out
        for u, v in zip(left.split(_ROWS), right.split(_ROWS)):
            total += u.mT @ v
    elif left.dtype == total.dtype:
        total.addmm_(left.mT, right)
    else:
        total += left.mT @ right


class Table:
    """Products of the channels of two stacks by fold and part of the positions, and after shuffles."""

    def __init__(
        self, x: Stack, y: Stack, how: How, blocks: Sequence[int], shuffles: tuple[int, int], room: dict[Any, Tensor]
    ) -> None:
        self.x, self.y, self._exact = x, y, how.draws is not None
        self.rounded = x.narrow and y.narrow
        c, d = prod(x.shape), prod(y.shape)
        self._each = min(x.positions, y.positions)
        self.rows = sum(blocks) * self._each
        self.unseen = 0.0 if self._exact else 1 - self._each / max(1, x.every)
        self.parts = min(_PARTS, self._each) if self.unseen > 0 else 1
        folds = folds_of(blocks, max(2, min(_FOLDS if how.intervals else 2, _TABLE // (self.parts * c * d))))
        self.block_of = torch.tensor([b for b, some in enumerate(folds) for _ in some])
        self._wide, self._device = torch.float64 if self._exact else x.dtype, x.device
        shape = len(self.block_of), self.parts, c, d
        if shape not in room:  # allocating memory costs more than writing to it
            room.clear()
            room[shape] = torch.empty(shape, dtype=self._wide, device=self._device)
        self.cross = room[shape].zero_()
        drawn = torch.empty(0) if how.draws is None else how.draws.permutations
        count = len(drawn) if self._exact else shuffles[0] if how.shuffled else 0
        shuffled = torch.zeros(count, c, d, dtype=self._wide, device=self._device)
        at, generator = 0, torch.Generator().manual_seed(shuffles[1])
        kind = (*self.cross.shape[:2], self._each)
        sized = lambda side: torch.zeros(*kind[:2], prod(side.shape), dtype=torch.float64, device=self._device)
        new = {side: sized(side) for side in dict.fromkeys((x, y)) if kind not in side.squares}
        for b, some in enumerate(folds):
            left, right = (side.block(b).to(self._device)[:, : self._each] for side in (x, y))
            if x.narrow != y.narrow:
                left, right = left.to(self._wide), right.to(self._wide)
            for fold in some:
                self._add_fold(at, left[fold], right[fold], {side: squares[at] for side, squares in new.items()})
                at += 1
            if count and not x.centred:  # so that large means cost no digits
                left, right = (z - side.offset.to(z) for z, side in ((left, x), (right, y)))
            for s in range(count):
                order = drawn[s] if self._exact else torch.randperm(len(left), generator=generator)
                _add_product(shuffled[s], left.flatten(0, 1), right[order.to(self._device)].flatten(0, 1))
        shuffled = shuffled if self.rounded else shuffled.double()
        shuffled += self.rows * torch.outer(x.offset, y.offset.to(x.offset.device))
        self.cross, self.shuffled = self.cross.cpu(), self._apart(shuffled.cpu())
        for side, squares in new.items():  # only when complete: other threads read them
            side.squares[kind] = squares
        self.squares = [side.squares[kind].cpu().unflatten(2, side.shape) for side in (x, y)]  # (F, H, L, C)
        self.total = self._sum(torch.ones(self.cross.shape[:2]))
        self._halves: dict[tuple[str, int], Tensor] = {}

    def _add_fold(self, at: int, left: Tensor, right: Tensor, squares: dict[Stack, Tensor]) -> None:
        """Add the products of a fold and, where not known yet, the squares of a side's channels, by part."""
        height = max(1, _NUMBERS // (self._each * max(left.shape[2], right.shape[2]))) if self._exact else len(left)
        for start, h in product(range(0, len(left), height), range(self.parts)):
            u, v = (side[start : start + height, h :: self.parts].flatten(0, 1) for side in (left, right))
            u, v = (u, v) if self.rounded else (u.to(self._wide), v.to(self._wide))
            _add_product(self.cross[at, h], u, v)
            for side, sums in squares.items():
                sums[h] += (
                    torch.linalg.vector_norm(u if side is self.x else v, dim=0, dtype=self._wide).double().square()
                )

    def _apart(self, cross: Tensor) -> Tensor:
        """Products ``(..., L_a C, L_b C')`` as those of all pairs of layers, ``(..., L_a L_b, C, C')``."""
        return cross.unflatten(-1, self.y.shape).unflatten(-3, self.x.shape).transpose(-2, -3).flatten(-4, -3)

    def gained(self, pairs: Tensor, maps: Tensor) -> Tensor:
        """Gain of each fold and part under maps ``(k, C, C')`` of some pairs of layers: ``(F, H, k)``."""
        (c, d), maps = (side.shape[1] for side in (self.x, self.y)), maps.to(self.cross.dtype)
        corners = ((k // self.y.shape[0] * c, k % self.y.shape[0] * d) for k in pairs.tolist())
        cells = (self.cross[:, :, i : i + c, j : j + d] for i, j in corners)
        return torch.stack([torch.tensordot(cell, one, 2) for cell, one in zip(cells, maps)], 2).double()

    def _sum(self, weights: Tensor) -> Tensor:
        """Sum of the products over folds and parts, with weights ``(F, H)``."""
        every = self.cross.flatten(0, 1).flatten(1)  # read in place: halves would be large copies
        total = (weights.to(every).view(1, -1) @ every).view(self.cross.shape[2:])
        return self._apart(total if self.rounded else total.double())

    def half(self, of: str, which: int) -> Tensor:
        """Sum of the products over every other fold, or over every other part of the positions."""
        if (of, which) not in self._halves:
            chosen = torch.zeros(self.cross.shape[:2])
            (chosen.T if of == "parts" else chosen)[which::2] = 1
            self._halves[of, which] = self._sum(chosen)
        return self._halves[of, which]

    def precise(self, i: int, j: int) -> tuple[Tensor, list[Tensor]]:
        """Products and norms of a pair in float64: near 1 a score is as rough as the root of their rounding."""
        sides = [(s, slice(k * s.shape[1], (k + 1) * s.shape[1])) for s, k in ((self.x, i), (self.y, j))]
        cross, squares = torch.zeros((), dtype=torch.float64), [torch.zeros((), dtype=torch.float64)] * 2
        for b in range(int(self.block_of.max()) + 1):
            u, v = (s.precise_block(b)[:, : self._each, own].double().flatten(0, 1).cpu() for s, own in sides)
            cross, squares = cross + u.mT @ v, [s + z.square().sum(0) for s, z in zip(squares, (u, v))]
        return cross, [s.sqrt() for s in squares]
