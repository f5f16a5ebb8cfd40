"""Identity as a stitching layer: the baseline that every other family has to beat."""

import torch
from torch import Tensor

from ..layer import StitchingLayer
from ..moments import Moments


class Identity(StitchingLayer):
    """``y = x``; of unequal widths the channels that both have, and zeros."""

    family = "identity"

    @property
    def dim(self) -> int:
        """0."""
        return 0

    def matrix(self) -> Tensor:
        """Ones on the diagonal."""
        return torch.eye(self.c_out, self.c_in, device=None if self.bias is None else self.bias.device)

    def fit(self, moments: Moments) -> None:
        """Only a bias has something to fit."""
