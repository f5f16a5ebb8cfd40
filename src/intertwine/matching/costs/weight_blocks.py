"""Weight blocks of two networks, grouped by the spaces they carry.

A batch norm, a bias and a first layer carry one space; a convolution between two hidden layers carries two. Small
blocks of one kind are concatenated, so that a network of hundreds of small tensors needs a few products per space.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...symmetry.blocks import Block, blocks, parent_dims, unit_rows
from ...symmetry.spaces import Leaf, Space
from ...symmetry.symmetry import Symmetry

_SMALL = 1 << 16  # entries below which blocks are copied to lie side by side

Row = tuple[int, ...]  # parity of each sign generator of a space
Both = tuple[Tensor, Tensor]  # of the network that stays, and of the one that moves


@dataclass(frozen=True, eq=False)
class Member:
    """One dimension of one block of a tensor that carries a space."""

    space: str
    tensor: str
    block: Block
    dim: int
    dims: tuple[int, ...]  # The dimensions of the space's parents in the block, then ``dim``
    row: Row  # Parity of each sign generator of the space on this dimension

    @property
    def leaf(self) -> Leaf:
        """How the dimension carries the space."""
        return dict(self.block.carried)[self.dim]

    def view(self, block: Tensor) -> Tensor:
        """A tensor of the block's shape as slices ``(p..., n, rest)`` of the units."""
        return unit_rows(block, self.dims)

    def read(self, state: Mapping[str, Tensor]) -> Tensor:
        """The slices of the units in a network."""
        return self.view(self.block.read(state[self.tensor]))


@dataclass(frozen=True, eq=False)
class Joint:
    """Blocks between the units of two spaces: ``(n, K, m)``."""

    spaces: tuple[str, str]
    rows: tuple[Row, Row]  # Parities of their signs
    a: Tensor
    b: Tensor  # Before it moves


@dataclass(frozen=True, eq=False)
class Parts:
    """All blocks of a problem by the spaces that they carry."""

    # What a space shares with no other: parities of its signs, and ``(n, K)`` of both networks
    alone: Mapping[str, list[tuple[Row, Tensor, Tensor]]]
    # Joints with the side on which the space is; not those whose other space rotates
    at: Mapping[str, list[tuple[Joint, int]]]
    members: Mapping[str, list[Member]]  # Those in neither


def members(sym: Symmetry) -> dict[str, tuple[Member, ...]]:
    """For every space the dimensions of blocks that carry it."""
    spaces = {s.name: s for s in sym.spaces}
    found: dict[str, list[Member]] = {name: [] for name in spaces}
    for name, layout in sym.layouts.items():
        for block in blocks(layout):
            for dim, leaf in block.carried:
                dims = tuple(parent_dims(spaces[leaf.space], dim, block.spaces))
                row = tuple(e % 2 for e in leaf.sign)
                found[leaf.space].append(Member(leaf.space, name, block, dim, dims, row))
    return {name: tuple(some) for name, some in found.items()}


def add_to(found: dict[Row, Tensor], row: Row, product: Tensor) -> None:
    """Add a product to those of its parities."""
    found[row] = found[row] + product if row in found else product


def cut(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], members: Mapping[str, Iterable[Member]]
) -> Parts:
    """The blocks of two networks by the spaces they carry; large ones are views where their dimensions allow it."""
    spaces = {s.name: s for s in sym.spaces}
    carried: dict[tuple[str, int], list[Member]] = {}
    for m in (m for some in members.values() for m in some):
        carried.setdefault((m.tensor, id(m.block)), []).append(m)
    singles: dict[tuple[str, Row], list[Both]] = {}
    pairs: dict[tuple[str, str, Row, Row], list[Both]] = {}
    rest: dict[str, list[Member]] = {name: [] for name in members}
    for each in carried.values():
        found = sorted(each, key=lambda m: m.dim)
        one, *more = found
        both = one.block.read(a[one.tensor]), one.block.read(b[one.tensor])
        free = not any(spaces[m.space].parents for m in found)
        if free and not more:
            singles.setdefault((one.space, one.row), []).append((one.view(both[0]), one.view(both[1])))
            continue
        joined = free and len(more) == 1 and more[0].space != one.space
        sides = _sides(spaces[one.space], spaces[more[0].space]) if joined else (False,) * len(found)
        if any(sides):
            # small ones are copied anyway: one order of the two spaces, whichever tensor reads the other
            first, second = found if both[0].numel() >= _SMALL else sorted(found, key=lambda m: m.space)
            key = (first.space, second.space, first.row, second.row)
            pairs.setdefault(key, []).append(_pair(both, first.dim, second.dim))
        for m, use in zip(found, sides):
            if not use:
                rest[m.space].append(m)
    alone: dict[str, list[tuple[Row, Tensor, Tensor]]] = {name: [] for name in members}
    for (name, row), some in singles.items():
        alone[name] += [(row, *both) for both in _grouped(some)]
    at: dict[str, list[tuple[Joint, int]]] = {name: [] for name in members}
    for (s, t, r, q), some in pairs.items():
        used = [side for side, use in enumerate(_sides(spaces[s], spaces[t])) if use]
        for x, y in _grouped(some):
            joint = Joint((s, t), (r, q), x.contiguous(), y.contiguous())
            for side in used:
                at[joint.spaces[side]].append((joint, side))
    return Parts(alone, at, rest)


def _sides(first: Space, second: Space) -> tuple[bool, ...]:
    """Each of two spaces can use their joint if the other's units only change places and signs."""
    return not second.group.mixes, not first.group.mixes


def _pair(both: Both, first: int, second: int) -> Both:
    order = [first, *(d for d in range(both[0].ndim) if d not in (first, second)), second]
    one, other = (x.permute(order).reshape(x.shape[first], -1, x.shape[second]) for x in both)
    return one, other


def _grouped(some: list[Both]) -> list[Both]:
    """Large blocks one by one, all small ones side by side."""
    small = [both for both in some if both[0].numel() < _SMALL]
    found = [both for both in some if both[0].numel() >= _SMALL]
    if len(small) > 1:
        small = [(torch.cat([one for one, _ in small], 1), torch.cat([other for _, other in small], 1))]
    return [*found, *small]
