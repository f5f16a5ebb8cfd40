"""Blocks of tensors in which every dimension carries one leaf: the form in which the group acts.

Sums (concatenated axes) cut a tensor into pieces, and products (heads x head dimension) split an axis into factors.
The resulting blocks carry one space, or none, along each dimension.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import torch
from torch import Tensor

from ..groups import Element
from .spaces import Axis, Fixed, Layout, Leaf, Part, Product, Space, Sum, axis_size

_PIECE = 1 << 22  # entries that are multiplied at once


@dataclass(frozen=True, eq=False)
class Block:
    """One piece of a tensor."""

    rows: tuple[Tensor | None, ...]  # For each tensor axis: the rows of the piece, or ``None`` for all in order
    leaves: tuple[Leaf | Fixed, ...]  # What each dimension of the piece carries

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions of the piece."""
        return tuple(leaf.size for leaf in self.leaves)

    @cached_property
    def spaces(self) -> tuple[str | None, ...]:
        """For each dimension the name of its space, or ``None`` where it is fixed."""
        return tuple(leaf.space if isinstance(leaf, Leaf) else None for leaf in self.leaves)

    @cached_property
    def carried(self) -> tuple[tuple[int, Leaf], ...]:
        """The dimensions that carry a space, with what they carry."""
        return tuple((dim, leaf) for dim, leaf in enumerate(self.leaves) if isinstance(leaf, Leaf))

    @cached_property
    def _range(self) -> tuple[slice, ...] | None:
        """The rows of every axis as a slice, if they are contiguous on all axes."""
        if any(r is not None and not bool((r.diff() == 1).all()) for r in self.rows):
            return None
        return tuple(slice(None) if r is None else slice(int(r[0]), int(r[-1]) + 1) for r in self.rows)

    def read(self, tensor: Tensor) -> Tensor:
        """The piece as a tensor with one dimension per leaf (a view if the rows allow it)."""
        if self._range is not None:
            return tensor[self._range].reshape(self.shape)
        for dim, rows in enumerate(self.rows):
            if rows is not None:
                tensor = tensor.index_select(dim, rows.to(tensor.device))
        return tensor.reshape(self.shape)

    def write(self, tensor: Tensor, piece: Tensor) -> Tensor:
        """``tensor`` with the piece replaced: in place if the piece is only some rows, else ``piece`` reshaped."""
        if all(rows is None for rows in self.rows):
            return piece.reshape(tensor.shape)
        if self._range is not None:
            tensor[self._range] = piece.reshape(tensor[self._range].shape)
            return tensor
        open_mesh = tuple(
            (torch.arange(n) if r is None else r).to(tensor.device).reshape(-1, *[1] * (tensor.ndim - dim - 1))
            for dim, (r, n) in enumerate(zip(self.rows, tensor.shape))
        )
        tensor[open_mesh] = piece.reshape([len(index) for index in open_mesh])
        return tensor


@lru_cache(maxsize=4096)
def blocks(layout: Layout) -> tuple[Block, ...]:
    """The pieces of a tensor, covering it exactly once.

    Examples:
        >>> from intertwine.symmetry.spaces import Part, Sum
        >>> axis = Sum((Part(((0, 2),), Leaf("a", 2)), Part(((2, 5),), Fixed(3, "input"))))
        >>> [block.spaces for block in blocks(Layout((axis, Fixed(4, "output"))))]
        [('a', None), (None, None)]
    """
    every = [_rows(0, size) for size in layout.shape]
    pieces = []
    for choice in product(*map(_segments, layout.axes)):
        rows = tuple(None if torch.equal(r, all_rows) else r for (r, _), all_rows in zip(choice, every))
        pieces.append(Block(rows, tuple(leaf for _, leaves in choice for leaf in leaves)))
    return tuple(pieces)


@dataclass(frozen=True, eq=False)
class Member:
    """One dimension of one block of a tensor that carries a space."""

    space: Space
    tensor: str
    block: Block
    dim: int
    leaf: Leaf  # How the dimension carries the space

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of the space's parents in the block, then its own."""
        return tuple(parent_dims(self.space, self.dim, self.block.spaces))

    @cached_property
    def row(self) -> tuple[int, ...]:
        """Parity of each sign generator of the space along this dimension."""
        return tuple(e % 2 for e in self.leaf.sign)

    def view(self, block: Tensor) -> Tensor:
        """A tensor of the block's shape, viewed as slices ``(p..., n, rest)`` of the units."""
        return unit_rows(block, self.dims)

    def read(self, state: Mapping[str, Tensor]) -> Tensor:
        """The slices of the units in a network."""
        return self.view(self.block.read(state[self.tensor]))


def carrying(layouts: Mapping[str, Layout], space: Space) -> Iterator[Member]:
    """Every dimension that carries a space, tensor by tensor."""
    for name, layout in layouts.items():
        for block in blocks(layout) if space.name in layout.spaces else ():
            yield from (Member(space, name, block, dim, x) for dim, x in block.carried if x.space == space.name)


def align(array: Tensor, dims: Sequence[int], ndim: int) -> Tensor:
    """View ``array``, whose axes belong at ``dims``, so that it broadcasts against a tensor of ``ndim`` dimensions."""
    order = sorted(range(len(dims)), key=lambda axis: dims[axis])
    shape = [1] * ndim
    for axis in order:
        shape[dims[axis]] = array.shape[axis]
    return array.permute(order).reshape(shape)


def unit_rows(x: Tensor, dims: Sequence[int]) -> Tensor:
    """``x`` with some dimensions first, in the given order, and all others flattened into a last one."""
    x = x.permute(*dims, *(d for d in range(x.ndim) if d not in dims))
    return x.reshape(*x.shape[: len(dims)], -1)


def summed(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The sums of ``x`` over all dimensions except ``dims``, which the result has in that order."""
    return unit_rows(x, dims).sum(-1)


def inner_products(x: Tensor, y: Tensor, dims: Sequence[int], less: Tensor | None = None) -> Tensor:
    """Sums of ``x y``, or ``x (y - less)``, over some dimensions, in float64, without a temporary of their shape."""
    if x.numel() <= _PIECE:
        product = x * (y if less is None else y - less)
        return product.sum(tuple(dims), dtype=torch.float64) if dims else product.double()
    cut = max(range(x.ndim), key=lambda d: x.shape[d])
    some = max(1, _PIECE * x.shape[cut] // x.numel())
    pairs = zip(x.split(some, cut), y.split(some, cut))
    if less is None:
        products = (p * q for p, q in pairs)
    else:
        products = (p * (q - r) for (p, q), r in zip(pairs, less.split(some, cut)))
    sums = [p.sum(tuple(dims), dtype=torch.float64) if dims else p.double() for p in products]
    if cut in dims:
        return torch.stack(sums).sum(0)
    return torch.cat(sums, sum(d not in dims for d in range(cut)))


def map_leaves(layout: Layout, change: Callable[[Leaf], Leaf | Fixed]) -> Layout:
    """The layout with every leaf replaced by the result of ``change``."""

    def mapped(axis: Axis) -> Axis:
        if isinstance(axis, Product):
            return Product(tuple(mapped(f) for f in axis.factors))
        if isinstance(axis, Sum):
            return Sum(tuple(Part(part.ranges, mapped(part.axis)) for part in axis.parts))
        return change(axis) if isinstance(axis, Leaf) else axis

    return Layout(tuple(mapped(axis) for axis in layout.axes))


def _segments(axis: Axis) -> list[tuple[Tensor, tuple[Leaf | Fixed, ...]]]:
    """Rows of each segment of the axis, with the leaves whose row-major product they are."""
    if isinstance(axis, Leaf | Fixed):
        return [(_rows(0, axis.size), (axis,))]
    if isinstance(axis, Product):
        found: list[tuple[Tensor, tuple[Leaf | Fixed, ...]]] = [(_rows(0, 1), ())]
        for factor in axis.factors:
            size = axis_size(factor)
            found = [
                ((outer[:, None] * size + inner).flatten(), (*leaves, *more))
                for outer, leaves in found
                for inner, more in _segments(factor)
            ]
        return found
    return [
        (torch.cat([_rows(a, b) for a, b in part.ranges])[rows], leaves)
        for part in axis.parts
        for rows, leaves in _segments(part.axis)
    ]


def _rows(start: int, stop: int) -> Tensor:
    return torch.arange(start, stop, device="cpu")  # blocks are cached, so they ignore a ``torch.device`` context


def permuted(x: Tensor, spaces: Sequence[str | None], elements: Mapping[str, Element]) -> Tensor:
    """Gather every dimension of ``x`` by the permutation of the space that it carries, outer spaces first.

    ``spaces`` names one for each dimension, or ``None``. Entries move bit for bit; if no unit moves, ``x`` is returned.
    """
    present = sorted({s for s in spaces if s is not None}, key=lambda s: len(elements[s].parents))
    for name in present:
        e = elements[name]
        if not e.displaced:
            continue
        index = e.permutation.to(x.device)
        for dim, space in enumerate(spaces):
            if space != name:
                continue
            if index.ndim == 1:
                x = x.index_select(dim, index)
            else:
                x = torch.take_along_dim(x, align(index, parent_dims(e, dim, spaces), x.ndim), dim)
    return x


def parent_dims(inner: Space | Element, dim: int, spaces: Sequence[str | None]) -> list[int]:
    """Block dimensions for the axes of a space's arrays: its parents' last ones before the space, then its own."""
    dims = []
    for parent in inner.parents:
        places = [d for d, s in enumerate(spaces) if s == parent]
        places = places if len(places) == 1 else [d for d in places if d < dim]
        if not places:
            raise ValueError(f"parent must occur before {spaces[dim]!r}, or once. Got {parent!r} in {spaces}.")
        dims.append(places[-1])
    return [*dims, dim]
