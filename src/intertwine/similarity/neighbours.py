"""Mutual nearest neighbours."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._features import check_same_examples
from ._sides import PairwiseSide, living_channels
from .base import Measure
from .linear import square_distances

__all__ = ["MutualKNN"]


@dataclass(frozen=True)
class MutualKNN(Measure[PairwiseSide]):
    """Share of an example's ``k`` nearest neighbours that both sides agree on, averaged over examples.

    Differs from its source, which takes cosines of uncentred features: distances are Euclidean over channels and space,
    so that translations change nothing. Ties are broken by the order of the examples. Unrelated sides score about
    ``k / (N - 1)``.

    Args:
        k: Number of neighbours.

    Raises:
        ValueError: If ``k`` is less than 1.

    References:
        Huh, Cheung, Wang, Isola, "The platonic representation hypothesis", ICML 2024.
    """

    k: int = 10

    group = "orthogonal maps times isotropic scales, and translations"
    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1. Got {self.k}.")

    @property
    def name(self) -> str:
        """``mutual_knn``, with the number of neighbours where it is not 10."""
        return "mutual_knn" if self.k == 10 else f"mutual_knn_{self.k}"

    def prepare(self, x: Tensor, channel_dim: int = 1) -> PairwiseSide:
        """Compute all squared distances between examples.

        Args:
            x: Features ``(N, C, *S)``, or with the channels at ``channel_dim``.
            channel_dim: Axis of the channels.
        """
        x, _, dead = living_channels(x, channel_dim)
        return PairwiseSide(square_distances(x), x.shape[1] + dead, dead)

    def score(self, a: PairwiseSide, b: PairwiseSide) -> float:
        """Mean overlap of the neighbourhoods.

        Raises:
            ValueError: If the numbers of examples differ or do not exceed ``k``.
        """
        check_same_examples(a.n, b.n)
        if a.n <= self.k:
            raise ValueError(
                f"examples must be more than k = {self.k}. Got {a.n}. Use MutualKNN(k=...) with a smaller k."
            )
        return float((self._near(a) & self._near(b)).sum()) / (a.n * self.k)

    def floor(self, a: PairwiseSide, b: PairwiseSide) -> float:
        """Two sets of ``k`` out of ``N - 1`` others share ``2 k - (N - 1)`` at least."""
        return max(0, 2 * self.k - (a.n - 1)) / self.k

    def _near(self, side: PairwiseSide) -> Tensor:
        """Whether ``j`` is among the ``k`` nearest of ``i``, ``(N, N)`` bool; a stable sort breaks ties by order."""
        distance = side.matrix.clone().fill_diagonal_(torch.inf)
        index = distance.sort(dim=1, stable=True).indices[:, : self.k]
        return torch.zeros_like(distance, dtype=torch.bool).scatter_(1, index, True)
