"""Rotations and reflections of channels."""

from math import log

import torch
from torch import Tensor, nn

from ... import groups
from ...groups.dense import polar_factor
from ..closed_form import group_procrustes
from ..layer import StitchingLayer
from ..moments import Moments


class Orthogonal(StitchingLayer):
    """Orthogonal matrices, by gradient steps each followed by the polar factor, the nearest orthogonal matrix.

    Of unequal widths: matrices with orthonormal columns (``C_in < C_out``) or rows.

    Attributes:
        weight: ``(C_out, C_in)``.
    """

    family = "orthogonal"

    def create(self, generator: torch.Generator | None) -> None:
        """Uniform over the family."""
        self._group = groups.Orthogonal(max(self.c_in, self.c_out))
        drawn = self._group.random(generator, torch.get_default_dtype()).matrix()
        self.weight = nn.Parameter(drawn[: self.c_out, : self.c_in].clone())

    @property
    def dim(self) -> int:
        """``N m - m (m + 1) / 2`` for widths ``m <= N``: ``n (n - 1) / 2`` where they are equal."""
        small, large = sorted((self.c_in, self.c_out))
        return large * small - small * (small + 1) // 2

    @property
    def log_components(self) -> float:
        """``log 2`` for the two determinants; unequal widths make one piece."""
        return log(2) if self.c_in == self.c_out else 0.0

    def matrix(self) -> Tensor:
        """The weight."""
        return self.weight

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """The polar factor."""
        self.weight.copy_(polar_factor(self.weight))

    def fit(self, moments: Moments) -> None:
        """Orthogonal Procrustes: ``max tr(A x.T y)``; the least ``sum |y - A x|^2`` unless ``C_in > C_out``."""
        self.weight.copy_(group_procrustes(self._group, moments))
