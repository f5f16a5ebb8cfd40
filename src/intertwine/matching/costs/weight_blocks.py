"""Weight blocks of two networks, grouped by the spaces they carry.

A batch norm, a bias and a first layer carry one space; a convolution between two hidden layers carries two. Small
blocks of one kind are concatenated, so that a network of hundreds of small tensors needs a few products per space.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...symmetry.blocks import Block, blocks, parent_dims
from ...symmetry.spaces import Fixed, Leaf, Space
from ...symmetry.symmetry import Symmetry

KERNEL = 4  # positions beside the units of two spaces from which on a block is a kernel

Row = tuple[int, ...]  # parity of each sign generator of a space
Both = tuple[Tensor, Tensor]  # of the network that stays, and of the one that moves
_SMALL = 1 << 16  # entries below which blocks are copied to lie side by side


@dataclass(frozen=True, eq=False)
class Member:
    """One dimension of one block of a tensor that carries a space.

    Attributes:
        space: Name of the space.
        tensor: Name of the tensor.
        block: The block.
        dim: Its dimension.
        dims: The dimensions of the space's parents in the block, then ``dim``.
        row: Parity of each sign generator of the space on this dimension.
    """

    space: str
    tensor: str
    block: Block
    dim: int
    dims: tuple[int, ...]
    row: tuple[int, ...]

    @property
    def leaf(self) -> Leaf:
        """How the dimension carries the space."""
        return dict(self.block.carried)[self.dim]

    def view(self, block: Tensor) -> Tensor:
        """A tensor of the block's shape as slices ``(p..., n, rest)`` of the units."""
        order = [*self.dims, *(d for d in range(block.ndim) if d not in self.dims)]
        x = block.permute(order)
        return x.reshape(*x.shape[: len(self.dims)], -1)


@dataclass(frozen=True, eq=False)
class Alone:
    """Everything that one space shares with no other: ``(n, K)``."""

    space: str
    row: Row
    a: Tensor
    b: Tensor


@dataclass(frozen=True, eq=False)
class Joint:
    """Blocks between the units of two spaces: ``(n, K, m)``."""

    spaces: tuple[str, str]  # The two spaces
    rows: tuple[Row, Row]  # Parities of their signs
    sides: tuple[bool, bool]  # Whether each space uses these products: one whose neighbour rotates does not
    kernels: bool  # Whether the blocks are kernels, with many positions each
    a: Tensor  # Blocks of the network that stays
    b: Tensor  # Those of the network that moves, before it does

    @cached_property
    def squares(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Sums of squares over the neighbour's units, for each side and network, ``(n, K)`` and ``(m, K)``."""
        ours, theirs = (x * x for x in (self.a, self.b))
        return (ours.sum(2), theirs.sum(2)), (ours.sum(0).mT, theirs.sum(0).mT)


@dataclass(frozen=True, eq=False)
class Piece:
    """One block that is read where it lies.

    It carries no space at all, more than two, one twice, or one inside another.
    """

    tensor: str
    block: Block


@dataclass(frozen=True, eq=False)
class Parts:
    """All blocks of a problem, each once."""

    alone: tuple[Alone, ...]  # Those of one space
    joints: tuple[Joint, ...]  # Those of two
    pieces: tuple[Piece, ...]  # All others
    # For every space the members that are in neither of the first two, or may not be used from there
    members: Mapping[str, tuple[Member, ...]]

    @cached_property
    def at(self) -> dict[str, tuple[tuple[Joint, int], ...]]:
        """For every space its joints, each with the side on which the space is."""
        found: dict[str, list[tuple[Joint, int]]] = {name: [] for name in self.members}
        for joint in self.joints:
            for side, space in enumerate(joint.spaces):
                if joint.sides[side]:
                    found[space].append((joint, side))
        return {name: tuple(some) for name, some in found.items()}


def members(sym: Symmetry) -> dict[str, tuple[Member, ...]]:
    """For every space the dimensions of blocks that carry it."""
    spaces = {s.name: s for s in sym.spaces}
    found: dict[str, list[Member]] = {name: [] for name in spaces}
    for name, layout in sym.layouts.items():
        for block in blocks(layout):
            for dim, leaf in enumerate(block.leaves):
                if isinstance(leaf, Fixed):
                    continue
                dims = tuple(parent_dims(spaces[leaf.space], dim, block.spaces))
                row = tuple(e % 2 for e in leaf.sign)
                found[leaf.space].append(Member(leaf.space, name, block, dim, dims, row))
    return {name: tuple(some) for name, some in found.items()}


def cut(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], members: Mapping[str, Iterable[Member]]
) -> Parts:
    """Sort the blocks of two networks by the spaces that they carry.

    Returns:
        The parts. Large blocks are views where their dimensions allow it, so that linear layers are not copied.
    """
    spaces = {s.name: s for s in sym.spaces}
    carried: dict[tuple[str, int], list[Member]] = {}
    for m in (m for some in members.values() for m in some):
        carried.setdefault((m.tensor, id(m.block)), []).append(m)
    pieces = [Piece(name, x) for name in sym.layouts if name in a for x in blocks(sym.layouts[name]) if not x.moved]
    singles: dict[tuple[str, Row], list[Both]] = {}
    pairs: dict[tuple[str, str, Row, Row, bool], list[Both]] = {}
    rest: dict[str, list[Member]] = {name: [] for name in members}
    for some in carried.values():
        found = sorted(some, key=lambda m: m.dim)
        one, *more = found
        both = one.block.read(a[one.tensor]), one.block.read(b[one.tensor])
        free = not any(spaces[m.space].parents for m in found)
        if free and not more:
            singles.setdefault((one.space, one.row), []).append(_single(both, one.dim))
            continue
        other = more[0] if free and len(more) == 1 and more[0].space != one.space else None
        sides = (False, False) if other is None else _sides(spaces[one.space], spaces[other.space])
        if other is not None and any(sides):
            first, second = one, other
            if both[0].numel() < _SMALL:  # copied anyway: one order of the two spaces, whichever tensor reads the other
                first, second = sorted((one, other), key=lambda m: m.space)
            positions = both[0].numel() // max(both[0].shape[one.dim] * both[0].shape[other.dim], 1)
            key = (first.space, second.space, first.row, second.row, positions >= KERNEL)
            pairs.setdefault(key, []).append(_pair(both, first.dim, second.dim))
        else:
            pieces.append(Piece(one.tensor, one.block))
        for m, use in zip(found, sides if other is not None else (False,) * len(found)):
            if not use:
                rest[m.space].append(m)
    return Parts(
        tuple(Alone(*key, *_side_by_side(both)) for key, some in singles.items() for both in _grouped(some)),
        tuple(
            Joint((s, t), (r, q), _sides(spaces[s], spaces[t]), kernels, *map(Tensor.contiguous, _side_by_side(both)))
            for (s, t, r, q, kernels), some in pairs.items()
            for both in _grouped(some)
        ),
        tuple(pieces),
        {name: tuple(some) for name, some in rest.items()},
    )


def _sides(first: Space, second: Space) -> tuple[bool, bool]:
    """Each of two spaces can use their joint if the other's units only change places and signs."""
    return not second.group.mixes, not first.group.mixes


def _single(both: Both, dim: int) -> Both:
    one, other = (x.movedim(dim, 0).reshape(x.shape[dim], -1) for x in both)
    return one, other


def _pair(both: Both, first: int, second: int) -> Both:
    order = [first, *(d for d in range(both[0].ndim) if d not in (first, second)), second]
    one, other = (x.permute(order).reshape(x.shape[first], -1, x.shape[second]) for x in both)
    return one, other


def _grouped(some: list[Both]) -> list[list[Both]]:
    """Large blocks one by one, all small ones together."""
    small = [both for both in some if both[0].numel() < _SMALL]
    return [*([both] for both in some if both[0].numel() >= _SMALL), *([small] if small else [])]


def _side_by_side(some: list[Both]) -> Both:
    if len(some) == 1:
        return some[0]
    return torch.cat([one for one, _ in some], 1), torch.cat([other for _, other in some], 1)
