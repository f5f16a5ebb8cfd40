"""Distances of aligned networks and cosines of matched units, in the coordinates that were compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._words import counted
from ...symmetry import Symmetry, Transformation
from ...symmetry.action import moved, transform_block
from ...symmetry.blocks import Block, blocks, parent_dims
from ...symmetry.spaces import Layout
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem


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
    if not {"scale", "linear"} & set(networks.kinds):
        return streamed_agreement(networks.stated, g)
    left, right = networks.balanced
    before, after = (
        right.state if h.is_identity(0.0) else {**right.state, **moved(left.sym, h, right.state)}
        for h in (left.to @ ~right.to, left.to @ g @ ~right.to)
    )
    sums = _Sums(networks.sym)
    for name, layout in left.sym.layouts.items():
        for block in blocks(layout):
            sums.add(block, *(block.read(state[name]) for state in (left.state, before, after)))
    return sums.cosines(), *sums.distances()


def streamed_agreement(stated: Problem, g: Transformation) -> tuple[dict[str, Tensor], float, float]:
    """The same by permutations and signs, reading one tensor of each network at a time."""
    sums = _Sums(stated.sym)
    for name, layout in stated.sym.layouts.items():
        if name in stated.a:
            _add_tensor(sums, layout, stated.a[name], stated.b[name], g)
    return sums.cosines(), *sums.distances()


def _add_tensor(sums: _Sums, layout: Layout, ours: Tensor, theirs: Tensor, g: Transformation) -> None:
    for block in blocks(layout):
        x, y = block.read(ours), block.read(theirs)
        sums.add(block, x, y, transform_block(y, block, g) if block.moved else y)


@dataclass
class _Sums:
    """Sums over all tensors: of products for every unit, of squares of all differences."""

    sym: Symmetry
    size: float = 0.0
    before: float = 0.0
    after: float = 0.0
    units: dict[str, list[Tensor]] = field(default_factory=dict)  # <a, b>, <a, a>, <b, b>

    def add(self, block: Block, x: Tensor, before: Tensor, after: Tensor) -> None:
        """Add one block as it is in ``a``, in ``b``, and in the moved ``b``."""
        gap = _square(x - before)
        self.size += _square(x)
        self.before += gap
        self.after += gap if after is before else _square(x - after)
        products = (x * after, x * x, after * after) if block.moved else ()
        for dim, leaf in block.carried:
            dims = parent_dims(self.sym.space(leaf.space), dim, block.spaces)
            sums = [_summed(p, dims) for p in products]
            known = self.units.get(leaf.space)
            self.units[leaf.space] = sums if known is None else [old + new for old, new in zip(known, sums)]

    def cosines(self) -> dict[str, Tensor]:
        """The cosine of every unit with its partner."""
        nothing = [torch.zeros(())] * 3
        found = {s.name: self.units.get(s.name, nothing) for s in self.sym.spaces}
        return {name: inner / (ours * theirs).sqrt() for name, (inner, ours, theirs) in found.items()}

    def distances(self) -> tuple[float, float]:
        """The distances before and after, relative to ``|a|``."""
        before, after = ((gap / self.size) ** 0.5 if self.size else 0.0 for gap in (self.before, self.after))
        return before, after


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
