"""Moments of channels over a stream of batches, merged in float64 (Chan, Golub and LeVeque 1983); batch-norm moments.

The deviations of a constant channel are exactly 0, whatever its value: about a rounded mean it would seem to vary.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._evaluation import evaluating
from .._words import counted
from .activations import watching
from .batches import call, device_of, head, regroup, size


def double(x: Tensor) -> Tensor:
    """Return ``x`` in float64, on the CPU where its device has no float64 (MPS)."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


class ChannelMoments:
    """Mean and variance of every channel over everything that was added: ``count`` values of each."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None  # sums of squares about the mean

    def add(self, x: Tensor, channel_dim: int = 1) -> None:
        """Include features ``(N, C, *S)``."""
        x = double(x.detach()).movedim(channel_dim, -1)
        first, others = x[(0,) * (x.ndim - 1)], list(range(x.ndim - 1))
        about = x - first  # so that the mean of equal values is that value
        mean = about.mean(others)
        self.merge(x.numel() // len(first), first + mean, about.sub_(mean).square_().sum(others))

    def merge(self, n: int, mean: Tensor, squares: Tensor) -> None:
        """Include ``n`` values per channel, by their means and sums of squares about these, ``(C,)``, in float64."""
        if self._mean is None or self._squares is None:
            self.count, self._mean, self._squares = n, mean, squares
            return
        shift, total = mean - self._mean, self.count + n
        self._squares = self._squares + squares + shift.square() * (self.count * n / total)
        self._mean = self._mean + shift * (n / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """Means, ``(C,)``, float64."""
        return _seen(self._mean)

    @property
    def squares(self) -> Tensor:
        """Sums of squares about the mean, ``(C,)``, float64."""
        return _seen(self._squares)

    @property
    def variance(self) -> Tensor:
        """Unbiased variances, ``(C,)``, float64; NaN for a single value."""
        return self.squares / (self.count - 1) if self.count > 1 else torch.full_like(self.squares, torch.nan)


def _seen(found: Tensor | None) -> Tensor:
    if found is None:
        raise ValueError("moments must have seen at least one batch. Got none.")
    return found


class CrossMoments:
    """Means, variances and covariances of the channels of two feature maps ``a`` and ``b`` of the same examples."""

    def __init__(self, within: bool = False) -> None:  # covariances within each map as well
        self.a, self.b = ChannelMoments(), ChannelMoments()
        self._within = within
        self._products: list[Tensor] = []  # sums of products about the means

    def add(self, x: Tensor, y: Tensor, channel_dim: int = 1) -> None:
        """Include features ``(N, C, *S)`` and ``(N, C', *S)`` of the same examples."""
        rows = [double(z.detach().movedim(channel_dim, 0).reshape(z.shape[channel_dim], -1)) for z in (x, y)]
        if rows[0].shape[1] != rows[1].shape[1]:
            raise ValueError(
                f"both features must have the same positions. Got {rows[0].shape[1]} and {rows[1].shape[1]}."
            )
        n, seen, sides = rows[0].shape[1], self.a.count, (self.a, self.b)
        means = [(side - side[:, :1]).mean(1) + side[:, 0] for side in rows]  # the mean of equal values is that value
        x, y = (side - mean[:, None] for side, mean in zip(rows, means))
        pairs = ((0, 1), (0, 0), (1, 1)) if self._within else ((0, 1),)
        new = [(x, y)[i] @ (x, y)[j].T for i, j in pairs]
        if self._products:
            shifts = [mean - side.mean for mean, side in zip(means, sides)]
            for (i, j), total, old in zip(pairs, new, self._products):
                total += old + torch.outer(shifts[i], shifts[j]) * (seen * n / (seen + n))
        self._products = new
        for side, mean, centred in zip(sides, means, (x, y)):
            side.merge(n, mean, centred.square().sum(1))

    @property
    def covariance(self) -> Tensor:
        """``(C, C')``, float64, divided by the count minus one."""
        return self.products()[0] / max(self.a.count - 1, 1)

    def products(self) -> list[Tensor]:
        """Sums of products about the means: between the two maps, ``(C, C')``, then within each if asked for."""
        _seen(self.a._mean)
        return list(self._products)


def normalisable(batches: Iterable[Any], least: int = 2) -> Iterator[Any]:
    """Batches of at least ``least`` examples, so that each has a spread; smaller ones join their neighbours."""
    groups = regroup(batches, least)
    first = next(groups, None)
    if first is None or size(first) < least:
        raise ValueError(
            f"batches must hold at least {counted(least, 'example')} in all, to have a spread. Got fewer. Give "
            "more, or leave the statistics as they are."
        )
    yield first
    yield from groups


def fewest(model: nn.Module, layers: Mapping[str, int], batch: Any) -> int:
    """Fewest examples with a spread at layers with a channel axis each: one if each has several positions."""
    values: list[int] = []
    see = lambda name, k, module, inputs, output: values.append(output.numel() // output.shape[layers[name]])
    watched = {name: model.get_submodule(name) for name in layers}
    few = head(batch, 2)  # batch norms without running statistics refuse a single value
    with evaluating(model), watching(watched, see), torch.no_grad():
        call(model, few, device_of(model))
    return 1 if all(count > size(few) for count in values) else 2


class NormStatistics:
    """Replaces running means and variances, ``(C,)`` each, by the moments of what passes through the batch norms.

    In the ``with`` block, batch norms normalise by their batch and write its statistics (momentum 1) for ``add`` to
    take over. Afterwards each norm holds the mean and the unbiased variance of all examples together, merged in
    float64, unlike an average of running statistics. After an error, or if a norm did not run, it holds what it held.
    """

    def __init__(self, norms: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._norms = {id(mean): (mean, variance) for mean, variance in norms}
        self._before = {key: (mean.clone(), variance.clone()) for key, (mean, variance) in self._norms.items()}
        self._found = {key: ChannelMoments() for key in self._norms}

    def add(self, mean: Tensor, variance: Tensor, values: int) -> None:
        """Take over one batch: the running tensors that a norm has written, and the number of values per channel."""
        self._found[id(mean)].merge(values, mean.to(torch.float64, copy=True), variance.double() * (values - 1))

    def __enter__(self) -> Self:
        return self

    @torch.no_grad()
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for key, norm in self._norms.items():
            found = self._found[key]
            kept = kind is not None or not found.count
            for tensor, value in zip(norm, self._before[key] if kept else (found.mean, found.variance)):
                tensor.copy_(value)
