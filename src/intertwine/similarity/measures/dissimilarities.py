"""Similarities by the distances between examples: representational similarity analysis, and distance correlation."""

from dataclasses import dataclass
from math import acos, sqrt

import torch
from torch import Tensor

from .._features import double
from .._sides import PairwiseSide, living_channels
from ..base import Measure
from ..hsic import inner
from .cka import Aligned, GramSide, prepare_gram
from .kernels import linear_gram, square_distances, unit_gram

_ROUNDING = 1e-13  # share of the largest squared dissimilarity within which two are equal
_GROUPS = {
    "correlation": "orthogonal maps that keep the line of (1, ..., 1), times isotropic scales; not all rotations",
    "euclidean": "orthogonal maps times isotropic scales, and translations",
}


@dataclass(frozen=True)
class DistanceCorrelation(Aligned[GramSide]):
    """Correlation of centred Euclidean distances between examples: 0 in the limit only for independent sides.

    With distances ``D`` over channels and space, ``A`` the double-centred and ``U`` the U-centred matrix (zero
    diagonal) of each side:

        biased:   dCor   = sqrt(<A_x, A_y> / (|A_x| |A_y|))        the sample distance correlation, 0 to 1
        unbiased: dCor^2 = <U_x, U_y> / (|U_x| |U_y|)              bias-corrected and *squared*, -1 to 1

    The biased one of wide independent features is near 1, as that of CKA. It is CKA with the kernel ``-|x - y|``.

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
    """Correlation, over pairs of examples, of the two sides' dissimilarities.

    With ``"correlation"``, the dissimilarity of two examples is 1 minus the Pearson correlation of their features over
    channels and space, and the score is *not* invariant to rotations or to rescaled channels.

    Constant channels are left out, where rsatoolbox and others keep them: with ``"correlation"``, which centres every
    example over its channels, a constant channel changes the score, though it says nothing about examples; with
    ``"euclidean"`` it changes nothing. An example without any living activity has no correlation with another and is
    refused by name; ``"euclidean"`` takes it.

    Raises:
        ValueError: If either is unknown.

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
    """Ranks from 0 on, the mean rank for values that are equal up to rounding: of it would come any ranks."""
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
    return square_distances(linear_gram(z)).div_(2)  # 1 - <z, z'>, without the digits that the 1 takes
