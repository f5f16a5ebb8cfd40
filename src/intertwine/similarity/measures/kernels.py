"""Kernels of examples in the form that CKA needs: inner products of whole examples, or of one channel at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._features import Moments, double, subtract, unit_scale, working_dtype

_EXACT = 4096  # examples for a median; from more, evenly spaced ones are taken
_ROUNDING = 1e-14  # share of the largest squared distance below which differences of products are rounding
_BLOCK, _COLUMNS = 1 << 18, 512  # elements and columns of centred features at a time, so that they stay in the cache


class Kernel(ABC):
    """A function of two examples' features; a CKA sees only its Gram matrix over all examples.

    Concrete kernels are small frozen dataclasses.
    """

    name: str  # Name in the registry
    group: str  # The exact invariance group of the CKA that uses it, in words
    psd: bool  # Whether every Gram matrix is positive semi-definite
    reads_gates: ClassVar[bool] = False  # Whether signs of features are taken as the gates of their units

    @property
    def measure(self) -> str:
        """Name of the CKA that uses this kernel."""
        return f"{self.name}_cka"

    @abstractmethod
    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix ``(N, N)`` of features without constant channels, and what was chosen along the way."""

    def explicit(self, x: Tensor, moments: Moments) -> Tensor | None:
        """Arrays ``(N, ...)``, one per example, whose inner products are the Gram matrix; ``None`` if none exist."""
        return None


class _OfNumbers(Kernel):
    """Inner products of one array per example, ``(N, C, *S)``, times a factor for each channel, ``(C,)``."""

    psd = True

    @abstractmethod
    def _numbers(self, x: Tensor, moments: Moments) -> tuple[Tensor, Tensor | None]: ...

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the arrays, centred over examples."""
        numbers, scale = self._numbers(x, moments)
        return linear_gram(numbers, scale, working_dtype(x)), {}

    def explicit(self, x: Tensor, moments: Moments) -> Tensor:
        """The arrays themselves."""
        numbers, scale = self._numbers(x, moments)
        return double(numbers) if scale is None else double(numbers) * scale.view(-1, *[1] * (x.ndim - 2))


@dataclass(frozen=True)
class LinearKernel(_OfNumbers):
    """``k(x, y) = <x, y>``, summed over channels and space: standard, truly orthogonally invariant linear CKA.

    The Gram matrix is divided by a power of 4 that keeps it in range.
    """

    name = "linear"
    group = "orthogonal maps times isotropic scales, and translations"

    def _numbers(self, x: Tensor, moments: Moments) -> tuple[Tensor, Tensor]:
        return x, unit_scale(moments.spread)


@dataclass(frozen=True)
class ChannelNormalizedKernel(_OfNumbers):
    """``k(x, y) = sum over c of <x_c, y_c> / |c|^2``, each channel centred and divided by its norm.

    Differs from linear CKA: it is *not* orthogonally invariant. It is here to reproduce the paper's figures 2b, 5b and
    11b, which show it under the name orthogonal CKA.
    """

    name = "channel_normalized"
    group = "monomial maps (permutations times nonzero scales per channel), and translations"

    def _numbers(self, x: Tensor, moments: Moments) -> tuple[Tensor, Tensor]:
        return x, 1 / moments.spread


def linear_gram(x: Tensor, scale: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Gram matrix of features centred over examples: ``K[m, n] = sum over c, s of s_c^2 x[m, c, s] x[n, c, s]``.

    Centring first changes no HSIC and keeps large means from costing digits. Only one triangle is computed, a block of
    channels at a time, so that no copy is made; by default in float32, or in float64 for float64 features.
    """
    n, channels = x.shape[:2]
    dtype = dtype or working_dtype(x)
    gram = torch.zeros(n, n, dtype=dtype, device=x.device)
    step = max(1, max(_BLOCK // n, _COLUMNS) * n * channels // x.numel())
    for start in range(0, channels, step):
        z = x[:, start : start + step].to(dtype)
        z = z - z.mean(0)
        if scale is not None:
            z *= scale.expand(channels)[start : start + step].to(z).view(-1, *[1] * (x.ndim - 2))
        add_product(gram, z.flatten(1))
    return mirror(gram)


def unit_gram(x: Tensor, moments: Moments) -> Tensor:
    """Gram matrix of the centred features in float64, divided by a power of 4 that keeps it in range."""
    return linear_gram(x, unit_scale(moments.spread), torch.float64)


def square_distances(products: Tensor) -> Tensor:
    """Squared distances ``(N, N)`` of points, from their inner products; equal points are at exactly 0."""
    norms = products.diagonal()
    distances = (-2 * products).add_(norms).add_(norms[:, None]).fill_diagonal_(0)
    return distances.masked_fill_(distances < _ROUNDING * distances.max(), 0)


@dataclass(frozen=True)
class GatesKernel(_OfNumbers):
    """``k(x, y) = sum over c, s of 1{x_cs > 0} 1{y_cs > 0}``: one layer's overlap of active units (paper 2, section 2).

    Give it features behind a ReLU, or another activation that keeps signs: these are the layer's gates. The Gram matrix
    is what one layer contributes to the neural path kernel of a fully connected network (theorem 3.1). So this CKA
    compares which units two layers switch on, not how strongly, and sees no scale at all. Behind a ReLU the group is
    exactly that of the ReLU; on features without zeros, such as pre-activations, a flipped sign exchanges on and off,
    which centring cannot tell apart.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import cka
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(50, 8, generator=g)
        >>> scales, signs = torch.rand(8, generator=g) + 0.1, torch.tensor([1.0] * 7 + [-1.0])
        >>> round(cka(x, x.relu() * scales, kernel="gates"), 6)
        1.0
        >>> round(cka(x, x * signs, kernel="gates"), 6), cka(x, x.relu() * signs, kernel="gates") < 0.95
        (1.0, True)
    """

    name = "gates"
    group = "positive monomial maps (permutations times positive scales per channel); signs too where nothing is 0"
    reads_gates = True

    def _numbers(self, x: Tensor, moments: Moments) -> tuple[Tensor, None]:
        return x > 0, None


@dataclass(frozen=True)
class OfDistances(Kernel):
    """A kernel that falls with distance over a positive bandwidth, by default the median between different examples."""

    bandwidth: float | None = None
    psd = True

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not 0 < self.bandwidth < float("inf"):
            raise ValueError(f"bandwidth must be positive, or None for the median rule. Got {self.bandwidth}.")

    @property
    def measure(self) -> str:
        """Name of the CKA that uses this kernel, with its bandwidth if one was given."""
        return super().measure if self.bandwidth is None else f"{super().measure}_{self.bandwidth:g}"


@dataclass(frozen=True)
class RBFKernel(OfDistances):
    """``k(x, y) = exp(-|x - y|^2 / (2 bandwidth^2))``, with the Euclidean distance over channels and space.

    By default the bandwidth is the median distance between different examples, which makes the score invariant to
    isotropic scales; the side's ``details`` give its value.
    """

    name = "rbf"

    def __post_init__(self) -> None:
        super().__post_init__()
        scales = " times isotropic scales" if self.bandwidth is None else ""  # under the median rule alone
        vars(self)["group"] = f"orthogonal maps{scales}, and translations"

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the features, and the bandwidth that was used."""
        square = square_distances(linear_gram(x, dtype=torch.float64))
        bandwidth = self.bandwidth or median_distance(square, root=True)
        return square.div_(-2 * bandwidth**2).exp_().to(working_dtype(x)), {"bandwidth": bandwidth}


def median_distance(distances: Tensor, root: bool = False) -> float:
    """Median over pairs of different examples, of at most 4096 evenly spaced ones; ``root`` for squared distances."""
    n = len(distances)
    if n > _EXACT:
        chosen = torch.linspace(0, n - 1, _EXACT, device=distances.device).long()
        distances = distances[chosen][:, chosen]
        n = _EXACT
    below = distances[torch.ones(n, n, dtype=torch.bool, device=distances.device).tril_(-1)]
    middle = torch.stack([below.median(), -(-below).median()])  # torch takes the lower one of two middle values
    median = float((middle.sqrt() if root else middle).mean())
    if median <= 0:
        raise ValueError(
            "bandwidth must be given here: at least half of all pairs of examples have equal features. Got a median "
            "distance of 0. Pass LaplaceKernel(bandwidth=...) or RBFKernel(bandwidth=...), or leave duplicates out."
        )
    return median


def row_tiles(n: int, tile: int, start: int = 0) -> Iterator[slice]:
    """Slices of at most ``tile`` rows of ``n``, from row ``start`` on."""
    return (slice(first, min(n, first + tile)) for first in range(start, n, tile))


def triangle_tiles(n: int, tile: int, corner: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Yield tiles (rows, columns) that cover the lower triangle; those on the diagonal in pieces of ``corner`` rows."""
    for rows in row_tiles(n, tile):
        yield from ((rows, columns) for columns in row_tiles(rows.start, tile))
        for inner in row_tiles(rows.stop, corner or tile, rows.start):
            yield from ((inner, columns) for columns in row_tiles(inner.stop, corner or tile, rows.start))


def add_product(gram: Tensor, z: Tensor) -> None:
    """Add ``z z^T`` to the lower triangle of ``gram``, in blocks of rows; the upper triangle is left undefined."""
    n = len(z)
    for rows in row_tiles(n, min(256, max(32, -(-n // 5)))):  # five tiles of rows: 60 % of the full product
        gram[rows, : rows.stop].addmm_(z[rows], z[: rows.stop].T)


def mirror(gram: Tensor) -> Tensor:
    """Copy the lower triangle onto the upper one, in place, so that the matrix is symmetric to the last bit."""
    for rows in row_tiles(len(gram), 512):
        gram[: rows.start, rows] = gram[rows, : rows.start].T
        corner = gram[rows, rows]
        corner.copy_(corner.tril() + corner.tril(-1).T)
    return gram


_BYTES = 24 << 20


@dataclass(frozen=True)
class MaxKernel(Kernel):
    """``k(x, y) = max over c of <x_c, y_c>`` on centred, normalised channels (paper 1, definition 5.3 and D.7.2).

    For feature maps ``(N, C, *S)``: ``K[m, n] = max over c of sum over s of z[m, c, s] z[n, c, s]`` with
    ``z[n, c, s] = (x[n, c, s] - mean_c) / |x_c - mean_c|``, one mean and one norm for each channel, over all examples
    and positions.

    Differs from the paper's claim in v1 (lemma 5.5), which v2 withdraws: this kernel is *not* positive semi-definite
    (v2 example E.44), so a CKA with it can be negative even in its biased form. And at a fixed level of noise its CKA
    falls as channels grow (the question of v2 D.8). The ``"laplace"`` kernel has the same symmetry and neither fault.
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
    precision is computed in float32, and NaN spreads to its whole row and column. One triangle is computed in tiles of
    ``tile`` rows (default by shape and device), each as a running maximum over channels of small matrix products.
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
                else:  # starting from 0 would be wrong: all of an entry's products may be negative
                    multiply(a, b.T, out=best)
            here.copy_(best)
    return mirror(gram)


def _tile(n: int, p: int, device: torch.device) -> int:
    """Tile size: as measured on a CPU; large on accelerators, since every launch costs."""
    if device.type != "cpu":
        return 2048
    if p == 1:
        return 1024
    return 256 if p >= 1024 or (p >= 256 and n < 2048) else 512


@dataclass(frozen=True)
class LaplaceKernel(OfDistances):
    """``k(x, y) = exp(-sum over c of |x_c - y_c| / bandwidth)`` on centred, normalised channels (v2 eq. 5.6).

    Differs from the paper, which writes it for features without space, without normalisation and with bandwidth 1. Here
    ``|.|`` is the Euclidean norm over space, so without space the distance is l1; channels are centred and divided by
    their norm, without which the kernel is not G_ReLU invariant; and the bandwidth is by default the median distance
    between different examples, given in the side's ``details``.

    It is positive semi-definite: each ``exp(-|x_c - y_c|)`` is, by Schoenberg's theorem, and so is their product. The
    paper asks about ``exp(-|x - y|_p)`` for other ``p``: it is positive semi-definite in every dimension for ``1 <= p
    <= 2``, but not from dimension 2 on for ``p < 1``, nor from dimension 3 on for ``p > 2``.
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

    Computed from per-channel Gram matrices in float64; the diagonal is exactly 0, and no entry is negative.
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
