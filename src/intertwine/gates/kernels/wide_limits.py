"""Limits of wide networks: arc-cosine recursions, residual ensembles, and weights that are random signs of one size."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..._progress import track
from .gate_products import gram, product_kernel
from .moments import Grid, Layout


def bernoulli_(model: nn.Module, sigma: float, seed: int = 0) -> nn.Module:
    """Give every weight the value ``+sigma`` or ``-sigma``, each with probability 1/2 (P2 assumption 2.1).

    Args:
        model: The model, changed in place.
        sigma: Size of the weights; ``c / sqrt(width)`` in the limits, ``c / sqrt(width * window)`` for convolutions.
        seed: Seed of the signs.

    Returns:
        ``model``.

    Raises:
        ValueError: If ``sigma`` is not positive.

    Examples:
        >>> bernoulli_(nn.Linear(2, 2, bias=False), 0.5).weight.abs()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]], grad_fn=<AbsBackward0>)
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be positive. Got {sigma}.")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.copy_(signs * sigma)
    return model


def ensemble_tangent_kernel(
    x: Tensor, outer: Sequence[Tensor], blocks: Sequence[Sequence[Tensor]], *, sigma: float, depth: int,
    outer_depth: int, input: str = "x",
) -> Tensor:  # fmt: skip
    """Limit of the NTK under assumption 2.1: ``sum over J of beta_J NPK^J`` (P2 theorems 3.3, B.1), in O(b).

    The printed exponent ``2 (|J| + 2) d_blk - 1`` must be read ``2 ((|J| + 2) d_blk - 1)``. Here
    ``beta_J = D_J sigma^(2 (D_J - 1))`` with ``D_J = outer_depth + |J| depth`` layers of weights on each path; the
    paper's network has ``outer_depth = 2 depth``. As ``beta_J`` depends on ``|J|`` alone, ``P(t) = prod_j (1 + t B_j)``
    and its derivative at ``t = sigma^(2 depth)`` give the sum.

    Args:
        x: Inputs ``(N, d_in)``.
        outer: Gates ``(N, w)`` of the layers that every path passes.
        blocks: For each block with a skip, the gates of its layers.
        sigma: Size of the weights.
        depth: Layers of weights in a block.
        outer_depth: Layers of weights outside the blocks.
        input: ``"x"`` or ``"ones"``.

    Returns:
        The kernel ``(N, N)``.

    Examples:
        >>> on = torch.ones(1, 3, dtype=torch.bool)
        >>> ensemble_tangent_kernel(torch.ones(1, 1), [on], [], sigma=1.0, depth=1, outer_depth=2)  # 2 * NPK
        tensor([[6.]], dtype=torch.float64)
    """
    t = sigma ** (2 * depth)
    start: Tensor = product_kernel(x, outer, input=input)  # type: ignore[assignment]
    product, slope = torch.ones_like(start), torch.zeros_like(start)
    for block in blocks:
        b = math.prod(gram(g, g).double() for g in block)
        product, slope = product * (1 + t * b), slope * (1 + t * b) + product * b
    return start * sigma ** (2 * (outer_depth - 1)) * (outer_depth * product + depth * t * slope)


def convolutional_tangent_kernel(
    x: Tensor,
    depth: int,
    window: int = 3,
    y: Tensor | None = None,
    *,
    memory: float = 2**26,
    progress: bool | None = None,
) -> Tensor:
    """CNTK-GAP: NTK of infinitely wide convolutions with global average pooling (Arora et al. 2019, section 4).

    ``depth`` convolutions that keep the size, each followed by a ReLU, then a global average and a linear layer.
    Weights are standard normal; the first convolution is scaled by ``1 / window``, all others by ``sqrt(2 / fan in)``.
    With images of one pixel and ``window=1`` it is the kernel of a fully connected network of ``depth + 1`` layers.

    Cost ``N M P^2`` times ``depth`` and the window, with ``P`` positions; one triangle where there is one side.

    Args:
        x: Inputs ``(N, C, H, W)``.
        depth: Number of convolutions.
        window: Odd size of their windows.
        y: Inputs ``(M, C, H, W)``; by default ``x`` itself.
        memory: Bytes for the pairs of positions that are done at once.
        progress: Whether to show progress.

    Returns:
        The kernel ``(N, M)`` in float64.

    Raises:
        ValueError: If ``x`` holds no images, ``depth`` is less than 1, ``window`` even, or ``y`` of another shape.

    Examples:
        >>> convolutional_tangent_kernel(torch.ones(1, 1, 2, 2), depth=1, window=1)  # 2 |x_p|^2 at every position
        tensor([[2.]], dtype=torch.float64)
    """
    if depth < 1 or window % 2 == 0:
        raise ValueError(f"depth must be at least 1 and window odd. Got {depth} and {window}.")
    if x.dim() != 4:
        raise ValueError(f"x must be images (N, C, H, W). Got shape {tuple(x.shape)}.")
    if y is not None and y.shape[1:] != x.shape[1:]:
        raise ValueError(f"y must have examples of x's shape {tuple(x.shape[1:])}. Got {tuple(y.shape[1:])}.")
    left, grid = x.double().flatten(2), Grid((window, window), (1, 1), (window // 2, window // 2), (1, 1))
    right = left if y is None else y.double().flatten(2)
    step = max(1, int(memory / (8 * 6 * left.shape[2] ** 2)))

    def sum_window(moments: Tensor) -> Tensor:
        """Mean over the window of kernels ``(n, P, P)``, both positions moving together."""
        layout = Layout(len(moments), 1, True, moments.device)
        return layout.slide(moments[:, :, None], tuple(x.shape[2:]), grid).div_(window**2).view_as(moments)

    own = [_variances(z, depth, step, sum_window) for z in ([left] if y is None else [left, right])]
    kernel = torch.empty(len(left), len(right), dtype=torch.float64, device=x.device)
    for i in track(range(len(left)), "CNTK", enabled=progress):
        for j in range(i if y is None else 0, len(right), step):
            chosen = slice(j, j + step)
            norms = [(a[i, :, None] * b[chosen, None]).sqrt_() for a, b in zip(own[0], own[-1])]
            row = _tangent(left[i].T @ right[chosen], norms, sum_window)
            kernel[i, chosen] = row
            if y is None:
                kernel[chosen, i] = row
    return kernel


def _variances(x: Tensor, depth: int, step: int, sum_window: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Variance at each position ``(N, P)`` before each ReLU, which the moments between examples need."""
    blocks = []
    for start in range(0, len(x), step):
        block = x[start : start + step]
        moments, seen = block.transpose(1, 2) @ block, []
        for _ in range(depth):
            sigma = sum_window(moments)
            seen.append(sigma.diagonal(dim1=1, dim2=2).clone())
            moments, _ = _relu_moments(sigma, (seen[-1][:, :, None] * seen[-1][:, None]).sqrt_())
        blocks.append(seen)
    return [torch.cat(layer) for layer in zip(*blocks)]


def _tangent(moments: Tensor, norms: list[Tensor], sum_window: Callable[[Tensor], Tensor]) -> Tensor:
    """Entries of the kernel from moments ``(n, P, P)`` of pairs of inputs."""
    tangent = torch.zeros_like(moments)
    for norm in norms:
        sigma = sum_window(moments)
        tangent = sum_window(tangent).add_(sigma)
        moments, slope = _relu_moments(sigma, norm)
        tangent.mul_(slope)
    return (tangent + moments).mean((1, 2))


def _relu_moments(sigma: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """``2 E[relu(u) relu(v)]`` and ``2 E[1{u > 0} 1{v > 0}]`` for Gaussians of covariance ``sigma``, in its place."""
    cosine = sigma.div_(norms).nan_to_num_(nan=0.0).clamp_(-1, 1)  # 0 / 0: one of them does not vary
    slope = cosine.arccos().div_(-math.pi).add_(1)
    sine = cosine.square().neg_().add_(1).sqrt_()
    return sine.div_(math.pi).add_(slope * cosine).mul_(norms), slope
