"""The infinite-width comparator: tangent kernels of ReLU networks by arc-cosine recursions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["arc_cosine_tangent_kernel", "convolutional_tangent_kernel"]


def arc_cosine_tangent_kernel(x: Tensor, depth: int, y: Tensor | None = None) -> Tensor:
    """NTK of an infinitely wide fully connected ReLU network of ``depth`` layers of weights, without biases.

    ``Theta_1 = Sigma_1 = <x, y>`` and ``Theta_l = Sigma_l + Theta_{l-1} k0``, where ``Sigma_l`` and ``k0`` are the
    arc-cosine kernels of orders 1 and 0 of ``Sigma_{l-1}``, normalised so that variances stay. Weights are standard
    normal; the first layer is not scaled, the others by ``sqrt(2 / fan in)`` (Jacot et al. 2018; Arora et al. 2019).

    Args:
        x: Inputs ``(N, d)``.
        depth: Layers of weights, at least 1.
        y: Inputs ``(M, d)``; ``x`` itself without.

    Returns:
        The kernel ``(N, M)`` in float64.

    Raises:
        ValueError: If ``depth`` is less than 1.

    Examples:
        >>> arc_cosine_tangent_kernel(torch.tensor([[3.0, 4.0]]), depth=3)  # on the diagonal depth * |x|^2
        tensor([[75.]], dtype=torch.float64)
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1. Got {depth}.")
    a, b = x.double(), (x if y is None else y).double()
    sigma = tangent = a @ b.T
    norms = a.norm(dim=1)[:, None] * b.norm(dim=1)[None]  # the diagonal stays |x|^2 through the layers
    for _ in range(depth - 1):
        sigma, slope = _relu_moments(sigma, norms)
        tangent = sigma + tangent * slope
    return tangent


def convolutional_tangent_kernel(x: Tensor, depth: int, window: int = 3, circular: bool = False) -> Tensor:
    """CNTK-GAP: NTK of infinitely wide convolutions with global average pooling (Arora et al. 2019, section 4).

    ``depth`` convolutions that keep the size, each followed by a ReLU, then a global average and a linear layer.
    Weights are standard normal; the first convolution is scaled by ``1 / window``, all others by ``sqrt(2 / fan in)``.

    Cost ``N^2 P^2`` times ``depth`` and the window, with ``P`` positions.

    Args:
        x: Inputs ``(N, C, H, W)``.
        depth: Number of convolutions.
        window: Odd size of their windows.
        circular: Wrap around instead of padding with zeros.

    Returns:
        The kernel ``(N, N)`` in float64.

    Raises:
        ValueError: If ``depth`` is less than 1 or ``window`` even.

    Examples:
        >>> convolutional_tangent_kernel(torch.ones(1, 1, 2, 2), depth=1, window=1)  # 2 |x_p|^2 at every position
        tensor([[2.]], dtype=torch.float64)
    """
    if depth < 1 or window % 2 == 0:
        raise ValueError(f"depth must be at least 1 and window odd. Got {depth} and {window}.")
    offsets = _offsets(x.shape[2:], window, circular).to(x.device)
    flat = x.double().flatten(2)
    n = len(x)
    kernel = torch.empty(n, n, dtype=torch.float64, device=x.device)
    own = [_pair(flat[i], flat[i], offsets, depth, None)[1] for i in range(n)]
    for i in range(n):
        for j in range(i, n):
            diagonals = [(a, b) for a, b in zip(own[i], own[j])]
            kernel[i, j] = kernel[j, i] = _pair(flat[i], flat[j], offsets, depth, diagonals)[0]
    return kernel


def _pair(
    x: Tensor, y: Tensor, offsets: Tensor, depth: int, diagonals: list[tuple[Tensor, Tensor]] | None
) -> tuple[Tensor, list[Tensor]]:
    """One entry of the kernel; with itself also the variances at each layer, which other entries need."""
    moments, tangent, seen = x.T @ y, torch.zeros(x.shape[1], y.shape[1], dtype=x.dtype, device=x.device), []
    for layer in range(depth):
        sigma = _window(moments, offsets)
        tangent = _window(tangent, offsets) + sigma
        variance = sigma.diagonal()
        seen.append(variance)
        left, right = diagonals[layer] if diagonals is not None else (variance, variance)
        moments, slope = _relu_moments(sigma, (left[:, None] * right[None]).sqrt())
        tangent = tangent * slope
    return (tangent + moments).mean(), seen


def _relu_moments(sigma: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """``2 E[relu(u) relu(v)]`` and ``2 E[1{u > 0} 1{v > 0}]`` for Gaussians of covariance ``sigma``."""
    cosine = torch.where(norms > 0, sigma / norms.clamp(min=1e-300), 0.0).clamp(-1, 1)
    angle = cosine.arccos()
    slope = 1 - angle / math.pi
    return norms * ((1 - cosine**2).clamp(min=0).sqrt() / math.pi + slope * cosine), slope


def _offsets(space: torch.Size, window: int, circular: bool) -> Tensor:
    """Which position, from 1, each output reads at each place of the window; 0 is padding. ``(window^2, P)``."""
    numbers = torch.arange(1, math.prod(space) + 1, dtype=torch.float64).view(1, 1, *space)
    half = window // 2
    padded = F.pad(numbers, (half,) * 4, mode="circular" if circular else "constant")
    return F.unfold(padded, window)[0].round().long()


def _window(kernel: Tensor, offsets: Tensor) -> Tensor:
    padded = F.pad(kernel, (1, 0, 1, 0))
    total = torch.zeros_like(kernel)
    for o in offsets:
        total += padded[o][:, o]
    return total / len(offsets)
