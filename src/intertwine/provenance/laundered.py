"""Test after matching: whether units that were moved agree more than those of networks known to be independent.

No exact test can see through a laundering: what it may look at is the same for all orders and bases of the units, so
permuting them leaves nothing to compare with. And networks of one task learn alike units, so that they agree beyond
chance once matched. How far is measured on independent networks, and their spread gives the p-value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..matching.closest import closest, normalised
from ..matching.narrow import narrowed
from ..symmetry.action import moved
from ..symmetry.blocks import blocks
from ..symmetry.gauge.folding import fold
from ..symmetry.parent_axes import parent_dims
from .in_place import SpaceAgreement, TensorAgreement

if TYPE_CHECKING:
    from ..symmetry import Symmetry

__all__ = ["FEWEST", "Calibrated", "Likeness", "calibrated", "likeness"]

_ROUNDING = 1e-12  # share of the weights' squares that float32 leaves
FEWEST = 4  # independent networks: the prediction has as many degrees of freedom less one


@dataclass(frozen=True)
class Likeness:
    """Likeness of two networks after matching, in balanced coordinates.

    Attributes:
        explained: Share of the weights' squares that the matched network explains.
        tensors: The same by tensor.
        units: Cosine of every unit with its partner, by space.
    """

    explained: float
    tensors: Mapping[str, float]
    units: Mapping[str, Tensor]


@dataclass(frozen=True)
class Calibrated:
    """What matching found, beside the same of independent networks.

    Attributes:
        found: Likeness of the two networks.
        independent: Likeness of the first with each independent network.
        log_p: Logarithm of the p-value.
        spaces: Agreement by space: units count as agreeing where their cosine is above all of independent networks.
        tensors: Agreement by tensor.
    """

    found: Likeness
    independent: tuple[Likeness, ...]
    log_p: float
    spaces: tuple[SpaceAgreement, ...]
    tensors: tuple[TensorAgreement, ...]


def likeness(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Likeness:
    """Match two networks over the whole group of their architecture, as ``same`` does, and compare what is matched.

    Args:
        sym: The symmetry of the architecture.
        a: Tensors to move; those of another shape in ``b``, or missing there, are left out.
        b: Tensors to meet.
    """
    names = [n for n in sym.layouts if n in a and n in b and a[n].shape == b[n].shape]
    part = narrowed(sym, names)
    left, right = (normalised(fold(part, state, torch.float32)) for state in (a, b))
    g, _ = closest(left, right)
    near = {**left.folded.state, **moved(left.sym, right.to @ g, left.folded.state)}
    carrying = [n for n, lay in right.sym.layouts.items() if any(block.moved for block in blocks(lay))]
    tensors = {n: _explained(near[n], right.state[n]) for n in carrying}
    sizes = {n: right.state[n].numel() for n in carrying}
    share = sum(tensors[n] * sizes[n] for n in carrying) / max(sum(sizes.values()), 1)
    return Likeness(share, tensors, _units(right.sym, near, right.state))


def calibrated(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], independent: Sequence[Mapping[str, Tensor]]
) -> Calibrated:
    """Compare the likeness of two networks after matching with that of independent ones.

    Args:
        sym: The symmetry of the architecture.
        a: Tensors of one network.
        b: Those of the other.
        independent: Tensors of networks that were trained like ``b`` would have been, known to be independent of ``a``.
    """
    found, *rest = (likeness(sym, a, state) for state in (b, *independent))
    spaces = []
    for name, cosines in found.units.items():
        others = [r.units[name] for r in rest]
        share = float((cosines > torch.stack(others).max()).double().mean())
        log_p = _prediction(float(cosines.mean()) ** 2, [float(u.mean()) ** 2 for u in others])
        spaces.append(SpaceAgreement(name, len(cosines), share, log_p, 1.0, 0.0))
    tensors = tuple(
        TensorAgreement(n, share**0.5, False, _prediction(share, [r.tensors[n] for r in rest]))
        for n, share in found.tensors.items()
    )
    log_p = _prediction(found.explained, [r.explained for r in rest])
    return Calibrated(found, tuple(rest), log_p, tuple(spaces), tensors)


def _prediction(share: float, independent: Sequence[float]) -> float:
    """Logarithm of the probability that one more independent network explains such a share.

    For ``u = -log(1 - share)``, with mean ``m`` and standard deviation ``s`` over ``k`` independent networks,
    ``(u - m) / (s sqrt(1 + 1/k))`` has Student's distribution with ``k - 1`` degrees of freedom if all are normal and
    alike. Source: G. J. Hahn, Factors for Calculating Two-Sided Prediction Intervals, JASA 64, 1969.
    """
    from scipy.stats import t as student

    u, *others = (-log(max(1 - x, _ROUNDING)) for x in (share, *independent))
    x, k = torch.tensor(others, dtype=torch.float64), len(others)
    spread = float(x.std()) * (1 + 1 / k) ** 0.5
    return float(student.logsf((u - float(x.mean())) / max(spread, _ROUNDING), k - 1))


def _explained(x: Tensor, y: Tensor) -> float:
    """Squared cosine, 0 where it is negative."""
    inner, norms = float((x * y).sum(dtype=torch.float64)), float(x.double().norm() * y.double().norm())
    return max(inner / norms, 0.0) ** 2 if norms > 0 else 0.0


def _units(sym: Symmetry, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cosines of units with their partners over all tensors."""
    spaces = {s.name: s for s in sym.spaces}
    sums: dict[str, Tensor] = {}
    for name, layout in sym.layouts.items():
        for block in blocks(layout):
            ours, theirs = block.read(x[name]), block.read(y[name])
            for dim, space in enumerate(block.spaces):
                if space is None or any(block.spaces.count(p) != 1 for p in spaces[space].parents):
                    continue
                dims = parent_dims(spaces[space], dim, block.spaces)
                rest = [d for d in range(ours.ndim) if d not in dims]
                products = [p.permute(*dims, *rest).flatten(len(dims)).sum(-1) if rest else p.permute(*dims)
                            for p in (ours * theirs, ours * ours, theirs * theirs)]  # fmt: skip
                sums[space] = sums.get(space, torch.zeros(())) + torch.stack(products)
    return {s: (t[0] / (t[1] * t[2]).sqrt().clamp_min(1e-30)).flatten() for s, t in sums.items()}
