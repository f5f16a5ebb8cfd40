"""Kernels of channels: the max kernel of G_ReLU-CKA, never an ``N x N x C`` tensor, and the Laplace kernel."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._features import Moments, subtract, working_dtype
from .kernels import Kernel, OfDistances, median_distance, mirror, triangle_tiles

_BYTES = 24 << 20


@dataclass(frozen=True)
class MaxKernel(Kernel):
    """``k(x, y) = max over c of <x_c, y_c>`` on centred, normalised channels (paper 1, definition 5.3 and D.7.2).

    For feature maps ``(N, C, *S)``: ``K[m, n] = max over c of sum over s of z[m, c, s] z[n, c, s]`` with
    ``z[n, c, s] = (x[n, c, s] - mean_c) / |x_c - mean_c|``, one mean and one norm for each channel, over all examples
    and positions.

    Differs from the paper's claim in v1 (lemma 5.5), which v2 withdraws: this kernel is *not* positive semi-definite.
    On ``(1, 0), (0, 1), (1, 1)`` the weights ``(1, 1, -1)`` give -1 (v2 example E.44). A CKA with it can be negative in
    its biased form too. And at one level of noise its CKA falls as channels grow (what v2 D.8 asks), since the maximum
    over more noise is larger. The ``"laplace"`` kernel has the same symmetry and neither fault.
    """

    name = "max"
    measure = "g_relu_cka"
    group = "monomial maps (permutations times nonzero scales per channel), and translations"
    psd = False

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the centred, normalised features."""
        return max_gram(x, moments.mean, 1 / moments.spread), {}


def max_gram(x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None, *, tile: int | None = None) -> Tensor:
    """Gram matrix of the max kernel: ``K[m, n] = max over c of sum over s of z[m, c, s] z[n, c, s]``.

    ``z = scale (x - shift)`` of features ``(N, C, *S)``, with a shift and a scale for each channel, ``(C,)``. Half
    precision is computed in float32, and NaN spreads to its whole row and column. One triangle of tiles, of ``tile``
    rows unless chosen by shape and device; in each, a running maximum over channels of small matrix products. Beside
    the result it needs two tiles and a buffer of channels, at most 64 MB together as long as one channel of all
    examples fits into 24 MB.
    """
    n, channels = x.shape[:2]
    x = x.reshape(n, channels, -1)
    dtype = working_dtype(x)
    tile = min(n, tile or _tile(n, x.shape[2], x.device))
    gram = torch.empty(n, n, dtype=dtype, device=x.device)
    space = torch.empty(2, tile * tile, dtype=dtype, device=x.device)
    tiles = list(triangle_tiles(n, tile, max(1, tile // 2) if x.shape[2] == 1 else None))
    multiply = torch.mul if x.shape[2] == 1 else torch.mm  # an outer product beats one of inner size 1
    for count, block in enumerate(channel_blocks(x, dtype, shift, scale)):
        for rows, columns in tiles:
            here = gram[rows, columns]
            best, product = (s[: here.numel()].view_as(here) for s in space)
            if count:
                best.copy_(here)
            for c, (a, b) in enumerate(zip(block[:, rows], block[:, columns])):
                if count or c:
                    torch.maximum(best, multiply(a, b.T, out=product), out=best)
                else:  # beginning with 0 would be wrong: all of an entry's products may be negative
                    multiply(a, b.T, out=best)
            here.copy_(best)
    return mirror(gram)


def _tile(n: int, p: int, device: torch.device) -> int:
    """Tile size by measurement on a CPU; on accelerators large, since every launch costs."""
    if device.type != "cpu":
        return 2048
    if p == 1:
        return 1024
    return 256 if p >= 1024 or (p >= 256 and n < 2048) else 512


@dataclass(frozen=True)
class LaplaceKernel(OfDistances):
    """``k(x, y) = exp(-sum over c of |x_c - y_c| / bandwidth)`` on centred, normalised channels (v2 eq. 5.6).

    Differs from the paper, which writes it for features without space, without normalisation and with bandwidth 1:
    ``|.|`` is the Euclidean norm over space, so that it is the l1 distance without space; channels are centred and
    divided by their norm, without which it is not G_ReLU invariant; and the bandwidth is the median distance between
    different examples unless given, told in the side's ``details``.

    It is positive semi-definite: each ``exp(-|x_c - y_c|)`` is, by Schoenberg's theorem, and so is their product. The
    paper asks about ``exp(-|x - y|_p)`` for other ``p``: positive semi-definite in every dimension for
    ``1 <= p <= 2``; not from dimension 2 on for ``p < 1``; not from dimension 3 on for ``p > 2``. At ``p = 2`` the
    symmetry is all of O(n).
    """

    name = "laplace"
    group = "monomial maps (permutations times nonzero scales per channel), and translations"

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
        for rows, columns in triangle_tiles(n, 512):
            left, right = block[:, rows], block[:, columns]
            if x.shape[2] == 1:
                total[rows, columns] += torch.cdist(left[..., 0].T, right[..., 0].T, p=1)
                continue
            for a, b in zip(left, right):
                square = torch.mm(a, b.T).mul_(-2)
                square += a.square().sum(1)[:, None]
                square += b.square().sum(1)
                total[rows, columns] += square.clamp_(min=0).sqrt_()
    return mirror(total).fill_diagonal_(0)


def channel_blocks(
    x: Tensor, dtype: torch.dtype, shift: Tensor | None = None, scale: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield ``(x - shift) * scale`` as blocks ``(c, N, P)`` with contiguous rows, all in one buffer."""
    n, channels, p = x.shape
    if shift is None and scale is None and x.dtype == dtype and p >= 64 and x.stride(2) == 1:
        yield x.transpose(0, 1)
        return
    step = max(1, min(channels, _BYTES // (n * p * dtype.itemsize)))
    buffer = torch.empty(step, n, p, dtype=dtype, device=x.device)
    for start in range(0, channels, step):
        part = x[:, start : start + step].transpose(0, 1)
        block = buffer[: len(part)].copy_(part)
        if shift is not None:
            subtract(block, shift[start : start + step, None, None])
        if scale is not None:
            block *= scale[start : start + step].to(block)[:, None, None]
        yield block
