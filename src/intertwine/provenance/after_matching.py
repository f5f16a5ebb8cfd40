"""Test after matching: whether units that were moved agree more than those of networks known to be independent.

No exact test can see through a laundering: what it may look at is the same for all orders and bases of the units, so
permuting them leaves nothing to compare with. And networks of one task learn alike units, so that they agree beyond
chance once matched. How far is measured on independent networks, and their spread gives the p-value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..matching.components import Pair, matched
from ..symmetry.action import moved
from ..symmetry.blocks import blocks, parent_dims, summed
from ..symmetry.spaces import Layout
from ..symmetry.transformation import Transformation
from .comparable import Compared, compared
from .in_place import SpaceAgreement, TensorAgreement
from .p_values import log_exceedance

if TYPE_CHECKING:
    from ..symmetry import Symmetry


_ROUNDING = 1e-12  # share of the weights' squares that float32 leaves
FEWEST = 4  # independent networks


@dataclass(frozen=True)
class Likeness:
    """Likeness of two networks after matching, in balanced coordinates."""

    explained: float  # Share of the weights' squares that the matched network explains
    tensors: Mapping[str, float]  # The same by tensor
    units: Mapping[str, Tensor]  # Cosine of every unit with its partner, by space


@dataclass(frozen=True)
class Calibrated:
    """What matching found, beside the same of independent networks."""

    found: Likeness  # Likeness of the two networks
    independent: tuple[Likeness, ...]  # Likeness of the first with each independent network
    log_p: float  # Logarithm of the p-value
    # Agreement by space: units count as agreeing where their cosine is above all of independent networks
    spaces: tuple[SpaceAgreement, ...]
    tensors: tuple[TensorAgreement, ...]  # Agreement by tensor


def likeness(pair: Compared, g: Transformation | None = None) -> Likeness:
    """Match two networks over the whole group of their architecture, as ``same`` does, and compare what is matched.

    Args:
        pair: The networks.
        g: The element that moves the first where it was found already.
    """
    if pair.widths.differing:
        found, g = _Found(pair, g), None
        layouts: dict[str, Layout] = {}
        near: dict[str, Tensor] = {}
        met: dict[str, Tensor] = {}
        for sym, left, right in found:
            layouts, near, met = {**layouts, **sym.layouts}, near | left, met | right
        sym = replace(pair.padded()[0], layouts=layouts, batch_norms=())
        pair = replace(pair, widths=pair.widths.partnered(found.g, sym, near, met))
    tensors: dict[str, float] = {}
    sizes: dict[str, int] = {}
    sums: dict[str, Tensor] = {}
    for sym, near, met in _Found(pair, g):
        for name in (n for n, layout in sym.layouts.items() if any(block.moved for block in blocks(layout))):
            tensors[name], sizes[name] = _explained(near[name], met[name]), met[name].numel()
        _add_units(sums, sym, near, met)
    share = sum(tensors[n] * sizes[n] for n in tensors) / max(sum(sizes.values()), 1)
    units = {s: (t[0] / (t[1] * t[2]).sqrt().clamp_min(1e-30)).flatten() for s, t in sums.items()}
    return Likeness(share, tensors, units)


class _Found:
    """Two matched networks, component by component: the symmetry, the first where it was moved, the second, balanced.

    Args:
        pair: The networks.
        g: The element that moves the first, found by matching where it is not given.
    """

    def __init__(self, pair: Compared, g: Transformation | None) -> None:
        self._pair = Pair(*pair.padded())
        self.g = matched(self._pair).g if g is None else g

    def __iter__(self) -> Iterator[tuple[Symmetry, dict[str, Tensor], dict[str, Tensor]]]:
        for index in range(len(self._pair.parts)):
            a, b, _ = self._pair.read(index)
            _, met = self._pair.normal(index, a, b)
            here = Transformation({s.name: self.g[s.name] for s in a.sym.spaces})
            yield met.sym, {**a.state, **moved(a.sym, met.to @ here, a.state)}, dict(met.state)


def calibrated(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    pair: Compared,
    independent: Sequence[Mapping[str, Tensor]],
    g: Transformation | None = None,
) -> Calibrated:
    """Compare the likeness of two networks after matching with that of independent ones.

    Args:
        sym: The symmetry of the architecture.
        a: Tensors of the first network.
        pair: It, beside the second.
        independent: Tensors of networks that were trained like the second would have been, known to be independent of
            the first. Where the second has fewer units, they are thinned to as many.
        g: The element that moves the first to the second where it was found already.
    """
    found = likeness(pair, g)
    rest = [likeness(compared(sym, a, state, pair.widths.sizes[1])) for state in independent]
    spaces = []
    for name, cosines in found.units.items():
        others = [r.units[name] for r in rest if name in r.units]
        if len(others) < FEWEST:
            continue
        share = float((cosines > torch.stack([u.max() for u in others]).max()).double().mean())
        log_p = log_chance(float(cosines.mean()) ** 2, [float(u.mean()) ** 2 for u in others])
        spaces.append(SpaceAgreement(sym.titles[name], len(cosines), share, log_p, 1.0, 0.0))
    tensors = []
    for name, share in found.tensors.items():
        shares = [r.tensors[name] for r in rest if name in r.tensors]
        alone = log_chance(share, shares) if len(shares) >= FEWEST else None
        tensors.append(TensorAgreement(name, share**0.5, False, alone))
    log_p = log_chance(found.explained, [r.explained for r in rest])
    return Calibrated(found, tuple(rest), log_p, tuple(spaces), tuple(tensors))


def log_chance(share: float, independent: Sequence[float]) -> float:
    """Logarithm of the probability that one more independent network explains as much, from ``-log(1 - share)``."""
    u, *others = (-log(max(1 - x, _ROUNDING)) for x in (share, *independent))
    return log_exceedance(u, others)


def _explained(x: Tensor, y: Tensor) -> float:
    """Squared cosine, 0 where it is negative."""
    inner, norms = float((x * y).sum(dtype=torch.float64)), float(x.double().norm() * y.double().norm())
    return max(inner / norms, 0.0) ** 2 if norms > 0 else 0.0


def _add_units(sums: dict[str, Tensor], sym: Symmetry, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> None:
    """Add, for every unit, its inner product with its partner and both squares."""
    spaces = {s.name: s for s in sym.spaces}
    for name, layout in sym.layouts.items():
        for block in blocks(layout):
            ours, theirs = block.read(x[name]), block.read(y[name])
            for dim, space in enumerate(block.spaces):
                if space is None or any(block.spaces.count(p) != 1 for p in spaces[space].parents):
                    continue
                dims = parent_dims(spaces[space], dim, block.spaces)
                products = torch.stack([summed(p, dims) for p in (ours * theirs, ours * ours, theirs * theirs)])
                sums[space] = sums[space] + products if space in sums else products
