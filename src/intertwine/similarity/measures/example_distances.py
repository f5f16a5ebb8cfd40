"""Similarities by distances between examples: distance correlation, RSA, and shared nearest neighbours."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import acos, sqrt
from typing import Self

import torch
from torch import Tensor

from .._features import double
from ..base import Measure, PairwiseSide, living_channels
from ..hsic import center_gram, inner
from .cka import Aligned, GramSide, prepare_gram
from .kernels import linear_gram, square_distances, unit_gram

_ROUNDING = 1e-13  # share of the largest squared dissimilarity within which two count as equal
_GROUPS = {
    "correlation": "orthogonal maps that keep the line of (1, ..., 1), times isotropic scales; not all rotations",
    "euclidean": "orthogonal maps times isotropic scales, and translations",
}


@dataclass(frozen=True)
class DistanceCorrelation(Aligned[GramSide]):
    """Correlation of centred Euclidean distances between examples: 0 in the limit only for independent sides.

    It is CKA with the kernel ``-|x - y|``. Let ``A`` be the double-centred and ``U`` the U-centred matrix of distances
    over channels and space. The biased estimate is ``sqrt(<A_x, A_y> / (|A_x| |A_y|))``, 0 to 1, and near 1 for wide
    independent features; the unbiased one is *squared*, ``<U_x, U_y> / (|U_x| |U_y|)``, -1 to 1.

    Raises:
        ValueError: If the estimator is unknown.

    References:
        Szekely, Rizzo, Bakirov, "Measuring and testing dependence by correlation of distances", Annals of Statistics
        2007 (biased); Szekely, Rizzo, "Partial distance correlation with methods for dissimilarities", Annals of
        Statistics 2014 (bias-corrected).
    """

    estimator: str = "unbiased"

    stem = "distance_correlation"
    group = _GROUPS["euclidean"]
    psd = True

    def prepare(self, x: Tensor, channel_dim: int = 1) -> GramSide:
        """Compute all distances between examples, centre them and divide them by their norm."""
        x, m, dead = living_channels(x, channel_dim)
        distances = square_distances(unit_gram(x, m)).sqrt_()
        return prepare_gram(distances, self.estimator, channels=x.shape[1] + dead, dead=dead)

    def _compared(self, a: GramSide, b: GramSide) -> float:
        found = inner(a.gram, b.gram)
        return sqrt(max(0.0, found)) if self.estimator == "biased" else found

    def to_distance(self, score: float, a: GramSide, b: GramSide) -> float:
        """Angle between the centred distance matrices: a metric, in radians."""
        return acos(score**2 if self.estimator == "biased" else score)


@dataclass(frozen=True)
class RSA(Measure[PairwiseSide]):
    """Correlation of the two sides' dissimilarities over pairs of examples.

    With ``"correlation"``, the dissimilarity of two examples is 1 minus the Pearson correlation of their features over
    channels and space, and the score is *not* invariant to rotations or to rescaled channels.

    Constant channels are left out, unlike in rsatoolbox and others: they say nothing about examples, but would change
    correlations. An example without any living activity has no correlation with another and is refused; ``"euclidean"``
    accepts it.

    Raises:
        ValueError: If ``distance`` or ``compare`` is unknown.

    References:
        Kriegeskorte, Mur, Bandettini, "Representational similarity analysis - connecting the branches of systems
        neuroscience", Frontiers in Systems Neuroscience 2008.
    """

    distance: str = "correlation"  # Or ``"euclidean"``
    compare: str = "spearman"  # Rank correlation of the dissimilarities; or ``"pearson"``

    stem = "rsa"
    range = (-1.0, 1.0)
    pairwise = True

    def __post_init__(self) -> None:
        if self.distance not in _GROUPS:
            raise ValueError(f"distance must be one of {', '.join(map(repr, _GROUPS))}. Got {self.distance!r}.")
        if self.compare not in ("spearman", "pearson"):
            raise ValueError(f"compare must be 'spearman' or 'pearson'. Got {self.compare!r}.")
        vars(self)["group"] = _GROUPS[self.distance]

    def prepare(self, x: Tensor, channel_dim: int = 1) -> PairwiseSide:
        """Compute the dissimilarities of all pairs of examples."""
        x, m, dead = living_channels(x, channel_dim)
        correlation = self.distance == "correlation"
        found = _correlation_distances(x) if correlation else square_distances(unit_gram(x, m)).sqrt_()
        return PairwiseSide(found, x.shape[1] + dead, dead)

    def _compared(self, a: PairwiseSide, b: PairwiseSide) -> float:
        return float(self._standardised(a.gram) @ self._standardised(b.gram))

    def _standardised(self, pairs: Tensor) -> Tensor:
        values = pairs[torch.ones_like(pairs, dtype=torch.bool).tril_(-1)]
        if self.compare == "spearman":
            values = _ranks(values if self.distance == "correlation" else values.square())
        total, values = values.norm(), values - values.mean()
        size = values.norm()
        if size <= 1e-12 * total:
            raise ValueError(
                "features must tell examples apart. Got the same dissimilarity for all pairs of examples. Use more "
                "examples, or leave this layer out."
            )
        return values / size


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 0 on; values that are equal up to rounding, which would rank them arbitrarily, get their mean rank."""
    ordered, order = values.sort()
    group = (ordered.diff() > _ROUNDING * ordered[-1]).cumsum(0)
    group = torch.cat([group.new_zeros(1), group])
    count = group.bincount()
    mean = count.cumsum(0) - (count + 1) / 2
    return torch.empty_like(values).scatter_(0, order, mean[group].to(values))


def _correlation_distances(x: Tensor) -> Tensor:
    flat = double(x).flatten(1)
    z = flat - flat.mean(1, keepdim=True)
    norm = z.norm(dim=1, keepdim=True)
    equal = norm[:, 0] <= torch.finfo(x.dtype).eps * flat.norm(dim=1)
    if equal.any():
        raise ValueError(
            f"features must vary within every example for correlation distances. Got {int(equal.sum())} examples whose "
            'features are all equal. Use RSA(distance="euclidean").'
        )
    z /= norm
    return square_distances(linear_gram(z)).div_(2)  # 1 - <z, z'>, without the digits that the 1 would cost


@dataclass(frozen=True)
class NeighbourSide(PairwiseSide):
    """One side as neighbourhoods of its examples; ``gram`` holds inner products of centred features in float64."""

    k: int = field(kw_only=True)  # Number of neighbours

    @cached_property
    def near(self) -> Tensor:
        """Weight of ``j`` among the ``k`` nearest of ``i``, ``(N, N)``; refused with ``k`` examples or fewer."""
        if self.n <= self.k:
            smaller = "Use a smaller k, such as MutualKNN(k=...)."
            raise ValueError(f"examples must be more than k = {self.k}. Got {self.n}. {smaller}")
        return neighbourhoods(square_distances(self.gram), self.k)

    @cached_property
    def centred(self) -> Tensor:
        """The U-centred Gram matrix, ``(N, N)``."""
        return center_gram(self.gram)

    def _taken(self, part: Tensor, index: Tensor, everything: bool) -> Self:
        """Return the side with these examples, whose neighbours are found anew in a subsample."""
        taken = replace(self, gram=part)
        if everything and self.n > self.k:
            vars(taken)["near"] = self.near[index][:, index]
        return taken


def neighbourhoods(distances: Tensor, k: int) -> Tensor:
    """Weights of ``j`` among the ``k`` nearest of ``i``: from 0 to 1, with rows that sum to ``k``.

    Examples at equal distance share the places that are left, so that the order of the examples decides nothing.
    Otherwise a layer that gives most examples the same features would seem to agree with any other such layer.
    """
    rounding = _ROUNDING * distances.max()
    distances = distances.clone().fill_diagonal_(torch.inf)
    last = distances.kthvalue(k, dim=1, keepdim=True).values
    nearer, tied = distances < last - rounding, (distances - last).abs() <= rounding
    left = k - nearer.sum(1, keepdim=True)
    return nearer.float() + tied.float() * (left / tied.sum(1, keepdim=True))


@dataclass(frozen=True)
class _ByNeighbours(Measure[NeighbourSide]):
    """Base of measures of the ``k`` nearest neighbours of every example."""

    k: int = 10

    group = "orthogonal maps times isotropic scales, and translations"
    range = (0.0, 1.0)
    pairwise = True
    has_limit = False  # among twice as many examples, the k neighbours are nearer

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1. Got {self.k}.")

    def prepare(self, x: Tensor, channel_dim: int = 1) -> NeighbourSide:
        """Compute the products of all examples, which give their Euclidean distances over channels and space."""
        x, m, dead = living_channels(x, channel_dim)
        return NeighbourSide(unit_gram(x, m), x.shape[1] + dead, dead, k=self.k)

    def _forced(self, a: NeighbourSide) -> int:
        """Least number of neighbours that two sets of ``k`` out of ``N - 1`` others share: ``2 k - (N - 1)``."""
        return max(0, 2 * self.k - (a.n - 1))


@dataclass(frozen=True)
class MutualKNN(_ByNeighbours):
    """Share of an example's ``k`` (10) nearest neighbours that both sides agree on, averaged over examples.

    ``sum over i, j of min(a_ij, b_ij) / (N k)``, where ``a_ij`` says whether ``j`` is a neighbour of ``i``. Differs
    from its source, which takes cosines of uncentred features: here distances are Euclidean over channels and space, so
    translations change nothing. Examples at equal distance share the places that are left, with weights ``a_ij``
    between 0 and 1. Unrelated sides score about ``k / (N - 1)``.

    Raises:
        ValueError: If ``k`` is less than 1.

    References:
        Huh, Cheung, Wang, Isola, "The platonic representation hypothesis", ICML 2024.
    """

    stem = "mutual_knn"

    def _compared(self, a: NeighbourSide, b: NeighbourSide) -> float:
        return float(torch.minimum(a.near, b.near).sum(dtype=torch.float64)) / (a.n * self.k)

    def floor(self, a: NeighbourSide, b: NeighbourSide) -> float:
        """Least share that two sets of so many neighbours out of all others have in common."""
        return self._forced(a) / self.k


@dataclass(frozen=True)
class NeighbourJaccard(_ByNeighbours):
    """Jaccard index of an example's ``k`` nearest neighbours on the two sides, averaged over examples.

    ``mean over i of sum_j min(a_ij, b_ij) / sum_j max(a_ij, b_ij)``: neighbours in common over all neighbours.
    Distances and ties are as in :class:`MutualKNN`, of which it is a stricter version.

    Raises:
        ValueError: If ``k`` is less than 1.

    References:
        Wang et al., "Towards understanding the instability of network embedding", TKDE 2022; "Jaccard similarity" of
        Klabunde et al., "ReSi", ICLR 2025.
    """

    stem = "neighbour_jaccard"

    def _compared(self, a: NeighbourSide, b: NeighbourSide) -> float:
        shared, either = (of(a.near, b.near).sum(1, dtype=torch.float64) for of in (torch.minimum, torch.maximum))
        return float((shared / either).mean())

    def floor(self, a: NeighbourSide, b: NeighbourSide) -> float:
        """Least that two sets of so many neighbours out of all others have in common, over their union."""
        return self._forced(a) / (2 * self.k - self._forced(a))


@dataclass(frozen=True)
class CKNNA(_ByNeighbours):
    """Centred kernel alignment of nearest neighbours: linear CKA over the pairs that are near on both sides.

    With U-centred linear Gram matrices ``K`` and ``L`` and neighbour weights ``a``, ``b`` of :class:`MutualKNN`,

        sum_ij min(a_ij, b_ij) K_ij L_ij / sqrt(sum_ij a_ij K_ij^2  sum_ij b_ij L_ij^2)

    Differs from the authors' code, which puts the masked Gram matrices, no longer symmetric, into the formula of the
    unbiased HSIC for symmetric ones. Here centring comes first, so that ``k = N - 1`` is exactly unbiased linear CKA,
    and the Cauchy-Schwarz inequality bounds the score. Chance is a little less than ``k / (N - 1)``.

    Raises:
        ValueError: If ``k`` is less than 1.

    References:
        Huh, Cheung, Wang, Isola, "The platonic representation hypothesis", ICML 2024, appendix A.
    """

    stem = "cknna"
    range = (-1.0, 1.0)

    def _compared(self, a: NeighbourSide, b: NeighbourSide) -> float:
        own = [float((side.near * side.centred.square()).sum()) for side in (a, b)]
        least = [float(side.near.sum()) * (_ROUNDING * float(side.gram.abs().max())) ** 2 for side in (a, b)]
        if own[0] <= least[0] or own[1] <= least[1]:
            raise ValueError("features must tell examples apart. Got neighbours whose centred products are all 0.")
        both = torch.minimum(a.near, b.near) * a.centred * b.centred
        return float(both.sum()) / sqrt(own[0]) / sqrt(own[1])
