"""The Gaussian kernel."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .._features import Moments, working_dtype
from .bandwidth import check_bandwidth, median_distance
from .base import Kernel
from .linear import square_distances


@dataclass(frozen=True)
class RBFKernel(Kernel):
    """``k(x, y) = exp(-|x - y|^2 / (2 bandwidth^2))``, the Euclidean distance over channels and space.

    The bandwidth is the median distance between different examples unless given, which makes the score invariant to
    isotropic scales; it is told in the side's ``details``.

    Raises:
        ValueError: If the bandwidth is not positive.
    """

    bandwidth: float | None = None

    name = "rbf"
    measure = "rbf_cka"
    psd = True

    def __post_init__(self) -> None:
        check_bandwidth(self.bandwidth)

    @property
    def group(self) -> str:
        """The exact invariance group: isotropic scales belong to it only under the median rule."""
        return "orthogonal maps" + (" times isotropic scales" if self.bandwidth is None else "") + ", and translations"

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the features, and the bandwidth that was used."""
        square = square_distances(x)
        bandwidth = self.bandwidth or median_distance(square, root=True)
        return square.div_(-2 * bandwidth**2).exp_().to(working_dtype(x)), {"bandwidth": bandwidth}
