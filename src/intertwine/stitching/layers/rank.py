"""Linear maps through few channels."""

from typing import Unpack

import torch
from torch import Tensor, nn

from ..closed_form import reduced_rank
from ..layer import Common, StitchingLayer
from ..moments import Moments
from .full import uniform


class Rank(StitchingLayer):
    """Maps of rank at most ``r``: two 1x1 convolutions, ``C_in -> r -> C_out`` (paper 1, v2 D.2).

    Their dimension is ``r (C_in + C_out) - r^2``, less than the numbers stored, since ``U G`` and ``G^-1 V`` make the
    same map (v2 E.30). Widths may differ.

    Args:
        rank: ``r``.
        **common: Of every ``StitchingLayer``.

    Attributes:
        down: ``V``, ``(r, C_in)``.
        up: ``U``, ``(C_out, r)``.

    Raises:
        ValueError: If the rank is not between 1 and the smaller width.
    """

    def __init__(self, c_in: int, c_out: int, rank: int, **common: Unpack[Common]) -> None:
        super().__init__(c_in, c_out, **common)
        generator = common.get("generator")
        if not 1 <= rank <= min(c_in, c_out):
            raise ValueError(f"rank must be from 1 to {min(c_in, c_out)}, the smaller width. Got {rank}.")
        self.family, self.rank = f"rank-{rank}", rank
        self.down = nn.Parameter(uniform(rank, c_in, generator))
        self.up = nn.Parameter(uniform(c_out, rank, generator))

    @property
    def dim(self) -> int:
        """``r (C_in + C_out) - r^2``."""
        return self.rank * (self.c_in + self.c_out) - self.rank**2

    def matrix(self) -> Tensor:
        """``U V``."""
        return self.up @ self.down

    def fit(self, moments: Moments) -> None:
        """Reduced-rank regression; both factors get equal sizes, so that one learning rate suits them."""
        up, down = reduced_rank(moments, self.rank)  # orthonormal columns, so `down` has all the size
        u, s, vh = torch.linalg.svd(down, full_matrices=False)
        root = s.sqrt()
        self.up.copy_(up @ u * root)
        self.down.copy_(root[:, None] * vh)
