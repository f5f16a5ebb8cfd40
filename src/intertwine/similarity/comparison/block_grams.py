"""Gram matrices of a block of examples for several kernels at once, from one product of channels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...features.moments import ChannelMoments
from .._features import double, positions_last
from .._linalg import multiplies_half
from ..hsic import center_gram
from ..measures.kernels import add_product, linear_gram, mirror, row_tiles

_CHUNK = 1 << 20  # entries of features or products of some channels at a time, so that they stay in the cache
_STILL = 1e-4  # share of the mean square: a variance below it may be that of a constant channel
_SEEN = 8  # examples
_STRONGEST = 4  # examples of a block, for each channel, whose shares of its squares are kept
_STRIP = 16  # fewest rows of a Gram matrix that are kept at a time
_OFFSET = 16  # ratio of squared means to variances from which on features are centred before their products
_PATTERN = 0.5  # share of a channel's squares common to all examples, beyond which products are about means by position
_EPS, _HALF = 1e-6, 2.0**-8  # what rounding leaves of differences, of a kernel in float32 and in bfloat16
ESTIMATED = ("linear", "max", "channel_normalized", "gates")
"""Kernels whose Gram matrices follow from a block of examples and the moments of channels."""
NORMALISED = ("max", "channel_normalized")
"""Those of them that need the moments of channels over all examples."""


class ChannelSums(ChannelMoments):
    """Moments and extremes of the channels over all batches so far, about the first means, on their device."""

    def __init__(self) -> None:
        super().__init__()
        self._about = torch.empty(0)
        self.offset: bool | None = None  # whether means are large compared with the spread, by the first batch
        self.shared = False  # whether much of a channel's spread over space is common to all examples, by that batch

    def extend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Include a batch ``(N, C, *S)``; return values within its extremes, ``(C,)`` each, that differ if these do."""
        flat = positions_last(x)
        if not self.count:
            self._about = flat[0].mean(1)
        about, count = self._about, len(flat) * flat.shape[2]
        if self.offset is not False:  # about a shift, a few examples at a time
            rows, squares = double(about) * 0, double(about) * 0
            for part in flat.split(max(1, _CHUNK // flat[0].numel())):
                shifted = part - about[None, :, None]
                rows, squares = rows + double(shifted.sum(2)).sum(0), squares + double(_energy(shifted)).sum(0)
        else:
            raw = double(flat.sum(2)).sum(0)
            rows = raw - count * double(about)
            squares = double(_energy(flat)).sum(0) - 2 * double(about) * raw + count * double(about).square()
        self.merge(count, double(about) + rows / count, (squares - rows.square() / count).clamp(min=0))
        if self.offset is None:
            large = self.mean.square() > _OFFSET * self.squares / self.count
            self.offset = x.device.type != "cpu" or bool(large.any())
            shared = len(flat) * (double(flat.mean(0)) - self.mean[:, None]).square().sum(1)
            self.shared = x.device.type != "cpu" or bool((shared > _PATTERN * self.squares).any())
        return self._extremes(flat, rows / count, squares / count)

    def _extremes(self, flat: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        """Extremes of all values if some channel might be constant, else of a few examples, widened by the spread."""
        variance = square - mean.square()
        size = square + double(self._about).square()
        every = flat.device.type != "cpu" or bool((variance <= _STILL * size).any())
        low, high = extremes(flat if every else flat[:_SEEN])
        if every:
            return low, high
        middle, spread = double(self._about) + mean, variance.sqrt()
        return torch.minimum(low, (middle - spread).clamp(min=0)), torch.maximum(high, middle + spread)

    @property
    def weight(self) -> Tensor:
        """One over the sum of squares about the mean, 0 where there is none, ``(C,)``."""
        return torch.where(self.squares > 0, self.squares.clamp(min=1e-300).reciprocal(), 0.0)


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each channel of ``(N, C, *S)``; ``aminmax`` takes four times as long."""
    flat = positions_last(x)
    return double(flat.amin(2)).amin(0), double(flat.amax(2)).amax(0)


def _energy(x: Tensor) -> Tensor:
    """Sum of squares over the last axis."""
    return torch.linalg.vector_norm(x, dim=2).square()


@dataclass(frozen=True)
class Held:
    """Products of a block's centred channels, in bfloat16, until the means and norms over all examples are known."""

    products: tuple[Tensor, ...]  # ``(C, rows, columns)`` of strips of the lower triangle
    rows: Tensor  # sums over space about the mean so far, ``(C, n)``
    along: Tensor  # products with what all examples share, which ``products`` leave out, and half of its square
    mean: Tensor  # ``(C,)``
    width: int

    def grams(self, names: Sequence[str], sums: ChannelSums) -> tuple[dict[str, Tensor], Tensor]:
        """U-centred Gram matrices by the means and norms of ``sums``; the largest shares of channels, ``(C, k)``."""
        weight = sums.weight.to(self.rows)[:, None, None]
        shift = (sums.mean - double(self.mean)).to(self.rows)[:, None]
        moved = weight * (self.along + shift * (self.width / 2 * shift - self.rows))[:, :, None]
        n, silent = self.rows.shape[1], torch.where(weight > 0, 0.0, -torch.inf)
        found, shares = {name: weight.new_zeros(n, n) for name in NORMALISED if name in names}, list[Tensor]()
        for strip, own in zip(self.products, _strips(n, len(self.products))):
            z = strip * weight
            z.add_(moved[:, own]).add_(moved[:, : own.stop].mT)
            shares.append(z[:, :, own].diagonal(dim1=1, dim2=2).clone())
            if "channel_normalized" in names:
                found["channel_normalized"][own, : own.stop] = z.sum(0)
            if "max" in names:
                found["max"][own, : own.stop] = z.add_(silent).amax(0)
        strongest = torch.cat(shares, 1).topk(min(n, _STRONGEST), 1).values.clamp(min=0)
        return {name: u_centred(mirror(gram), _HALF) for name, gram in found.items()}, strongest


def unseen_products(shares: Sequence[Tensor]) -> float:
    """Bound on what pairs from different blocks may add to the sum of fourth powers of a Gram matrix of channels.

    By the Cauchy-Schwarz inequality, a channel gives two examples at most the root of the product of their ``shares``
    of its squares, ``(C, k)`` for each block, largest first. Only channels that are on in a few examples count.
    """
    if not shares:
        return 0.0
    width = min(one.shape[1] for one in shares)
    every = torch.cat([one[:, :width] for one in shares], 1)
    largest, at = every.topk(min(_STRONGEST, every.shape[1]), 1)
    apart = (at // width)[:, :, None] != (at // width)[:, None, :]
    return float((largest[:, :, None] * largest[:, None, :]).square().mul(apart).double().sum())


def block_grams(x: Tensor, names: Sequence[str], sums: ChannelSums) -> tuple[dict[str, Tensor], Held | None]:
    """U-centred Gram matrices ``(n, n)`` of a block ``(n, C, *S)``, by kernel, and what is held for the others."""
    found: dict[str, Tensor] = {}
    held = None
    if "gates" in names:
        found["gates"] = _product((x > 0).to(x.dtype))
    if set(names) & set(NORMALISED):
        held, linear = _by_channel(x, sums)
        found["linear"] = _told_apart(linear, x)
    elif "linear" in names:
        found["linear"] = _told_apart(_product(x), x)
    return {name: u_centred(gram, _EPS).to(x.dtype) for name, gram in found.items() if name in names}, held


def _product(x: Tensor) -> Tensor:
    gram = x.new_zeros(len(x), len(x))
    add_product(gram, x.flatten(1))
    return mirror(gram)


def _told_apart(gram: Tensor, x: Tensor) -> Tensor:
    """A Gram matrix that U-centring turns into the features' own; zeros where only rounding tells examples apart.

    It is taken about means if these are large, since rounding would lose what tells examples apart. Centring takes a
    tenth of the time.
    """
    spread = double(gram.diagonal()).sum() - double(gram).mean(0).sum()
    if x.device.type == "cpu" and spread > double(gram.diagonal()).sum() / _OFFSET:  # false for NaN
        return gram
    gram = linear_gram(x)
    rounding = (4 * torch.finfo(x.dtype).eps) ** 2 * double(x[0]).square().sum()
    return gram * (double(gram.diagonal()).sum() > len(x) * rounding)


def _strips(n: int, count: int) -> list[slice]:
    """Rows whose initial parts hold the lower triangle, in up to so many strips: four take 5/8 of the square."""
    return [*row_tiles(n, max(_STRIP, -(-n // count)))]


def _by_channel(x: Tensor, sums: ChannelSums) -> tuple[Held, Tensor]:
    """Products of one channel at a time, about its mean so far, and their sum, which is the linear kernel.

    Processors that multiply bfloat16 do so twice as fast as float32. Values are rounded about a mean that is itself
    rounded, so that zeros are not all off to one side. What all examples share at a position is subtracted if large.
    """
    x = positions_last(x)
    n, channels, width = x.shape
    mean = sums.mean.to(x)
    if narrow := x.dtype == torch.float32 and multiplies_half(x.device):
        mean = mean if sums.offset else mean.bfloat16().to(x)
    linear, rows, along = x.new_zeros(n, n), x.new_empty(channels, n), x.new_zeros(channels, n)
    slices = _strips(n, 1 if narrow else 4)  # where products are fast, whole squares take less time than copies
    strips = [x.new_empty(channels, len(range(n)[own]), own.stop, dtype=torch.bfloat16) for own in slices]
    step = max(1, _CHUNK // (n * max(n, width)))
    for start in range(0, channels, step):
        some = slice(start, start + step)
        z = x[:, some].transpose(0, 1) - mean[some, None, None]
        rows[some] = z.sum(2)
        if sums.shared:
            both = z.mean(1, keepdim=True)
            z -= both
            along[some] = (z * both).sum(2) + both.square().sum(2) / 2
        z = z.to(torch.bfloat16 if narrow else z.dtype, memory_format=torch.contiguous_format)
        for strip, own in zip(strips, slices):
            u, v = z[:, own], z[:, : own.stop]
            products = u * v.mT if width == 1 else torch.bmm(u, v.mT)
            linear[own, : own.stop] += products.sum(0, dtype=x.dtype)
            strip[some] = products
    return Held(tuple(strips), rows, along, mean, width), mirror(linear)


def u_centred(gram: Tensor, rounding: float) -> Tensor:
    """The matrix with off-diagonal rows that sum to zero, in float64; zeros if only a rounding share is left."""
    gram = double(gram)
    if len(gram) < 4:
        return torch.zeros_like(gram)
    centred = center_gram(gram)
    return centred * (centred.norm() > rounding * gram.norm())
