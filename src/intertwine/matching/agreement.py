"""Distances of aligned networks and cosines of matched units, in the coordinates that were compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._words import counted
from ..groups import Element
from ..symmetry import Symmetry, Transformation
from ..symmetry.action import moved, transform_block
from ..symmetry.blocks import Block, blocks
from ..symmetry.parent_axes import parent_dims
from .coordinates.networks import Networks
from .coordinates.problem import Problem
from .costs.weight_blocks import Row

Carried = list[tuple[str, list[int]]]  # spaces, and the dimensions of their parents and their own
Compared = tuple[Tensor, Tensor, Tensor, Carried]  # a block of ``a``, of ``b``, and of the moved ``b``


def agreement(networks: Networks, g: Transformation) -> tuple[dict[str, Tensor], float, float]:
    """Compare ``a`` with the moved ``b`` in the coordinates in which ``a`` is balanced.

    Where scales and bases are not searched, weights are compared as they are.

    Args:
        networks: The networks.
        g: The element that moves ``b``.

    Returns:
        By space the cosine of every unit with its partner, ``(p..., n)``, NaN where one has no weights; and the
        distances ``|a - b| / |a|`` before and after.
    """
    sums = _Sums(networks.sym)
    for compared in (
        _balanced(networks, g) if {"scale", "linear"} & set(networks.kinds) else _stored(networks.stated, g)
    ):
        sums.add(*compared)
    return sums.cosines(), *sums.distances()


def streamed_agreement(stated: Problem, g: Transformation) -> tuple[dict[str, Tensor], float, float]:
    """The same by permutations and signs, reading one tensor of each network at a time."""
    sums = _Sums(stated.sym)
    for name in stated.sym.layouts:
        _add_tensor(sums, stated, g, name)
    return sums.cosines(), *sums.distances()


@dataclass
class _Sums:
    """Sums over all tensors: of products for every unit, of squares of all differences."""

    sym: Symmetry
    size: float = 0.0
    before: float = 0.0
    after: float = 0.0
    units: dict[str, list[Tensor]] = field(default_factory=dict)  # <a, b>, <a, a>, <b, b>

    def add(self, x: Tensor, before: Tensor, after: Tensor, carried: Carried) -> None:
        """Add one block as it is in ``a``, in ``b``, and in the moved ``b``."""
        self.size += _square(x)
        self.before += _square(x - before)
        self.after += _square(x - after) if after is not before else _square(x - before)
        products = (x * after, x * x, after * after) if carried else ()
        for space, dims in carried:
            sums = [_summed(p, dims) for p in products]
            known = self.units.get(space)
            self.units[space] = sums if known is None else [old + new for old, new in zip(known, sums)]

    def cosines(self) -> dict[str, Tensor]:
        """The cosine of every unit with its partner."""
        nothing = [torch.zeros(())] * 3
        found = {s.name: self.units.get(s.name, nothing) for s in self.sym.spaces}
        return {name: inner / (ours * theirs).sqrt() for name, (inner, ours, theirs) in found.items()}

    def distances(self) -> tuple[float, float]:
        """The distances before and after, relative to ``|a|``."""
        before, after = ((gap / self.size) ** 0.5 if self.size else 0.0 for gap in (self.before, self.after))
        return before, after


def _balanced(networks: Networks, g: Transformation) -> Iterator[Compared]:
    """Blocks in balanced coordinates, batch norms folded."""
    left, right = networks.balanced
    before, after = (
        right.state if h.is_identity(0.0) else {**right.state, **moved(left.sym, h, right.state)}
        for h in (left.to @ ~right.to, left.to @ g @ ~right.to)
    )
    for name, layout in left.sym.layouts.items():
        for block in blocks(layout):
            x, y, z = (block.read(state[name]) for state in (left.state, before, after))
            yield x, y, z, _carried(left.sym, block)


def _stored(stated: Problem, g: Transformation) -> Iterator[Compared]:
    """Blocks as they are stored, moved by permutations and signs."""
    for alone in stated.parts.alone:
        yield alone.a, alone.b, _placed(alone.b, 0, g[alone.space], alone.row), [(alone.space, [0])]
    for joint in stated.parts.joints:
        (s, t), (r, q) = joint.spaces, joint.rows
        yield joint.a, joint.b, _placed(_placed(joint.b, 0, g[s], r), 2, g[t], q), [(s, [0]), (t, [2])]
    for piece in stated.parts.pieces:
        yield _compared(stated, g, piece.block, stated.a[piece.tensor], stated.b[piece.tensor])


def _add_tensor(sums: _Sums, stated: Problem, g: Transformation, name: str) -> None:
    ours, theirs = stated.a[name], stated.b[name]
    for block in blocks(stated.sym.layouts[name]):
        sums.add(*_compared(stated, g, block, ours, theirs))


def _compared(stated: Problem, g: Transformation, block: Block, ours: Tensor, theirs: Tensor) -> Compared:
    x, y = block.read(ours), block.read(theirs)
    return x, y, transform_block(y, block, g) if block.moved else y, _carried(stated.sym, block)


def _carried(sym: Symmetry, block: Block) -> Carried:
    spaces = {s.name: s for s in sym.spaces}
    return [(s, parent_dims(spaces[s], d, block.spaces)) for d, s in enumerate(block.spaces) if s is not None]


def _placed(x: Tensor, dim: int, e: Element, row: Row) -> Tensor:
    """A block with the units along one dimension in their places, with their signs."""
    index = e.permutation.to(x.device)
    x = x.gather(dim, index.expand(*x.shape[:-1], -1)) if dim else x.index_select(dim, index)
    for parity, sign in zip(row, e.signs):
        if parity and bool((sign < 0).any()):
            x = x * sign.to(x).reshape(-1, *[1] * (x.ndim - 1 - dim))
    return x


def _summed(x: Tensor, dims: list[int]) -> Tensor:
    rest = [d for d in range(x.ndim) if d not in dims]
    kept = sorted(dims)
    return (x.sum(rest) if rest else x).permute([kept.index(d) for d in dims])


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) ** 2


def unweighted(quality: Mapping[str, Tensor]) -> list[str]:
    """A note for each space with units whose weights are all zero in one of the networks."""
    counts = {name: int(cosines.isnan().sum()) for name, cosines in quality.items()}
    return [
        f"{counted(n, 'unit')} of {name} without weights in one network: any match is as good"
        for name, n in counts.items()
        if n
    ]
