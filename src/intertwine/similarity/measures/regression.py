"""The share of one side that a linear map of the other explains."""

from dataclasses import dataclass

from torch import Tensor

from ..base import Measure
from .factors import FactorSide, factor_side, forced, overlap

_DIRECTIONS = {
    "forward": (
        "linear_regression",
        "first side: invertible maps; second side: orthogonal maps times isotropic scales",
    ),
    "backward": (
        "linear_regression_backward",
        "first side: orthogonal maps times isotropic scales; second side: invertible maps",
    ),
}


@dataclass(frozen=True)
class LinearRegression(Measure[FactorSide]):
    """Share of the variance of one side that the best linear map of the other explains; not symmetric.

    With centred channels as columns, ``R2 = 1 - min over A of |Y - X A|^2 / |Y|^2 = |Q_x^T Y|^2 / |Y|^2`` for an
    orthonormal basis ``Q_x`` of the predictors. With space, every position counts as a row. It is the fit to the very
    examples that it is scored on: chance is about the rank of the predictors over ``rows - 1``, and with fewer rows
    than directions every score is 1. Directions of less than 1e-9 of the largest variance are taken for rounding. An
    example without any living activity is a row like others.

    Args:
        direction: ``"forward"``: the first side predicts the second; ``"backward"``: the second predicts the first.

    Raises:
        ValueError: If the direction is unknown.

    References:
        Kornblith, Norouzi, Lee, Hinton, "Similarity of neural network representations revisited", ICML 2019, table 1.
    """

    direction: str = "forward"

    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.direction not in _DIRECTIONS:
            raise ValueError(f"direction must be one of {', '.join(map(repr, _DIRECTIONS))}. Got {self.direction!r}.")

    @property
    def name(self) -> str:
        """``linear_regression``, with ``_backward`` where the second side predicts."""
        return _DIRECTIONS[self.direction][0]

    @property
    def group(self) -> str:
        """The exact invariance group of either side, in words."""
        return _DIRECTIONS[self.direction][1] + "; and translations"

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FactorSide:
        """Centre the features and find their directions."""
        return factor_side(x, channel_dim, 1.0)

    def score(self, a: FactorSide, b: FactorSide) -> float:
        """Explained share of the variance."""
        cosines, target = overlap(a, b).square(), self._target(a, b)
        explained = cosines.sum(0 if target is b else 1)  # of each direction of the target
        energy = target.sizes.square()
        return min(1.0, float(explained @ energy / energy.sum()))

    def floor(self, a: FactorSide, b: FactorSide) -> float:
        """Share of as many of the smallest variances as directions must be shared for want of rows."""
        energy = self._target(a, b).sizes.square()
        return float(energy[len(energy) - forced(a, b) :].sum() / energy.sum())

    def _target(self, a: FactorSide, b: FactorSide) -> FactorSide:
        return b if self.direction == "forward" else a
