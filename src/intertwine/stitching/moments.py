"""Second moments of the features at two taps: all that the closed-form families need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..features.moments import CrossMoments


@dataclass(frozen=True)
class Moments:
    """Sums over examples and over space (or tokens) of products of channels, in float64.

    Attributes:
        xx: ``(C_in, C_in)``, ``x.T @ x`` of network A's features.
        xy: ``(C_in, C_out)``, ``x.T @ y``.
        yy: ``(C_out, C_out)``, ``y.T @ y`` of network B's features.
        sum_x: ``(C_in,)``.
        sum_y: ``(C_out,)``.
        count: Positions that were summed: examples times spatial positions.
        about_means: ``xx, xy, yy`` about the means of the channels, where they are known better than by differences:
            exactly 0 for constant channels.
    """

    xx: Tensor
    xy: Tensor
    yy: Tensor
    sum_x: Tensor
    sum_y: Tensor
    count: int
    about_means: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def of(cls, sums: CrossMoments) -> Moments:
        """What was added up, A's features first, products within each side included.

        Raises:
            ValueError: If nothing was added, or a feature was NaN or infinite.
        """
        xy, xx, yy = sums.products()
        for side, square in (("A", xx), ("B", yy)):
            if not bool(torch.isfinite(square).all()):
                raise ValueError(
                    f"features must be finite. Got NaN or infinite ones of {side}. Check inputs and weights."
                )
        x, y, count = sums.a.mean, sums.b.mean, sums.a.count
        raw_xx, raw_xy, raw_yy = (
            part + count * torch.outer(m, n) for part, m, n in ((xx, x, x), (xy, x, y), (yy, y, y))
        )
        return cls(raw_xx, raw_xy, raw_yy, count * x, count * y, count, (xx, xy, yy))

    @property
    def c_in(self) -> int:
        """Channels of A."""
        return self.xx.shape[0]

    @property
    def c_out(self) -> int:
        """Channels of B."""
        return self.yy.shape[0]

    def centred(self) -> Moments:
        """The same with the mean of every channel taken off: what a map with a bias is fitted to."""
        x, y = self.sum_x, self.sum_y
        xx, xy, yy = self.about_means or (
            full - torch.outer(a, b) / self.count for full, a, b in ((self.xx, x, x), (self.xy, x, y), (self.yy, y, y))
        )
        return Moments(xx, xy, yy, torch.zeros_like(x), torch.zeros_like(y), self.count)

    def residual(self, matrix: Tensor, bias: Tensor | None = None) -> float:
        """How much of B's features ``y`` a map misses, ``sum |y - A x - b|^2 / sum |y|^2``: 0 where ``A x + b = y``.

        Args:
            matrix: ``(C_out, C_in)``.
            bias: ``(C_out,)`` or ``None``.

        Returns:
            A share, 0 to infinity; rounding can leave it at -1e-15 where the truth is 0, which reads 0.
        """
        a = matrix.detach().to(self.xx)
        b = torch.zeros_like(self.sum_y) if bias is None else bias.detach().to(self.xx)
        ax = a @ self.sum_x
        square = (a @ self.xx * a).sum() + 2 * b @ ax + self.count * b @ b
        missed = self.yy.trace() - 2 * (a * self.xy.T).sum() - 2 * b @ self.sum_y + square
        return max(0.0, float(missed / self.yy.trace()))

    @property
    def live_x(self) -> Tensor:
        """``(C_in,)`` bool: channels of A that ever respond."""
        return self.xx.diagonal() > 0

    @property
    def live_y(self) -> Tensor:
        """``(C_out,)`` bool: channels of B that ever respond."""
        return self.yy.diagonal() > 0
