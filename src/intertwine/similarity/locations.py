"""Location-wise CKA: every position of every example counts as an example of its own."""

from math import sqrt

import torch
from torch import Tensor

from .._progress import track
from ._features import Moments, check_same_examples, double, positions_last, working_dtype
from ._sides import check_same_size, living_channels
from .measures.channel_kernels import fill_maximum
from .measures.kernels import triangle_tiles

_TILE = 1024
_ROUNDING = 1e-12  # of the sum of squares of a kernel, below which nothing else is left
_KERNELS = ("linear", "channel_normalized", "max")


def location_cost(n: int, positions: int, channels: int) -> float:
    """Multiplications of a location-wise Gram matrix, ``(N P)^2 C``; a CKA takes about twice that (two sides).

    Examples:
        >>> from intertwine.similarity import location_cost
        >>> f"{location_cost(10_000, 32 * 32, 64):.1e}"  # the paper's validation set at an early layer
        '6.7e+15'
    """
    return float(n * positions) ** 2 * channels


def location_cka(
    x: Tensor,
    y: Tensor,
    kernel: str = "max",
    *,
    samples: int | None = None,
    budget: float = 1e13,
    seed: int = 0,
    channel_dim: int = 1,
    progress: bool | None = None,
) -> float:
    """CKA between features at single positions instead of whole examples (paper 1, v2 remark D.3, v1 remark D.2).

    Differs from the other CKAs: nothing is summed over space, so positions must correspond, and the ``N P`` rows of one
    example are not independent. Tiles of both Gram matrices are made, used and dropped: memory is that of a few tiles.
    Time grows like ``(N P)^2 C``, which is refused above ``budget`` before any work; ``samples`` random locations make
    any size affordable. HSIC is the unbiased estimator, its sums in float64.

    Args:
        x: Features ``(N, C, *S)``.
        y: Features ``(N, C', *S)`` of the same examples at the same positions.
        kernel: ``"linear"``, ``"channel_normalized"`` or ``"max"``.
        samples: Number of locations (pairs of example and position) drawn without replacement; all unless given.
        budget: Largest number of multiplications.
        seed: Seed of the draw.
        channel_dim: Axis of the channels in both.
        progress: Say the cost and show how far the work is, on standard error.

    Raises:
        ValueError: If the kernel is unknown, positions differ, the cost exceeds the budget, there are fewer than 4
            locations, or a side is constant.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import location_cka
        >>> x = torch.randn(20, 8, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> round(location_cka(x, -2 * x.flip(1)), 6), location_cka(x, x.flip(2)) < 0.5  # positions must correspond
        (1.0, True)
    """
    if kernel not in _KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(map(repr, _KERNELS))}. Got {kernel!r}.")
    (x, mx, _), (y, my, _) = living_channels(x, channel_dim), living_channels(y, channel_dim)
    check_same_examples(len(x), len(y))
    check_same_size(tuple(x.shape[2:]), tuple(y.shape[2:]))
    cost, both = location_cost(1, 1, x.shape[1] + y.shape[1]), x.numel() // x.shape[1]
    n = both if samples is None else min(samples, both)
    if n < 4:
        raise ValueError(f"samples must be at least 4. Got {samples}.")
    if cost * n**2 > budget:
        raise ValueError(
            f"location-wise CKA must cost at most {budget:.1e} multiplications. Got {cost * n**2:.1e} for {n} "
            f"locations. Pass samples={int(sqrt(budget / cost))} or fewer, or a larger budget."
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.arange(n) if n == both else torch.randperm(both, generator=generator)[:n].sort().values
    a, b = _rows(x, mx, chosen, kernel), _rows(y, my, chosen, kernel)
    tiles, device = list(triangle_tiles(n, _TILE)), torch.device("cpu") if a.device.type == "mps" else a.device
    products, rows = (torch.zeros(*shape, dtype=torch.float64, device=device) for shape in ((3,), (2, n)))
    said = f"location-wise CKA, {cost * n**2 / 2:.1e} multiplications"
    for left, right in track(tiles, said, enabled=progress):
        k, l = (_tile(z, left, right, kernel) for z in (a, b))
        times = 1 if left.start == right.start else 2
        if times == 1:
            k, l = k.fill_diagonal_(0), l.fill_diagonal_(0)
        else:  # the mirror image
            rows[:, right] += torch.stack([k.sum(0), l.sum(0)])
        products += times * torch.stack([(k * l).sum(), k.square().sum(), l.square().sum()])
        rows[:, left] += torch.stack([k.sum(1), l.sum(1)])
    totals, inner = rows.sum(1), rows @ rows.T
    pairs = ((0, 1), (0, 0), (1, 1))  # n (n - 3) HSIC_1 from products and row sums, diagonals left out
    kl, kk, ll = (
        float(product + totals[i] * totals[j] / ((n - 1) * (n - 2)) - 2 / (n - 2) * inner[i, j])
        for product, (i, j) in zip(products, pairs)
    )
    if kk <= _ROUNDING * products[1] or ll <= _ROUNDING * products[2]:
        raise ValueError("features must tell locations apart. Got a Gram matrix that is constant after centring.")
    return min(1.0, max(-1.0, kl / sqrt(kk * ll)))


def _rows(x: Tensor, m: Moments, chosen: Tensor, kernel: str) -> Tensor:
    """The chosen locations as rows ``(n, C)``: centred, and normalised where the kernel wants it."""
    rows = positions_last(x)
    example, position = chosen // rows.shape[2], chosen % rows.shape[2]
    rows = double(rows[example.to(x.device), :, position.to(x.device)]) - m.mean
    return (rows if kernel == "linear" else rows / m.spread).to(working_dtype(x))


def _tile(z: Tensor, rows: slice, columns: slice, kernel: str) -> Tensor:
    """One tile of the Gram matrix in float64."""
    if kernel != "max":
        return double(z[rows] @ z[columns].T)
    left, right = (z[part].T.contiguous()[:, :, None] for part in (rows, columns))
    best, product = torch.empty(2, left.shape[1], right.shape[1], dtype=z.dtype, device=z.device)
    fill_maximum(best, product, left, right, start=True)
    return double(best)
