"""Features of the units of every space, read off one tensor at a time, and their similarity in two networks.

Spaces are taken in order, parents before the spaces inside them. A tensor shows its units along one space; its axes of
earlier spaces, and those that are fixed, are features in place, while axes of later spaces are summed out. So what is
said of a space depends on how it and the earlier ones are ordered, and on no other: then the spaces' p-values are
independent where the networks are.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..symmetry import Symmetry
from ..symmetry.blocks import Block, blocks, parent_dims
from ..symmetry.spaces import Space

_ROUNDS = 3  # of columns and rows brought to one size in turn


@dataclass(frozen=True, eq=False)
class View:
    """Units of one space along one axis of one block of a tensor."""

    space: str  # Name of the space
    block: Block  # The block
    dims: tuple[int, ...]  # Its dimensions that carry the space's parents and then its units
    summed: tuple[int, ...]  # Dimensions of later spaces
    square: int | None  # A dimension of an earlier space with as many units, or ``None``

    def rows(self, tensor: Tensor) -> Tensor:
        """Features ``(P, n, d)`` of ``n`` units for each of ``P`` units of the parents."""
        x = self.block.read(tensor)
        if self.summed:
            x = x.float().square().sum(self.summed, keepdim=True).sqrt()
        rest = [d for d in range(x.ndim) if d not in self.dims]
        x = x.permute(*self.dims, *rest)
        return x.reshape(-1, x.shape[len(self.dims) - 1], x.shape[len(self.dims) :].numel())

    def trace(self, tensor: Tensor) -> Tensor | None:
        """Mean over all other axes of the block as a square matrix, units along rows, where it is square."""
        if self.square is None or len(self.dims) > 1:
            return None
        x = self.block.read(tensor).float()
        rest = [d for d in range(x.ndim) if d not in (self.dims[-1], self.square)]
        x = x.abs().sum(rest) if rest else x.abs()
        return x if self.dims[-1] < self.square else x.mT


def ordered_spaces(sym: Symmetry) -> list[Space]:
    """Spaces whose units permutations may move, parents before the spaces inside them."""
    left = [s for s in sym.spaces if s.size > 1 and s.group.permutes]
    placed: list[Space] = []
    while left:
        waiting = {s.name for s in left}
        ready = [s for s in left if not waiting & {*s.parents}]
        placed += ready
        left = [s for s in left if s not in ready]
    return placed


def views(sym: Symmetry, name: str, order: Collection[str]) -> Iterator[View]:
    """Views of one tensor, of the space that comes last in the order first.

    Yields:
        A view for every axis of every block that carries a space; blocks that hold a parent twice have none.
    """
    places = {space: k for k, space in enumerate(order)}
    spaces = {s.name: s for s in sym.spaces}
    for block in blocks(sym.layouts[name]):
        carried = [(places[s], d, s) for d, s in enumerate(block.spaces) if s in places]
        for place, dim, space in sorted(carried, reverse=True):
            if any(block.spaces.count(parent) != 1 for parent in spaces[space].parents):
                continue
            dims = parent_dims(spaces[space], dim, block.spaces)
            later = [d for k, d, _ in carried if k >= place and d not in dims]
            same = [d for k, d, _ in carried if k < place and block.shape[d] == block.shape[dim] and d not in dims]
            yield View(space, block, tuple(dims), tuple(later), same[0] if same and not later else None)


def similarity(x: Tensor, y: Tensor) -> Tensor:
    """Likeness of units, comparable between tensors: cosines less the means of their row and column.

    Rows and columns are first brought to one size in turn, so that positive scales of units change nothing. Single
    numbers are compared by their distance.

    Args:
        x: Features ``(P, n, d)`` of one network.
        y: The same of the other.

    Returns:
        ``(P, n, n)``, of root mean square 1, or all zero where units cannot be told apart.
    """
    x, y = x.float(), y.float()
    if x.shape[-1] == 1:
        x, y = (z / _size(z, -2) for z in (x, y))
        found = -(x - y.mT).abs()
    else:
        found = _levelled(x) @ _levelled(y).mT
    found = found - found.mean(-1, keepdim=True) - found.mean(-2, keepdim=True) + found.mean((-2, -1), keepdim=True)
    size = found.square().mean().sqrt()
    return found / size if float(size) > 1e-6 else torch.zeros_like(found)


def _levelled(x: Tensor) -> Tensor:
    for _ in range(_ROUNDS):
        x = x / _size(x, -2)
        x = x / (_size(x, -1) * x.shape[-1] ** 0.5)
    return x


def _size(x: Tensor, dim: int) -> Tensor:
    return x.square().mean(dim, keepdim=True).sqrt().clamp_min(1e-30)
