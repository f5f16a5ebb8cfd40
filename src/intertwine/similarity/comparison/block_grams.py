"""Gram matrices of a block of examples by several kernels at once, from one product of channels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .._features import double
from ..kernels.base import Kernel

_CHUNK = 1 << 18  # entries of the products of some channels, so that they stay in the cache
_OFFSET = 16  # squared means over variances from which on features are centred before their products
ESTIMATED = ("linear", "max", "channel_normalized", "gates")
"""Kernels whose Gram matrices follow from a block of examples and the moments of channels."""


class ChannelSums:
    """Mean, spread and extremes of the channels of a layer over all batches so far, on the device of the features.

    The sums are taken about the first example's means, so that large offsets take no digits.
    """

    def __init__(self) -> None:
        self._about: Tensor | None = None
        self._count = 0
        self._sum: Tensor | None = None
        self._squares: Tensor | None = None
        self.offset: bool | None = None  # whether means are large beside the spread, by the first batch

    def add(self, x: Tensor, moments: bool) -> tuple[Tensor, Tensor]:
        """Take a batch ``(N, C, *S)`` in; return its extremes, ``(C,)`` each. ``moments`` as far as they are needed."""
        flat = x.flatten(2) if x.ndim > 2 else x[:, :, None]
        low, high = (end.amin(0) if k == 0 else end.amax(0) for k, end in enumerate(torch.aminmax(flat, dim=2)))
        if self._about is None:
            self._about = flat[0].mean(1)
        if moments or self.offset is None:
            self._add(flat)
        if self.offset is None:
            self.offset = self._far() if x.device.type == "cpu" else True
        return low, high

    def _add(self, flat: Tensor) -> None:
        count, width = len(flat), flat.shape[2]
        about = self._about
        assert about is not None
        if self.offset is not False:  # about a shift, in blocks
            sums, squares = double(about) * 0, double(about) * 0
            for part in flat.split(max(1, _CHUNK * 4 // flat[0].numel())):
                shifted = part - about[None, :, None]
                sums, squares = sums + double(shifted.sum(2)).sum(0), squares + double(_energy(shifted)).sum(0)
        else:
            rows = double(flat.sum(2)).sum(0)
            sums = rows - count * width * double(about)
            squares = double(_energy(flat)).sum(0) - 2 * double(about) * rows + count * width * double(about).square()
        self._count += count * width
        self._sum = sums if self._sum is None else self._sum + sums
        self._squares = squares if self._squares is None else self._squares + squares

    def _far(self) -> bool:
        variance = self.spread.square() / self._count
        return bool((self.mean.square() > _OFFSET * variance).any())

    @property
    def mean(self) -> Tensor:
        """``(C,)``, float64."""
        assert self._sum is not None and self._about is not None
        return double(self._about) + self._sum / self._count

    @property
    def spread(self) -> Tensor:
        """Root of the sum of squares about the mean, in units of the root of the count: ``(C,)``, float64."""
        assert self._sum is not None and self._squares is not None
        return (self._squares - self._sum.square() / self._count).clamp(min=0).sqrt()


def _energy(x: Tensor) -> Tensor:
    """Sum of squares over the last axis."""
    return torch.linalg.vector_norm(x, dim=2).square()


def block_grams(x: Tensor, kernels: Sequence[Kernel], sums: ChannelSums) -> dict[str, Tensor]:
    """U-centred Gram matrices ``(n, n)`` of a block of examples ``(n, C, *S)``, by the names of the kernels."""
    names = {kernel.name for kernel in kernels}
    found: dict[str, Tensor] = {}
    if "gates" in names:
        found["gates"] = _flat_gram((x > 0).to(x.dtype))
    if names & {"max", "channel_normalized"}:
        found |= _by_channel(x, names, sums)
    elif "linear" in names:
        if sums.offset:
            x = x - sums.mean.to(x).view(-1, *[1] * (x.ndim - 2))
        found["linear"] = _flat_gram(x)
    return {name: u_centred(gram).to(x.dtype) for name, gram in found.items()}


def _flat_gram(x: Tensor) -> Tensor:
    rows = x.flatten(1)
    return rows @ rows.T


def _by_channel(x: Tensor, names: set[str], sums: ChannelSums) -> dict[str, Tensor]:
    """Products of one channel at a time: their sum is the linear kernel, their largest normalised one the max kernel.

    ``(x - m) (y - m)`` summed over space is ``x y - m (sum x + sum y) + P m^2``: no centred copy of the features is
    made, except of those whose means are large or which have fewer positions than examples.
    """
    n, channels = x.shape[:2]
    x = x.flatten(2) if x.ndim > 2 else x[:, :, None]
    width = x.shape[2]
    mean, spread = sums.mean.to(x), sums.spread
    weight = torch.where(spread > 0, spread.clamp(min=1e-300).square().reciprocal(), 0.0).to(x)
    silent = torch.where(weight > 0, 0.0, -torch.inf)[:, None, None].to(x)  # constant channels: never the largest
    copied = bool(sums.offset) or width < n
    linear, normalised = x.new_zeros(n, n), x.new_zeros(n, n)
    largest: Tensor | None = None
    step = max(1, _CHUNK // n**2)
    for start in range(0, channels, step):
        part, m = x[:, start : start + step].transpose(0, 1), mean[start : start + step, None, None]
        w = weight[start : start + step, None, None]
        if copied:
            part = part - m
        products = _products(part)
        if "linear" in names:
            linear += products.sum(0)
        if not copied:
            rows = part.sum(2)
            products.sub_(m * rows[:, :, None]).sub_(m * rows[:, None, :]).add_(width * m.square())
        products *= w
        if "channel_normalized" in names:
            normalised += products.sum(0)
        if "max" in names:
            best = products.add_(silent[start : start + step]).amax(0)
            largest = best if largest is None else torch.maximum(largest, best)
    largest = linear if largest is None else largest.masked_fill(largest == -torch.inf, 0)
    every = {"linear": linear, "channel_normalized": normalised, "max": largest}
    return {name: gram for name, gram in every.items() if name in names}


def _products(part: Tensor) -> Tensor:
    if part.shape[2] == 1:
        return part * part.mT
    return torch.bmm(part, part.mT)


def u_centred(gram: Tensor) -> Tensor:
    """The matrix with rows that sum to zero off the diagonal, and a zero diagonal, in float64."""
    gram = double(gram)
    n = len(gram)
    if n < 4:
        return torch.zeros_like(gram)
    gram = gram - gram.mean()
    rows = gram.sum(1) - gram.diagonal()
    centred = gram - rows[:, None] / (n - 2) - rows / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
    return centred.fill_diagonal_(0)
