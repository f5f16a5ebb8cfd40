"""Distance correlation: dependence of any kind, by the distances between examples."""

from dataclasses import dataclass
from math import acos, sqrt

from torch import Tensor

from .._features import check_same_examples
from .._sides import living_channels
from ..base import Measure
from ..hsic import check_estimator, inner
from .cka import GramSide, prepare_gram
from .kernels import square_distances


@dataclass(frozen=True)
class DistanceCorrelation(Measure[GramSide]):
    """Correlation of centred Euclidean distances between examples: 0 in the limit only for independent sides.

    With distances ``D`` over channels and space, ``A`` the double-centred and ``U`` the U-centred matrix (zero
    diagonal) of each side:

        biased:   dCor   = sqrt(<A_x, A_y> / (|A_x| |A_y|))        the sample distance correlation, 0 to 1
        unbiased: dCor^2 = <U_x, U_y> / (|U_x| |U_y|)              bias-corrected and *squared*, -1 to 1

    The biased one of wide independent features is near 1, as that of CKA. It is CKA with the kernel ``-|x - y|``.
    Constant channels are left out, which changes nothing; an example without any living activity is one like others.

    Raises:
        ValueError: If the estimator is unknown.

    References:
        Szekely, Rizzo, Bakirov, "Measuring and testing dependence by correlation of distances", Annals of Statistics
        2007 (biased); Szekely, Rizzo, "Partial distance correlation with methods for dissimilarities", Annals of
        Statistics 2014 (bias-corrected).
    """

    estimator: str = "unbiased"

    group = "orthogonal maps times isotropic scales, and translations"
    pairwise = True
    metric = True

    def __post_init__(self) -> None:
        check_estimator(self.estimator)

    @property
    def name(self) -> str:
        """``distance_correlation``, with ``_biased`` where that estimator is used."""
        return "distance_correlation" + ("_biased" if self.estimator == "biased" else "")

    @property
    def range(self) -> tuple[float, float]:
        """0 to 1 biased, -1 to 1 unbiased."""
        return (0.0 if self.estimator == "biased" else -1.0), 1.0

    def prepare(self, x: Tensor, channel_dim: int = 1) -> GramSide:
        """Compute all distances between examples, centre them and divide them by their norm."""
        x, m, dead = living_channels(x, channel_dim)
        distances = square_distances(x, m).sqrt_()
        return prepare_gram(distances, self.estimator, channels=x.shape[1] + dead, dead=dead)

    def score(self, a: GramSide, b: GramSide) -> float:
        """Distance correlation, squared where unbiased."""
        check_same_examples(a.n, b.n)
        found = max(-1.0, min(1.0, inner(a.gram, b.gram)))
        return sqrt(max(0.0, found)) if self.estimator == "biased" else found

    def to_distance(self, score: float, a: GramSide, b: GramSide) -> float:
        """Angle between the centred distance matrices: a metric, in radians."""
        return acos(score**2 if self.estimator == "biased" else score)

    def floor(self, a: GramSide, b: GramSide) -> float | None:
        """0 for the biased estimator; no bound above -1 is known elsewhere."""
        return 0.0 if self.estimator == "biased" else None
