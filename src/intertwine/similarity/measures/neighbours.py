"""Similarities by nearest neighbours: mutual neighbours, the Jaccard index, and CKNNA."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from ..base import Measure
from .neighbourhoods import NeighbourSide, check_neighbours, neighbour_side


@dataclass(frozen=True)
class _ByNeighbours(Measure[NeighbourSide]):
    """A measure of the ``k`` nearest neighbours of every example."""

    k: int = 10

    stem = ""
    group = "orthogonal maps times isotropic scales, and translations"
    range = (0.0, 1.0)
    pairwise = True
    has_limit = False  # k neighbours of twice as many examples are nearer ones

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1. Got {self.k}.")

    @property
    def name(self) -> str:
        """The measure's name, with the number of neighbours where it is not 10."""
        return self.stem if self.k == 10 else f"{self.stem}_{self.k}"

    def prepare(self, x: Tensor, channel_dim: int = 1) -> NeighbourSide:
        """Find the neighbours of every example."""
        return neighbour_side(x, channel_dim, self.k)


@dataclass(frozen=True)
class MutualKNN(_ByNeighbours):
    """Share of an example's ``k`` (10) nearest neighbours that both sides agree on, averaged over examples.

    ``sum over i, j of min(a_ij, b_ij) / (N k)``, where ``a_ij`` says whether ``j`` is a neighbour of ``i``. Differs
    from its source, which takes cosines of uncentred features: distances are Euclidean over channels and space, so that
    translations change nothing. Examples that are equally far share the places that are left, with weights ``a_ij``
    between 0 and 1 (examples without any living activity are such: all in one place); elsewhere the order of the
    examples would decide, and make unrelated layers agree. Unrelated sides score about ``k / (N - 1)``.

    Raises:
        ValueError: If ``k`` is less than 1.

    References:
        Huh, Cheung, Wang, Isola, "The platonic representation hypothesis", ICML 2024.
    """

    stem = "mutual_knn"

    def score(self, a: NeighbourSide, b: NeighbourSide) -> float:
        """Mean overlap of the neighbourhoods."""
        x, y = check_neighbours(a, b)
        return min(1.0, float(torch.minimum(x, y).sum(dtype=torch.float64)) / (a.n * self.k))

    def floor(self, a: NeighbourSide, b: NeighbourSide) -> float:
        """Two sets of ``k`` out of ``N - 1`` others share ``2 k - (N - 1)`` at least."""
        return max(0, 2 * self.k - (a.n - 1)) / self.k


@dataclass(frozen=True)
class NeighbourJaccard(_ByNeighbours):
    """Jaccard index of an example's ``k`` nearest neighbours on the two sides, averaged over examples.

    ``mean over i of sum_j min(a_ij, b_ij) / sum_j max(a_ij, b_ij)``: neighbours in common over all neighbours.
    Distances and ties as in :class:`MutualKNN`, of which it is a stricter version.

    Raises:
        ValueError: If ``k`` is less than 1.

    References:
        Schumacher et al., "The effects of randomness on the stability of node embeddings", 2020; Wang et al., "Towards
        understanding the instability of network embedding", TKDE 2022; "Jaccard similarity" of Klabunde et al., "ReSi",
        ICLR 2025.
    """

    stem = "neighbour_jaccard"

    def score(self, a: NeighbourSide, b: NeighbourSide) -> float:
        """Mean Jaccard index of the neighbourhoods."""
        x, y = check_neighbours(a, b)
        shared, either = (
            torch.minimum(x, y).sum(1, dtype=torch.float64),
            torch.maximum(x, y).sum(1, dtype=torch.float64),
        )
        return min(1.0, float((shared / either).mean()))

    def floor(self, a: NeighbourSide, b: NeighbourSide) -> float:
        """Two sets of ``k`` out of ``N - 1`` others share ``2 k - (N - 1)`` at least."""
        shared = max(0, 2 * self.k - (a.n - 1))
        return shared / (2 * self.k - shared)


@dataclass(frozen=True)
class CKNNA(_ByNeighbours):
    """Centred kernel alignment of nearest neighbours: linear CKA of the pairs that are near on both sides.

    With U-centred linear Gram matrices ``K`` and ``L`` and neighbour weights ``a``, ``b`` of :class:`MutualKNN`,

        sum_ij min(a_ij, b_ij) K_ij L_ij / sqrt(sum_ij a_ij K_ij^2  sum_ij b_ij L_ij^2)

    Differs from the authors' code, which puts the masked Gram matrices, no longer symmetric, into the formula of the
    unbiased HSIC for symmetric ones: centring comes first here, so that ``k = N - 1`` is unbiased linear CKA exactly,
    and Cauchy and Schwarz bound the score. Neighbours are those of the Euclidean distance. Near examples have positive
    products on either side, so that chance is not 0 but a little less than ``k / (N - 1)``. An example without any
    living activity is an example like others.

    Raises:
        ValueError: If ``k`` is less than 1.

    References:
        Huh, Cheung, Wang, Isola, "The platonic representation hypothesis", ICML 2024, appendix A.
    """

    stem = "cknna"
    range = (-1.0, 1.0)

    def score(self, a: NeighbourSide, b: NeighbourSide) -> float:
        """Local alignment.

        Raises:
            ValueError: If the neighbours of a side are all at the centre, so that there is nothing to align.
        """
        near_a, near_b = check_neighbours(a, b)
        k, l = a.centred, b.centred
        own = [float((near * gram.square()).sum()) for near, gram in ((near_a, k), (near_b, l))]
        if min(own) <= 0:
            raise ValueError("features must tell examples apart. Got neighbours whose centred products are all 0.")
        shared = float((torch.minimum(near_a, near_b) * k * l).sum())
        return min(1.0, max(-1.0, shared / sqrt(own[0]) / sqrt(own[1])))
