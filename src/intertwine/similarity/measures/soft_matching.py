"""Soft matching: units against units by optimal transport, for layers of any two widths."""

from dataclasses import dataclass
from math import lcm

import torch
from torch import Tensor

from ...groups.assignment import couple
from .._sides import FeatureSide, cross_moments, feature_side
from ..base import Bounded

_COPIES = 4  # of each unit of the wider side, up to which an assignment is cheaper than a linear program


@dataclass(frozen=True)
class SoftMatching(Bounded[FeatureSide]):
    """Best mean correlation of matched units, where units may be matched in parts.

    With centred channels of norm 1, ``max over T of sum_ij T_ij <x_i, y_j>`` over all ``T >= 0`` whose ``C`` rows sum
    to ``1/C`` each and whose ``C'`` columns to ``1/C'``. Of equal widths the best ``T`` is a permutation over ``C``;
    of others every unit still has a partner, so that a layer against its own doubled units scores 1. The *soft matching
    distance* of the normalised units is ``sqrt(2 - 2 score)``, a metric.

    References:
        Khosla, Williams, "Soft matching distance: a metric on neural representations that captures single-neuron
        tuning", UniReps 2023.
    """

    stem = "soft_matching"
    group = "positive monomial maps (permutations times positive scales per channel), and translations"
    range = (-1.0, 1.0)
    metric = True

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FeatureSide:
        """Check the features and take their moments."""
        return feature_side(x, channel_dim, center=True)

    def _compared(self, a: FeatureSide, b: FeatureSide) -> float:
        return transport(cross_moments(a, b) / torch.outer(a.norms[a.kept], b.norms[b.kept]))

    def to_distance(self, score: float, a: FeatureSide, b: FeatureSide) -> float:
        """``sqrt(2 - 2 score)``, the soft matching distance of normalised units."""
        return max(0.0, 2 - 2 * score) ** 0.5


def transport(gain: Tensor) -> float:
    """``max over T of sum_ij T_ij gain_ij`` with rows that sum to ``1/n`` each and columns to ``1/m``, exactly.

    An assignment where ``n = m``, or where few copies of both sides make them so (``lcm(n, m)``); by a linear program
    elsewhere, which takes seconds for 500 units and minutes for 1,000.

    Examples:
        >>> import torch
        >>> transport(torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.5]]))
        0.875
    """
    few = lcm(*gain.shape) <= _COPIES * max(gain.shape)
    return float((couple(gain) * gain).sum()) if few else _by_program(gain)


def _by_program(gain: Tensor) -> float:
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    n, m = gain.shape
    rows = kron(eye_array(n), np.ones((1, m)))
    columns = kron(np.ones((1, n)), eye_array(m))
    sums = np.concatenate([np.full(n, float(m)), np.full(m, float(n))])  # times n m: whole numbers
    found = linprog(-gain.detach().cpu().numpy().ravel(), A_eq=vstack([rows, columns]), b_eq=sums, method="highs")
    return float(-found.fun) / (n * m)
