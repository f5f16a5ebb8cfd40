"""Units of a space along the axes of tensors: which position belongs to which unit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..symmetry import Layout, Leaf, Space
from ..symmetry.blocks import align, blocks
from ..symmetry.description import Description
from ..symmetry.spaces import axis_size, spaces_of


@dataclass(frozen=True)
class Held:
    """One tensor axis that holds the units of a space."""

    tensor: str  # Name of a parameter or buffer
    axis: int  # Its axis
    block: int  # Number of positions of one unit where these lie together and the units in order, 0 otherwise
    positions: tuple[tuple[int, ...], ...] = ()  # Otherwise the positions of each unit


def carriers(sym: Description, space: Space) -> Iterator[tuple[str, int]]:
    """Every tensor axis that carries a space."""
    for name, layout in sym.layouts.items():
        for axis, along in enumerate(layout.axes):
            if space.name in spaces_of([along]):
                yield name, axis


def held(sym: Description, space: Space) -> tuple[Held, ...]:
    """Every tensor axis that carries a space, with the positions of its units."""
    return tuple(_held(sym, space, tensor, axis) for tensor, axis in carriers(sym, space))


def _held(sym: Description, space: Space, tensor: str, axis: int) -> Held:
    units = unit_numbers(sym, space, tensor, axis)
    count = int(units.max()) + 1
    block = len(units) // count
    if torch.equal(units, torch.arange(len(units)) // block):
        return Held(tensor, axis, block)
    order = units.argsort(stable=True)[int((units < 0).sum()) :]
    split = order.split(torch.bincount(units[units >= 0]).tolist())
    return Held(tensor, axis, 0, tuple(tuple(rows.tolist()) for rows in split))


def unit_numbers(
    sym: Description, space: Space, tensor: str, axis: int, kept: Callable[[Leaf], bool] = lambda leaf: True
) -> Tensor:
    """Number of the unit of each position along an axis, -1 where there is none.

    Returns:
        Units are numbered in the order of the units of the space's parents that lie on the axis, then of its own.
    """
    along = sym.layouts[tensor].axes[axis]
    found = torch.full((axis_size(along),), -1)
    for block in blocks(Layout((along,))):
        if space.name not in block.spaces:
            continue
        leaf = block.leaves[block.spaces.index(space.name)]
        if not isinstance(leaf, Leaf) or not kept(leaf):
            continue
        index = torch.zeros(block.shape, dtype=torch.int64)
        for name in (*space.parents, space.name):
            if name in block.spaces:
                at = block.spaces.index(name)
                index = index * block.shape[at] + align(torch.arange(block.shape[at]), [at], len(block.shape))
        found[slice(None) if block.rows[0] is None else block.rows[0]] = index.flatten()
    return found
