"""Diagonal stitching layers: one factor for each channel."""

import torch
from torch import Tensor, nn

from ..closed_form import diagonal
from ..layer import StitchingLayer
from ..moments import Moments


class Diagonal(StitchingLayer):
    """``y_i = d_i x_i``, any signs: for networks whose channels correspond already.

    Of unequal widths the channels that both have, and zeros.

    Attributes:
        scale: ``d``, ``(min(C_in, C_out),)``.
    """

    family = "diagonal"

    def create(self, generator: torch.Generator | None) -> None:
        """The identity."""
        self.scale = nn.Parameter(torch.ones(min(self.c_in, self.c_out)))

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
