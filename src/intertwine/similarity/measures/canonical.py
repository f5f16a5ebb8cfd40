"""Similarities by principal directions: SVCCA, PWCCA, R2_CCA, and the variance that a linear map explains."""

from dataclasses import dataclass
from math import prod
from typing import Self

from torch import Tensor

from .._features import check_distinct
from .._linalg import eigen, singular
from ..base import FeatureSide, Measure, cross_moments, feature_side

_NULL = 1e-9  # share of the largest variance, with channels at norm 1, below which a direction counts as rounding
_SURELY = 1e-14  # share below which it surely is
_Directions = tuple[Tensor, Tensor, Tensor, bool]


class FactorSide(FeatureSide):
    """One side with its principal directions: centred features ``U S V^T``, from the smaller of their two products.

    ``weights`` are ``S V^T``, ``(k, C)`` over the living channels; ``sizes`` are ``S``, ``(k,)``, the largest first.
    ``basis`` is ``U`` as ``(N, P, k)`` where there are fewer rows than channels (``few``), else the map ``(k, C)`` from
    products with the channels to products with the columns of ``U``.
    """

    def __init__(self, side: FeatureSide, share: float, known: _Directions | None = None) -> None:
        super().__init__(side.features, side.moments, side.center, side.rows)
        self.side, self.share = side, share
        self.weights, self.sizes, self.basis, self.few = known or _directions(side, share)
        self.rank = len(self.weights)  # number of directions kept
        self.details = {"directions": self.rank}

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``; a subsample is decomposed anew."""
        side, (index, everything) = self.side.take(index), check_distinct(index, self.weights, self.n)
        basis = self.basis[index] if everything and self.few else self.basis
        return type(self)(side, self.share, (self.weights, self.sizes, basis, self.few) if everything else None)

    def block(self, b: slice) -> Tensor:
        """Rows of the examples ``b``: of ``U`` where it is kept, else of the centred features."""
        return self.basis[b].flatten(0, 1) if self.few else super().block(b)

    def whiten(self, rows: Tensor) -> Tensor:
        """Turn products with :meth:`block`'s columns ``(c, m)`` into products with the columns of ``U``, ``(k, m)``."""
        return rows if self.few else self.basis @ rows


def _directions(side: FeatureSide, share: float) -> _Directions:
    """``S V^T``, ``S`` and the basis for ``U``; null directions and the last ``1 - share`` of the variance are dropped.

    Where it is unclear which directions are null, they are judged with channels at norm 1: large channels then do not
    hide the others, and rounding is judged channel by channel.
    """
    few = side.n * prod(side.size) < int(side.kept.sum())
    x = side.block(slice(0, side.n)) if few else None
    moments = cross_moments(side, side) if x is None else x @ x.T
    variance, vectors = eigen(moments)
    left = variance / variance[0]
    norms = (moments.diagonal() if x is None else x.square().sum(0)).sqrt()
    # a small channel among large ones is not rounding, however small
    if bool(((left <= _NULL) & (left > _SURELY)).any()) or float(norms.min()) ** 2 * _NULL < _SURELY * variance[0]:
        variance, vectors = eigen(moments / norms / norms[:, None] if x is None else (x / norms) @ (x / norms).T)
        some = variance > _NULL * variance[0]
        spread, vectors = variance[some].sqrt(), vectors[:, some]
        turn, sizes, right = singular(spread[:, None] * vectors.T * norms if x is None else vectors.T @ x)
        vectors = vectors @ turn if few else vectors / norms[:, None] / spread @ turn
    else:
        sizes, vectors = variance[left > _NULL].sqrt(), vectors[:, left > _NULL]
        right, vectors = (vectors.T, vectors / sizes) if x is None else (vectors.T @ x / sizes[:, None], vectors)
    held = sizes.square().cumsum(0) / sizes.square().sum()
    k = len(sizes) if share == 1 else min(len(sizes), int((held < share - 1e-12).sum()) + 1)
    basis = vectors[:, :k].reshape(side.n, -1, k) if few else vectors[:, :k].T
    return sizes[:k, None] * right[:k], sizes[:k], basis, few


def _forced(a: FactorSide, b: FactorSide) -> int:
    """Number of canonical correlations that are 1 whatever the features: two subspaces of centred rows must meet."""
    rows = a.n * prod(a.size)
    return min(a.rank, b.rank, max(0, a.rank + b.rank - (rows - 1)))


def _overlap(a: FactorSide, b: FactorSide) -> Tensor:
    """``U_a^T U_b``, ``(k, k')``: cosines between the directions of the two sides."""
    return b.whiten(a.whiten(cross_moments(a, b)).T).T


class _ByDirections(Measure[FactorSide]):
    """Base of measures of both sides' main directions: all of them unless a share of the variance is asked for.

    Every position of an example counts as a row, so both sides need the same spatial size. With channels at norm 1,
    directions with less than 1e-9 of the largest variance count as rounding: "all invertible maps" means scales of
    channels, and maps with a condition number below 3e4.
    """

    share: float = 1.0
    range = (0.0, 1.0)

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FactorSide:
        """Centre the features and find their directions."""
        return FactorSide(feature_side(x, channel_dim, center=True), self.share)

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """Share of the correlations that are 1 for lack of rows: all, if there are as many directions as rows."""
        return _forced(a, b) / min(a.rank, b.rank)


@dataclass(frozen=True)
class SVCCA(_ByDirections):
    """Mean canonical correlation of the two sides' main directions.

    ``sum of rho_i / min(k, k')`` over the canonical correlations of the ``k`` and ``k'`` singular directions that hold
    ``share`` of each side's variance. Every position of an example counts as a row, so both sides need the same spatial
    size. With fewer than ten rows per direction, unrelated sides correlate by chance.

    Raises:
        ValueError: If the share is outside (0, 1].

    References:
        Raghu, Gilmer, Yosinski, Sohl-Dickstein, "SVCCA: singular vector canonical correlation analysis for deep
        learning dynamics and interpretability", NeurIPS 2017.
    """

    share: float = 0.99  # Share of the variance to keep; in (0, 1]

    stem = "svcca"
    group = "orthogonal maps times isotropic scales, and translations"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1]. Got {self.share}.")

    def _compared(self, a: FactorSide, b: FactorSide) -> float:
        return float(singular(_overlap(a, b))[1].clamp(0, 1).mean())


@dataclass(frozen=True)
class PWCCA(_ByDirections):
    """Canonical correlations weighted by how much of the *first* side they account for; not symmetric.

    ``sum of alpha_i rho_i / sum of alpha_i`` with ``alpha_i = sum over c of |<h_i, x_c>|``, where ``h_i`` are the
    canonical variates and ``x_c`` the channels of the first side. Among variates whose correlations are 1 for lack of
    rows, any basis would do; those along which the first side varies most are taken. Rows are as in :class:`SVCCA`;
    with channels at norm 1, directions with less than 1e-9 of the largest variance count as rounding.

    References:
        Morcos, Raghu, Bengio, "Insights on representational similarity in neural networks with canonical correlation",
        NeurIPS 2018.
    """

    stem = "pwcca"
    group = "first side: signed permutations times isotropic scales; second side: invertible maps; and translations"

    def _compared(self, a: FactorSide, b: FactorSide) -> float:
        turn, rho, _ = singular(_overlap(a, b))
        rho, ties = rho.clamp(0, 1), turn[:, : _forced(a, b)]
        if 0 < ties.shape[1] < len(rho):
            turn[:, : ties.shape[1]] = ties @ singular(ties.T @ a.weights)[0]
        alpha = (turn.T @ a.weights).abs().sum(1)  # <h_i, x_c> for h = U turn and x = U S V^T
        return float(alpha @ rho / alpha.sum())

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """1 where there are too few rows for any correlation below 1, else 0, since the weights decide in between."""
        return float(_forced(a, b) == min(a.rank, b.rank))


@dataclass(frozen=True)
class R2CCA(_ByDirections):
    """Mean squared canonical correlation, ``sum of rho_i^2 / min(k, k')`` for sides of rank ``k`` and ``k'``.

    It equals ``|Q_a^T Q_b|^2 / min(k, k')`` for orthonormal bases ``Q`` of the two sides' centred channels. Rows and
    directions are as in :class:`PWCCA`. Chance is about ``max(k, k') / (rows - 1)``: with fewer rows than directions
    every score is 1.

    References:
        Kornblith, Norouzi, Lee, Hinton, "Similarity of neural network representations revisited", ICML 2019, table 1.
    """

    stem = "r2_cca"
    group = "invertible maps, and translations"

    def _compared(self, a: FactorSide, b: FactorSide) -> float:
        return float(_overlap(a, b).square().sum()) / min(a.rank, b.rank)


_MAPS = ("invertible maps", "orthogonal maps times isotropic scales")
_SIDES = {"forward": _MAPS, "backward": _MAPS[::-1]}  # maps of each side that leave the score unchanged


@dataclass(frozen=True)
class LinearRegression(_ByDirections):
    """Share of one side's variance that the best linear map of the other side explains; not symmetric.

    With centred channels as columns, ``R2 = 1 - min over A of |Y - X A|^2 / |Y|^2 = |Q_x^T Y|^2 / |Y|^2`` for an
    orthonormal basis ``Q_x`` of the predictors. The fit is scored on the very examples it was made on: chance is about
    the rank of the predictors over ``rows - 1``, and with fewer rows than directions every score is 1. Rows and
    directions are as in :class:`PWCCA`.

    Raises:
        ValueError: If the direction is unknown.

    References:
        Kornblith, Norouzi, Lee, Hinton, "Similarity of neural network representations revisited", ICML 2019, table 1.
    """

    direction: str = "forward"  # The first side predicts the second; ``"backward"``: the second predicts the first

    stem = "linear_regression"

    def __post_init__(self) -> None:
        if self.direction not in _SIDES:
            raise ValueError(f"direction must be one of {', '.join(map(repr, _SIDES))}. Got {self.direction!r}.")
        vars(self)["group"] = "first side: {}; second side: {}; and translations".format(*_SIDES[self.direction])

    def _compared(self, a: FactorSide, b: FactorSide) -> float:
        cosines, target = _overlap(a, b).square(), self._target(a, b)
        explained = cosines.sum(0 if target is b else 1)  # share of each direction of the target
        energy = target.sizes.square()
        return float(explained @ energy / energy.sum())

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """Share of variance in the target's smallest directions, as many as must be shared for lack of rows."""
        energy = self._target(a, b).sizes.square()
        return float(energy[len(energy) - _forced(a, b) :].sum() / energy.sum())

    def _target(self, a: FactorSide, b: FactorSide) -> FactorSide:
        return b if self.direction == "forward" else a
