"""One side by its principal directions: what canonical correlations and regressions are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Self

from torch import Tensor

from .._features import check_distinct, check_same_examples
from .._linalg import eigen, singular
from .._sides import FeatureSide, check_same_size, cross_moments, feature_side, products

_NULL = 1e-9  # share of the largest variance below which a direction is taken for rounding


@dataclass(frozen=True)
class FactorSide:
    """One side with its principal directions: centred features ``U S V^T``, by the smaller of their two products.

    With more rows than channels they follow from the second moments, and ``U`` is features times ``V / S``; with fewer,
    from the products of rows, and ``U`` itself is kept.
    """

    side: FeatureSide  # The features
    share: float  # Share of the variance that is kept
    # ``S V^T``, ``(k, C)`` of the living channels: what each direction contributes to each channel
    weights: Tensor = field(repr=False)
    sizes: Tensor = field(repr=False)  # ``S``, ``(k,)``, the largest first
    # ``U`` as ``(N, P, k)``, where there are fewer rows than living channels
    basis: Tensor | None = field(default=None, repr=False)

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
        """Return the side with the examples ``index``; a subsample is decomposed anew."""
        side = self.side.take(index)
        if not check_distinct(index, self.n):
            return type(self)(side, self.share, *_directions(side, self.share))
        basis = None if self.basis is None else self.basis[index.to(self.basis.device)]
        return type(self)(side, self.share, self.weights, self.sizes, basis)

    def block(self, b: slice) -> Tensor:
        """Rows of the examples ``b``: of ``U`` where it is kept, of the centred features elsewhere."""
        return self.side.block(b) if self.basis is None else self.basis[b].flatten(0, 1)

    def whiten(self, rows: Tensor) -> Tensor:
        """Turn products with :meth:`block`'s columns ``(c, m)`` into products with the columns of ``U``, ``(k, m)``."""
        return rows if self.basis is not None else self.weights / self.sizes[:, None].square() @ rows


def factor_side(x: Tensor, channel_dim: int, share: float) -> FactorSide:
    """Check and centre features, and find the directions that hold ``share`` of their variance."""
    side = feature_side(x, channel_dim, center=True)
    return FactorSide(side, share, *_directions(side, share))


def _directions(side: FeatureSide, share: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """``S V^T``, ``S`` and perhaps ``U``; null directions and the last ``1 - share`` of the variance dropped."""
    few = side.n * prod(side.size) < int(side.kept.sum())
    if few:
        x = side.block(slice(0, side.n))
        variance, vectors = eigen(x @ x.T)
    else:
        variance, vectors = eigen(cross_moments(side, side))
    variance = variance[variance > _NULL * variance[0]]
    held = variance.cumsum(0) / variance.sum()
    k = min(len(variance), int((held < share - 1e-12).sum()) + 1)
    sizes, kept = variance[:k].sqrt(), vectors[:, :k]
    if few:
        return kept.T @ x, sizes, kept.reshape(side.n, -1, k)
    return sizes[:, None] * kept.T, sizes, None


def forced(a: FactorSide, b: FactorSide) -> int:
    """How many canonical correlations are 1 whatever the features: two subspaces of centred rows must meet."""
    return min(a.rank, b.rank, max(0, a.rank + b.rank - (a.rows - 1)))


def overlap(a: FactorSide, b: FactorSide) -> Tensor:
    """``U_a^T U_b``, ``(k, k')``: cosines between the directions of the two sides.

    Raises:
        ValueError: If the numbers of examples or the spatial sizes differ.
    """  # noqa: DOC502 - raised by the checks
    check_same_examples(a.n, b.n)
    check_same_size(a.side.size, b.side.size)
    cross = products(a.side, b.side, a.block, b.block)
    return b.whiten(a.whiten(cross).T).T


def correlations(a: FactorSide, b: FactorSide) -> tuple[Tensor, Tensor]:
    """Canonical directions of ``a``, ``(k, r)``, and the correlations ``(r,)``, clamped to [0, 1]."""
    left, rho, _ = singular(overlap(a, b))
    return left, rho.clamp(0, 1)
