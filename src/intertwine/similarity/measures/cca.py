"""Similarities by canonical correlations: SVCCA, PWCCA and R2_CCA."""

from dataclasses import dataclass

from torch import Tensor

from ..base import Measure
from .factors import FactorSide, correlations, factor_side, forced, overlap


@dataclass(frozen=True)
class SVCCA(Measure[FactorSide]):
    """Mean canonical correlation of the two sides' main directions.

    ``sum of rho_i / min(k, k')`` over the canonical correlations of the ``k`` and ``k'`` singular directions that hold
    ``share`` of each side's variance. Every position of an example counts as a row, so both sides need one spatial
    size. About ten rows per direction are needed at least: with fewer, unrelated sides correlate by chance. Constant
    channels are left out; an example without any living activity is a row like others.

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
        """Centre the features and find their main directions."""
        return factor_side(x, channel_dim, self.share)

    def score(self, a: FactorSide, b: FactorSide) -> float:
        """Mean canonical correlation."""
        return min(1.0, float(correlations(a, b)[1].mean()))

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """Share of the correlations that are 1 for want of rows: all of them from as many directions as rows on."""
        return forced(a, b) / min(a.rank, b.rank)


class _OfAllDirections(Measure[FactorSide]):
    """A measure of all directions of both sides."""

    range = (0.0, 1.0)

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FactorSide:
        """Centre the features and find their directions."""
        return factor_side(x, channel_dim, 1.0)


@dataclass(frozen=True)
class PWCCA(_OfAllDirections):
    """Canonical correlations weighted by how much of the *first* side they account for; not symmetric.

    ``sum of alpha_i rho_i / sum of alpha_i`` with ``alpha_i = sum over c of |<h_i, x_c>|``, ``h_i`` the canonical
    variates and ``x_c`` the channels of the first side. With space, every position counts as a row. Directions of less
    than 1e-9 of the largest variance are taken for rounding, so "all invertible maps" means well-conditioned ones.
    Constant channels are left out; an example without any living activity is a row like others.

    References:
        Morcos, Raghu, Bengio, "Insights on representational similarity in neural networks with canonical correlation",
        NeurIPS 2018.
    """

    name = "pwcca"
    group = "first side: signed permutations times isotropic scales; second side: invertible maps; and translations"

    def score(self, a: FactorSide, b: FactorSide) -> float:
        """Weighted canonical correlation of ``a``'s directions with those of ``b``."""
        turn, rho = correlations(a, b)
        alpha = (turn.T @ a.weights).abs().sum(1)  # <h_i, x_c> for h = U turn and x = U S V^T
        return min(1.0, float(alpha @ rho / alpha.sum()))

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """1 where there are too few rows for any correlation below 1; the weights decide in between."""
        return float(forced(a, b) == min(a.rank, b.rank))


@dataclass(frozen=True)
class R2CCA(_OfAllDirections):
    """Mean squared canonical correlation, ``sum of rho_i^2 / min(k, k')`` for sides of rank ``k`` and ``k'``.

    It equals ``|Q_a^T Q_b|^2 / min(k, k')`` for orthonormal bases ``Q`` of the two sides' centred channels. With space,
    every position counts as a row. Directions of less than 1e-9 of the largest variance are taken for rounding. Chance
    is about ``max(k, k') / (rows - 1)``: with fewer rows than directions every score is 1. An example without any
    living activity is a row like others.

    References:
        Kornblith, Norouzi, Lee, Hinton, "Similarity of neural network representations revisited", ICML 2019, table 1.
    """

    name = "r2_cca"
    group = "invertible maps, and translations"

    def score(self, a: FactorSide, b: FactorSide) -> float:
        """Mean squared canonical correlation."""
        return min(1.0, float(overlap(a, b).square().sum()) / min(a.rank, b.rank))

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """Share of the correlations that are 1 for want of rows."""
        return forced(a, b) / min(a.rank, b.rank)
