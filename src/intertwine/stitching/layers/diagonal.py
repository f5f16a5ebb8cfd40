"""One factor for each channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..closed_form import diagonal
from ..layer import StitchingLayer
from ..moments import Moments

__all__ = ["Diagonal"]


class Diagonal(StitchingLayer):
    """``y_i = d_i x_i``, any signs: for networks whose channels correspond already.

    Of unequal widths the channels that both have, and zeros.

    Args:
        c_in: Channels of network A.
        c_out: Channels of network B.
        bias: Whether to add a bias.
        channel_dim: The channel axis.
        generator: Not used: the start is the identity.

    Attributes:
        scale: ``d``, ``(min(C_in, C_out),)``.
    """

    family = "diagonal"

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        bias: bool = False,
        channel_dim: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(c_in, c_out, bias=bias, channel_dim=channel_dim)
        self.scale = nn.Parameter(torch.ones(min(c_in, c_out)))

    @property
    def dim(self) -> int:
        """The smaller width."""
        return len(self.scale)

    def matrix(self) -> Tensor:
        """``diag(d)``."""
        return nn.functional.pad(torch.diag(self.scale), (0, self.c_in - self.dim, 0, self.c_out - self.dim))

    def fit(self, moments: Moments) -> None:
        """Least squares channel by channel; channels of A that never respond keep factor one."""
        self.scale.copy_(diagonal(moments).diagonal())
