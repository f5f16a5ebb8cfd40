"""Gauss-Newton steps for the log scales of all spaces at once.

Where one tensor joins two spaces, fits of one space after the other hardly move. The normal equations hold one block
for every two spaces that share a tensor; they are solved by preconditioned conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.blocks import Block, align, blocks
from ..symmetry.parent_axes import parent_dims
from ..symmetry.spaces import Leaf

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry

__all__ = ["ScaleSystem"]

_STEPS = 12  # Gauss-Newton steps: each leaves a hundredth of an error that scales explain, and rounding is 1e-16
_ITERATIONS = 200  # of conjugate gradients in each, a bound for systems that are nearly singular
_FORCING = 1e-2  # fall of the gradient's norm that ends them: the next step begins from new curvatures anyway
_GAIN = 1e-3  # share of the error that a step must explain to be followed by another: noise stays, copies lose all
_LEAP = 1.0  # largest change of a log scale in one step, beyond which the linear model is wrong
_SETTLED = 1e-13  # steps below it are rounding

Key = tuple[tuple[str, tuple[object, ...]], ...]


@dataclass(frozen=True)
class _Site:
    """One dimension of a sum that carries a scaled space: the space, its exponents, where its axes are."""

    space: str
    row: Tensor
    dims: tuple[int, ...]
    order: tuple[int, ...]

    def gathered(self, values: Tensor) -> Tensor:
        """Values summed for every unit, ``(p..., n)``."""
        x = values.permute(self.order)
        return x.flatten(len(self.dims)).sum(-1) if x.ndim > len(self.dims) else x


@dataclass(frozen=True)
class _Part:
    """One block of a tensor: what is summed over, and the sites that are left."""

    tensor: str
    block: Block
    rest: tuple[int, ...]
    sites: tuple[_Site, ...]
    key: Key


class ScaleSystem:
    """The equations of all log scales that move some tensors.

    Args:
        sym: The symmetry, batch norms folded.
        names: The tensors.
    """

    def __init__(self, sym: Symmetry, names: Iterable[str]) -> None:
        sizes = {s.name: s.size for s in sym.spaces}
        self._spaces = {s.name: s for s in sym.spaces if s.group.scales and not s.group.mixes}
        self._shapes = {
            n: torch.Size((s.group.scales, *(sizes[p] for p in s.parents), s.size)) for n, s in self._spaces.items()
        }
        self._parts = [
            part for n in names for block in blocks(sym.layouts[n]) if (part := self._part(n, block)) is not None
        ]
        self._sites = {part.key: part.sites for part in self._parts}

    def steps(
        self, a: Mapping[str, Tensor], b: Mapping[str, Tensor], votes: Mapping[str, Tensor]
    ) -> Iterator[dict[str, Tensor]]:
        """Steps towards the scales for which ``Σ v |g a - b|²`` is smallest; the caller moves ``a`` between them.

        Args:
            a: Tensors, read anew for every step.
            b: Tensors to meet.
            votes: The weight ``v`` of each tensor.

        Yields:
            Name of each space to the change of its log scales ``(k, p..., n)``.
        """
        for _ in range(_STEPS if self._parts else 0):
            squares, slope, error = self._sums(a, b, votes)
            step = self._solved(squares, slope)
            if not float(step.abs().max()) > _SETTLED:
                return
            yield self._split(step.clamp(-_LEAP, _LEAP))
            if not float(step @ slope) > _GAIN * error:
                return

    def _part(self, name: str, block: Block) -> _Part | None:
        moving = {x.space for x in block.leaves if isinstance(x, Leaf) and x.space in self._spaces and any(x.scale)}
        kept = moving | {p for s in moving for p in self._spaces[s].parents}
        inside = [d for d, s in enumerate(block.spaces) if s in kept]
        if not moving:
            return None
        names = tuple(block.spaces[d] for d in inside)
        sites = []
        for at, d in enumerate(inside):
            leaf = block.leaves[d]
            if isinstance(leaf, Leaf) and leaf.space in moving and any(leaf.scale):
                dims = tuple(parent_dims(self._spaces[leaf.space], at, names))
                order = (*dims, *(i for i in range(len(inside)) if i not in dims))
                row = torch.tensor([float(e) for e in leaf.scale], dtype=torch.float64)
                sites.append(_Site(leaf.space, row, dims, order))
        rest = tuple(d for d in range(len(block.leaves)) if d not in inside)
        key = tuple((x.space, x.scale) for d in inside if isinstance(x := block.leaves[d], Leaf))
        return _Part(name, block, rest, tuple(sites), key)

    def _sums(
        self, a: Mapping[str, Tensor], b: Mapping[str, Tensor], votes: Mapping[str, Tensor]
    ) -> tuple[dict[Key, Tensor], Tensor, float]:
        """Sums of ``v x²``, blocks that join the same spaces added up, the descent ``Σ v x (y - x)``, the error."""
        squares: dict[Key, Tensor] = {}
        gaps: dict[Key, Tensor] = {}
        error = 0.0
        for part in self._parts:
            x, y = part.block.read(a[part.tensor]), part.block.read(b[part.tensor])
            gap = y - x
            error += float(votes[part.tensor] * torch.linalg.vector_norm(gap, dtype=torch.float64) ** 2)
            for found, value in ((squares, x * x), (gaps, x * gap)):
                value = value.sum(part.rest, dtype=torch.float64) if part.rest else value.double()
                value = votes[part.tensor] * value
                found[part.key] = found[part.key] + value if part.key in found else value
        return squares, self._gathered(gaps), error

    def _solved(self, squares: Mapping[Key, Tensor], right: Tensor) -> Tensor:
        """The least-squares step, preconditioned by the curvature of every scale alone."""
        curve = self._gathered(squares, squared=True)
        known = torch.where(curve > 0, 1.0 / curve.clamp_min(1e-300), 0.0)
        x, residual = torch.zeros_like(right), right
        direction = ahead = known * residual
        size = first = float(residual @ ahead)
        for _ in range(_ITERATIONS):
            if not size > _FORCING**2 * first:
                break
            logs = self._split(direction)
            image = self._gathered({key: s * self._exponents(key, logs) for key, s in squares.items()})
            bent = float(direction @ image)
            if not bent > 0:
                break
            x, residual = x + size / bent * direction, residual - size / bent * image
            ahead = known * residual
            size, before = float(residual @ ahead), size
            direction = ahead + size / before * direction
        return x

    def _exponents(self, key: Key, logs: Mapping[str, Tensor]) -> Tensor:
        """What log scales add to the logarithm of every entry of a sum."""
        total = torch.zeros(())
        for site in self._sites[key]:
            term = (site.row @ logs[site.space].flatten(1)).reshape(logs[site.space].shape[1:])
            total = total + align(term, site.dims, len(key))
        return total

    def _gathered(self, values: Mapping[Key, Tensor], squared: bool = False) -> Tensor:
        """Values summed for every scale that moves them, times its exponent (or the square of that), as one vector."""
        found = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self._shapes.items()}
        for key, value in values.items():
            for site in self._sites[key]:
                total = site.gathered(value)
                e = site.row.square() if squared else site.row
                found[site.space] += e.reshape(-1, *[1] * total.ndim) * total
        return torch.cat([t.flatten() for t in found.values()])

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([prod(shape) for shape in self._shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts)}
