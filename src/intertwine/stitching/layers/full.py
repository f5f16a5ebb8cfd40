"""Every linear map of channels: the 1x1 convolution of earlier work on stitching."""

import torch
from torch import Tensor, nn

from ..closed_form import least_squares
from ..layer import StitchingLayer
from ..moments import Moments


class Full(StitchingLayer):
    """A full 1x1 convolution (paper 1, section 4): any ``(C_out, C_in)`` matrix, so widths may differ.

    Attributes:
        weight: ``(C_out, C_in)``.
    """

    family = "full"

    def create(self, generator: torch.Generator | None) -> None:
        """Uniform in ``+-1 / sqrt(C_in)``."""
        self.weight = nn.Parameter(uniform(self.c_out, self.c_in, generator))

    @property
    def dim(self) -> int:
        """``C_out C_in``."""
        return self.c_in * self.c_out

    def matrix(self) -> Tensor:
        """The weight."""
        return self.weight

    def fit(self, moments: Moments) -> None:
        """Least squares: ``min sum |y - A x|^2``, the solution of smallest norm."""
        self.weight.copy_(least_squares(moments))


def uniform(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """Entries uniform in ``+-1 / sqrt(columns)``, as torch starts a convolution."""
    return (2 * torch.rand(rows, columns, generator=generator) - 1) / columns**0.5
