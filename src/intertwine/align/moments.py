"""Moments of channels over a stream of batches, merged in float64 (Chan, Golub and LeVeque 1983)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ChannelMoments", "CrossMoments", "flat_channels"]


def flat_channels(x: Tensor, channel_dim: int = 1) -> Tensor:
    """Features ``(N, C, *S)`` as ``(C, N * S)`` in float64 (on the CPU where the device has none)."""
    x = x.detach().movedim(channel_dim, 0).reshape(x.shape[channel_dim], -1)
    return x.cpu().double() if x.device.type == "mps" else x.double()


class ChannelMoments:
    """Mean and variance of every channel over all that was added.

    Attributes:
        count: Values per channel.

    Examples:
        >>> moments = ChannelMoments()
        >>> for x in torch.arange(12.0).reshape(6, 2).split(4):
        ...     moments.add(x)
        >>> moments.mean, moments.variance
        (tensor([5., 6.], dtype=torch.float64), tensor([14., 14.], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None  # sums of squares about the mean

    def add(self, x: Tensor, channel_dim: int = 1) -> None:
        """Add features ``(N, C, *S)``."""
        rows = flat_channels(x, channel_dim)
        n, mean = rows.shape[1], rows.mean(1)
        squares = (rows - mean[:, None]).square().sum(1)
        if self._mean is None or self._squares is None:
            self.count, self._mean, self._squares = n, mean, squares
            return
        shift, total = mean - self._mean, self.count + n
        self._squares = self._squares + squares + shift.square() * (self.count * n / total)
        self._mean = self._mean + shift * (n / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """``(C,)``, float64.

        Raises:
            ValueError: If nothing was added.
        """
        if self._mean is None:
            raise ValueError("moments must have seen at least one batch. Got none.")
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Unbiased, ``(C,)``, float64; NaN for a single value.

        Raises:
            ValueError: If nothing was added.
        """
        if self._squares is None:
            raise ValueError("moments must have seen at least one batch. Got none.")
        return self._squares / (self.count - 1) if self.count > 1 else torch.full_like(self._squares, torch.nan)


class CrossMoments:
    """Means, variances and covariances between the channels of two feature maps of the same examples.

    Attributes:
        a: Moments of the channels of one.
        b: Moments of the channels of the other.
    """

    def __init__(self) -> None:
        self.a, self.b = ChannelMoments(), ChannelMoments()
        self._products: Tensor | None = None  # sums of products about the means

    def add(self, x: Tensor, y: Tensor, channel_dim: int = 1) -> None:
        """Add features ``(N, C, *S)`` and ``(N, C', *S)`` of the same examples."""
        left, right = flat_channels(x, channel_dim), flat_channels(y, channel_dim)
        n, seen = left.shape[1], self.a.count
        here = left.mean(1), right.mean(1)
        products = (left - here[0][:, None]) @ (right - here[1][:, None]).T
        if self._products is not None:
            shifts = here[0] - self.a.mean, here[1] - self.b.mean
            products += self._products + torch.outer(*shifts) * (seen * n / (seen + n))
        self._products = products
        self.a.add(x, channel_dim)
        self.b.add(y, channel_dim)

    @property
    def covariance(self) -> Tensor:
        """``(C, C')``, float64, divided by the count less one.

        Raises:
            ValueError: If nothing was added.
        """
        if self._products is None:
            raise ValueError("moments must have seen at least one batch. Got none.")
        return self._products / max(self.a.count - 1, 1)
