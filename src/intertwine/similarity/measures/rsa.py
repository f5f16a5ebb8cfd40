"""Representational similarity analysis."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .._features import check_same_examples, double
from .._sides import PairwiseSide, living_channels
from ..base import Measure
from .kernels import square_distances

_ROUNDING = 1e-13  # share of the largest squared dissimilarity within which two are equal
_GROUPS = {
    "correlation": "orthogonal maps that keep the line of (1, ..., 1), times isotropic scales; not all rotations",
    "euclidean": "orthogonal maps times isotropic scales, and translations",
}


@dataclass(frozen=True)
class RSA(Measure[PairwiseSide]):
    """Correlation, over pairs of examples, of the two sides' dissimilarities.

    With ``"correlation"``, the dissimilarity of two examples is 1 minus the Pearson correlation of their features over
    channels and space, and the score is *not* invariant to rotations or to rescaled channels.

    Constant channels are left out, where rsatoolbox and others keep them: with ``"correlation"``, which centres every
    example over its channels, a constant channel changes the score, though it says nothing about examples; with
    ``"euclidean"`` it changes nothing. An example without any living activity has no correlation with another and is
    refused by name; ``"euclidean"`` takes it.

    Args:
        distance: ``"correlation"`` or ``"euclidean"``.
        compare: ``"spearman"`` (rank) or ``"pearson"`` correlation of the dissimilarities.

    Raises:
        ValueError: If either is unknown.

    References:
        Kriegeskorte, Mur, Bandettini, "Representational similarity analysis - connecting the branches of systems
        neuroscience", Frontiers in Systems Neuroscience 2008.
    """

    distance: str = "correlation"
    compare: str = "spearman"

    range = (-1.0, 1.0)
    pairwise = True

    def __post_init__(self) -> None:
        if self.distance not in _GROUPS:
            raise ValueError(f"distance must be one of {', '.join(map(repr, _GROUPS))}. Got {self.distance!r}.")
        if self.compare not in ("spearman", "pearson"):
            raise ValueError(f"compare must be 'spearman' or 'pearson'. Got {self.compare!r}.")

    @property
    def name(self) -> str:
        """``rsa``, with what differs from the usual choice."""
        usual = ("correlation", "spearman")
        return "_".join(["rsa", *(choice for choice in (self.distance, self.compare) if choice not in usual)])

    @property
    def group(self) -> str:
        """The exact invariance group, in words."""
        return _GROUPS[self.distance]

    def prepare(self, x: Tensor, channel_dim: int = 1) -> PairwiseSide:
        """Compute the dissimilarities of all pairs of examples."""
        x, m, dead = living_channels(x, channel_dim)
        matrix = _correlation_distances(x) if self.distance == "correlation" else square_distances(x, m).sqrt_()
        return PairwiseSide(matrix, x.shape[1] + dead, dead)

    def score(self, a: PairwiseSide, b: PairwiseSide) -> float:
        """Correlation of the two lists of dissimilarities."""
        check_same_examples(a.n, b.n)
        return min(1.0, max(-1.0, float(self._standardised(a) @ self._standardised(b))))

    def _standardised(self, side: PairwiseSide) -> Tensor:
        below = torch.ones(side.n, side.n, dtype=torch.bool, device=side.matrix.device).tril_(-1)
        values = side.matrix[below]
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
    z = double(x).flatten(1)
    z = z - z.mean(1, keepdim=True)
    norm = z.norm(dim=1, keepdim=True)
    flat = norm[:, 0] <= torch.finfo(x.dtype).eps * double(x).flatten(1).norm(dim=1)
    if flat.any():
        raise ValueError(
            f"features must vary within every example for correlation distances. Got {int(flat.sum())} examples whose "
            'features are all equal. Use RSA(distance="euclidean").'
        )
    z /= norm
    return square_distances(z).div_(2)  # 1 - <z, z'>, without the digits that the 1 takes
