"""Deviation of matched weights: weight by weight and tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.blocks import blocks
from ..symmetry.gauge.folding import Folded
from .narrow import narrowed

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry
    from ..symmetry.transformation import Transformation

__all__ = ["PRECISIONS", "TRUST", "Deviation", "constant", "deviation"]

# Precisions a copy may have gone through, and the relative deviation of single weights that each explains.
PRECISIONS = {"float64": 1e-9, "float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
_QUANTILE = 0.999  # share of all weights to be explained: rounding errs by a share of every weight, training does not
_OF_ONE = 0.99  # the same for one tensor
_MEAN = 3.0  # largest over root mean square deviation where weights are rounded; what a few noisy scales fit has less
_SPARED = 100.0  # times the precision to which most tensors agree: what a cast that they escaped must explain
_FITTED = 2  # weights for each free scale or entry of a basis from which on agreement was not made by fitting
TRUST = 1e-12  # squared relative distance below which a tensor counts as equal


@dataclass(frozen=True)
class Deviation:
    """How far matched weights are apart, relative to their sizes.

    Attributes:
        overall: Deviation that 99.9 % of all weights stay below.
        tensors: For every tensor the deviation that 99 % of its weights stay below, or three times the relative
            distance of the whole tensor where that is larger.
        distances: For every tensor the relative distance.
        informative: Tensors whose weights differ among each other, so that agreement tells something.
        sizes: Number of weights of every tensor.
        sym: The symmetry by which they were matched.
        rounded: Tensors that hold numbers of half precision in one of the networks.
    """

    overall: float
    tensors: Mapping[str, float]
    distances: Mapping[str, float]
    informative: frozenset[str]
    sizes: Mapping[str, int]
    sym: Symmetry
    rounded: frozenset[str] = frozenset()

    @property
    def precision(self) -> str | None:
        """The finest precision of a copy that explains how far all tensors are apart, or ``None``."""
        fits = (name for name, limit in PRECISIONS.items() if self.overall <= limit and not self.beyond(name))
        return next(fits, None)

    @property
    def loss(self) -> float:
        """``Σ log(d² + τ)`` over the distances of tensors: few far away cost less than all a little."""
        return sum(log(min(d, 1.0) ** 2 + TRUST) for d in self.distances.values())

    def beyond(self, precision: str) -> dict[str, float]:
        """Tensors that differ by more than rounding to a precision explains, with their relative distances.

        A cast spares no tensor: where most agree much better, one that does not must hold rounded numbers to be
        explained by it.
        """
        limit, shared = PRECISIONS[precision], self.shared()
        spared = limit if shared is None else min(limit, _SPARED * PRECISIONS[shared])
        limits = {name: limit if name in self.rounded else spared for name in self.tensors}
        return {name: self.distances[name] for name, size in self.tensors.items() if not size <= limits[name]}

    def shared(self) -> str | None:
        """The finest precision to which most of the informative tensors agree, by number or by weights.

        Tensors with hardly more weights than the scales and bases that move them agree by fitting, not by descent.
        """
        for name, limit in PRECISIONS.items():
            agree = [n for n in self.informative if self.tensors.get(n, 0.0) <= limit]
            near, all_ = (sum(self.sizes[n] for n in some) for some in (agree, self.informative))
            most = 2 * len(agree) >= len(self.informative) or 2 * near >= all_
            if agree and most and near >= _FITTED * narrowed(self.sym, agree).dim:
                return name
        return None


def deviation(a: Folded, b: Folded, g: Transformation, rounded: frozenset[str] = frozenset()) -> Deviation:
    """Compare the moved ``a`` with ``b``, weight by weight.

    Args:
        a: Weights to move, batch norms folded.
        b: Weights to meet.
        g: The element that moves ``a``.
        rounded: Tensors that hold numbers of half precision in one of the networks.

    Returns:
        Their deviation.
    """
    near = {**a.state, **moved(a.sym, g, a.state)}
    linear = {s.name for s in a.sym.spaces if s.group.mixes}
    ratios, distances = {}, {}
    for name, layout in b.sym.layouts.items():
        size = b.spread.get(name, b.state[name].abs())
        distances[name] = float((near[name] - b.state[name]).norm() / size.norm().clamp_min(1e-300))
        if any(space in linear for block in blocks(layout) for space in block.spaces):
            # a basis mixes entries, and with them their rounding, which a fitted matrix doubles on either side
            size = 4 * size.square().mean().sqrt().expand_as(size)
        difference = (near[name] - b.state[name]).abs()
        ratios[name] = torch.where(difference == 0, 0.0, difference / size.clamp_min(1e-300)).flatten()
    joined = torch.cat(list(ratios.values())) if ratios else torch.zeros(1)
    return Deviation(
        overall=_quantile(joined, _QUANTILE),
        tensors={n: max(_quantile(some, _OF_ONE), _MEAN * distances[n]) for n, some in ratios.items() if len(some)},
        distances=distances,
        informative=frozenset(n for n in ratios if not (constant(a.state[n]) and constant(b.state[n]))),
        sizes={name: len(some) for name, some in ratios.items()},
        sym=b.sym,
        rounded=rounded,
    )


def constant(x: Tensor) -> bool:
    """Whether a tensor has no more than two values, as gains and biases have that were not trained."""
    return len(x.flatten()[: 1 << 16].unique()) <= 2


def _quantile(ratios: Tensor, share: float) -> float:
    rank = min(int(share * len(ratios)), len(ratios) - 1)
    return float(ratios.kthvalue(rank + 1).values)
