"""The Laplace kernel: positive semi-definite, with the symmetry of the max kernel."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._features import Moments, working_dtype
from .bandwidth import check_bandwidth, median_distance
from .base import Kernel
from .blocks import channel_blocks
from .symmetric import mirror, row_tiles


@dataclass(frozen=True)
class LaplaceKernel(Kernel):
    """``k(x, y) = exp(-sum over c of |x_c - y_c| / bandwidth)`` on centred, normalised channels (v2 eq. 5.6).

    Differs from the paper, which writes it for features without space, without normalisation and with bandwidth 1:
    ``|.|`` is the Euclidean norm over space, so that it is the l1 distance without space; channels are centred and
    divided by their norm, without which it is not G_ReLU invariant; and the bandwidth is the median distance between
    different examples unless given, told in the side's ``details``.

    It is positive semi-definite: each ``exp(-|x_c - y_c|)`` is, by Schoenberg's theorem, and so is their product. The
    paper asks about ``exp(-|x - y|_p)`` for other ``p``: positive semi-definite in every dimension for
    ``1 <= p <= 2``; not from dimension 2 on for ``p < 1``; not from dimension 3 on for ``p > 2``. At ``p = 2`` the
    symmetry is all of O(n).

    Raises:
        ValueError: If the bandwidth is not positive.
    """

    bandwidth: float | None = None

    name = "laplace"
    measure = "laplace_cka"
    group = "monomial maps (permutations times nonzero scales per channel), and translations"
    psd = True

    def __post_init__(self) -> None:
        check_bandwidth(self.bandwidth)

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the centred, normalised features, and the bandwidth that was used."""
        distances = channel_distances(x, 1 / moments.spread)
        bandwidth = self.bandwidth or median_distance(distances)
        return distances.div_(-bandwidth).exp_().to(working_dtype(x)), {"bandwidth": bandwidth}


def channel_distances(x: Tensor, scale: Tensor | None = None) -> Tensor:
    """Sum over channels of the Euclidean distance over space: ``D[m, n] = sum over c of s_c |x[m, c] - x[n, c]|``.

    From per-channel Gram matrices in float64, so memory is that of the result and one tile. Squared distances that
    rounding made negative are raised to 0, and the diagonal is exactly 0.
    """
    n, channels = x.shape[:2]
    x = x.reshape(n, channels, -1)
    total = torch.zeros(n, n, dtype=torch.float64, device=x.device)
    mean = torch.stack([x[:, c].mean(dtype=torch.float64) for c in range(channels)])  # centring keeps digits
    for block in channel_blocks(x, torch.float64, mean, scale):
        for rows in row_tiles(n, 512):
            for columns in row_tiles(rows.stop, 512):
                _add_distances(total[rows, columns], block[:, rows], block[:, columns])
    return mirror(total).fill_diagonal_(0)


def _add_distances(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.shape[2] == 1:
        total += torch.cdist(left[..., 0].T, right[..., 0].T, p=1)
        return
    for a, b in zip(left, right):
        square = torch.mm(a, b.T).mul_(-2)
        square += a.square().sum(1)[:, None]
        square += b.square().sum(1)
        total += square.clamp_(min=0).sqrt_()
