"""Similarities by canonical correlations: SVCCA and PWCCA."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from ._features import check_same_examples
from ._sides import FeatureSide, cross_moments, feature_side
from .base import Measure

__all__ = ["PWCCA", "SVCCA", "FactorSide"]

_NULL = 1e-9  # share of the largest variance below which a direction is taken for rounding


@dataclass(frozen=True)
class FactorSide:
    """One side with its principal directions: centred features ``U S V^T`` by their second moments.

    Attributes:
        side: The features.
        whiten: ``V / S``, ``(C, k)``: features times it are orthonormal.
        weights: ``S V^T``, ``(k, C)``: what each direction contributes to each channel.
        share: Share of the variance that is kept.
    """

    side: FeatureSide
    whiten: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)
    share: float

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.side.n

    @property
    def channels(self) -> int:
        """Number of channels, dead ones included."""
        return self.side.channels

    @property
    def dead(self) -> int:
        """Number of constant channels, left out."""
        return self.side.dead

    @property
    def rank(self) -> int:
        """Number of directions that were kept."""
        return len(self.weights)

    @property
    def rows(self) -> int:
        """Number of rows: positions of examples."""
        return self.n * prod(self.side.size)

    @property
    def details(self) -> Mapping[str, Any]:
        """``directions``: how many were kept."""
        return {"directions": self.rank}

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``, decomposed anew."""
        side = self.side.take(index)
        return type(self)(side, *_directions(side, self.share), self.share)


@dataclass(frozen=True)
class SVCCA(Measure[FactorSide]):
    """Mean canonical correlation of the two sides' main directions.

    ``sum of rho_i / min(k, k')`` over the canonical correlations of the ``k`` and ``k'`` singular directions that hold
    ``share`` of each side's variance. Every position of an example counts as a row, so both sides need one spatial
    size. About ten rows per direction are needed at least: with fewer, unrelated sides correlate by chance.

    Args:
        share: Share of the variance to keep, in (0, 1].

    Raises:
        ValueError: If the share is outside (0, 1].

    References:
        Raghu, Gilmer, Yosinski, Sohl-Dickstein, "SVCCA: singular vector canonical correlation analysis for deep
        learning dynamics and interpretability", NeurIPS 2017.
    """

    share: float = 0.99

    group = "orthogonal maps times isotropic scales, and translations"
    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1]. Got {self.share}.")

    @property
    def name(self) -> str:
        """``svcca``, with the share of the variance where it is not 0.99."""
        return "svcca" if self.share == 0.99 else f"svcca_{self.share:g}"

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FactorSide:
        """Centre the features and find their main directions.

        Args:
            x: Features ``(N, C, *S)``, or with the channels at ``channel_dim``.
            channel_dim: Axis of the channels.
        """
        side = feature_side(x, channel_dim, center=True)
        return FactorSide(side, *_directions(side, self.share), self.share)

    def score(self, a: FactorSide, b: FactorSide) -> float:
        """Mean canonical correlation."""
        return min(1.0, float(_correlations(a, b)[1].mean()))

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """Share of the correlations that are 1 for want of rows: all of them from as many directions as rows on."""
        return _forced(a, b) / min(a.rank, b.rank)


@dataclass(frozen=True)
class PWCCA(Measure[FactorSide]):
    """Canonical correlations weighted by how much of the *first* side they account for; not symmetric.

    ``sum of alpha_i rho_i / sum of alpha_i`` with ``alpha_i = sum over c of |<h_i, x_c>|``, ``h_i`` the canonical
    variates and ``x_c`` the channels of the first side. With space, every position counts as a row. Directions of less
    than 1e-9 of the largest variance are taken for rounding, so "all invertible maps" means well-conditioned ones.

    References:
        Morcos, Raghu, Bengio, "Insights on representational similarity in neural networks with canonical correlation",
        NeurIPS 2018.
    """

    name = "pwcca"
    group = "first side: signed permutations times isotropic scales; second side: invertible maps; and translations"
    range = (0.0, 1.0)

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FactorSide:
        """Centre the features and find their directions.

        Args:
            x: Features ``(N, C, *S)``, or with the channels at ``channel_dim``.
            channel_dim: Axis of the channels.
        """
        side = feature_side(x, channel_dim, center=True)
        return FactorSide(side, *_directions(side, 1.0), 1.0)

    def score(self, a: FactorSide, b: FactorSide) -> float:
        """Weighted canonical correlation of ``a``'s directions with those of ``b``."""
        turn, rho = _correlations(a, b)
        alpha = (turn.T @ a.weights).abs().sum(1)  # <h_i, x_c> for h = U turn and x = U S V^T
        return min(1.0, float(alpha @ rho / alpha.sum()))

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """1 where there are too few rows for any correlation below 1; the weights decide in between."""
        return float(_forced(a, b) == min(a.rank, b.rank))


def _directions(side: FeatureSide, share: float) -> tuple[Tensor, Tensor]:
    """``V / S`` and ``S V^T`` of the centred features, null directions and the last ``1 - share`` dropped.

    Raises:
        ValueError: If all channels are constant.
    """
    variance, vectors = torch.linalg.eigh(cross_moments(side, side, center=True))
    variance, vectors = variance.flip(0), vectors.flip(1)
    if not variance[0] > 0:
        raise ValueError("features must vary between examples. Got a subsample in which all channels are constant.")
    variance = variance[variance > _NULL * variance[0]]
    held = variance.cumsum(0) / variance.sum()
    k = min(len(variance), int((held < share - 1e-12).sum()) + 1)
    s, v = variance[:k].sqrt(), vectors[:, :k]
    return v / s, s[:, None] * v.T


def _forced(a: FactorSide, b: FactorSide) -> int:
    """How many canonical correlations are 1 whatever the features: two subspaces of centred rows must meet."""
    return min(a.rank, b.rank, max(0, a.rank + b.rank - (a.rows - 1)))


def _correlations(a: FactorSide, b: FactorSide) -> tuple[Tensor, Tensor]:
    """Canonical directions of ``a``, ``(k, r)``, and the correlations ``(r,)``, clamped to [0, 1]."""
    check_same_examples(a.n, b.n)
    cross = a.whiten.T @ cross_moments(a.side, b.side, center=True) @ b.whiten
    left, rho, _ = torch.linalg.svd(cross, full_matrices=False)
    return left, rho.clamp(0, 1)
