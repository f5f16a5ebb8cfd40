"""Linear kernels: inner products of whole examples, and the per-channel-normalised variant of the paper's figures."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._features import Moments, double, unit_scale, working_dtype
from .base import Kernel
from .symmetric import add_product, mirror

_ROUNDING = 1e-14  # share of the largest squared distance that differences of products cannot tell from 0
_BLOCK, _COLUMNS = 1 << 18, 512  # elements and columns of centred features at a time, so that they stay in the cache


@dataclass(frozen=True)
class LinearKernel(Kernel):
    """``k(x, y) = <x, y>``, summed over channels and space: standard, truly orthogonally invariant linear CKA."""

    name = "linear"
    measure = "linear_cka"
    group = "orthogonal maps times isotropic scales, and translations"
    psd = True

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the centred features, divided by a power of 4 that keeps it in range."""
        return linear_gram(x, unit_scale(moments.spread).expand(x.shape[1])), {}

    def explicit(self, x: Tensor, moments: Moments) -> Tensor:
        """The features themselves."""
        return double(x) * unit_scale(moments.spread)


@dataclass(frozen=True)
class ChannelNormalizedKernel(Kernel):
    """``k(x, y) = sum over c of <x_c, y_c> / |c|^2``, each channel centred and divided by its norm.

    Differs from linear CKA: it is *not* orthogonally invariant. The paper's figures 2b, 5b and 11b show it under the
    name orthogonal CKA; it is here to reproduce them.
    """

    name = "channel_normalized"
    measure = "channel_normalized_cka"
    group = "monomial maps (permutations times nonzero scales per channel), and translations"
    psd = True

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the centred, normalised features."""
        return linear_gram(x, 1 / moments.spread), {}

    def explicit(self, x: Tensor, moments: Moments) -> Tensor:
        """The normalised features."""
        return double(x) / moments.spread.view(-1, *[1] * (x.ndim - 2))


def linear_gram(x: Tensor, scale: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Gram matrix of features centred over examples: ``K[m, n] = sum over c, s of s_c^2 x[m, c, s] x[n, c, s]``.

    Centring beforehand changes no HSIC and keeps large means from eating the digits. One triangle is computed, from a
    block of channels at a time, so that no copy is made; in float32, or float64 for float64 features, unless told.

    Examples:
        >>> import torch
        >>> from intertwine.similarity.kernels.linear import linear_gram
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
        >>> torch.equal(linear_gram(x), x @ x.T)
        True
    """
    n, channels = x.shape[:2]
    dtype = dtype or working_dtype(x)
    gram = torch.zeros(n, n, dtype=dtype, device=x.device)
    step = max(1, max(_BLOCK // n, _COLUMNS) * n * channels // x.numel())
    for start in range(0, channels, step):
        z = x[:, start : start + step].to(dtype)
        z = z - z.mean(0)
        if scale is not None:
            z *= scale[start : start + step].to(z).view(-1, *[1] * (x.ndim - 2))
        add_product(gram, z.flatten(1))
    return mirror(gram)


def unit_gram(x: Tensor, moments: Moments) -> Tensor:
    """Gram matrix of the centred features in float64, divided by a power of 4 that keeps it in range."""
    return linear_gram(x, unit_scale(moments.spread).expand(x.shape[1]), torch.float64)


def square_distances(x: Tensor, moments: Moments | None = None) -> Tensor:
    """Squared Euclidean distances of all pairs of examples, from their Gram matrix in float64.

    With the moments given, up to a factor for all that brings them near 1.
    """
    return square_distances_of(linear_gram(x, dtype=torch.float64) if moments is None else unit_gram(x, moments))


def square_distances_of(products: Tensor) -> Tensor:
    """Squared distances of the points whose inner products these are, ``(N, N)``; equal points are at exactly 0."""
    norms = products.diagonal()
    distances = (-2 * products).add_(norms).add_(norms[:, None]).fill_diagonal_(0)
    return distances.masked_fill_(distances < _ROUNDING * distances.max(), 0)
