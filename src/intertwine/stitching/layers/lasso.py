"""Sparse linear maps: full ones with an L1 penalty."""

from __future__ import annotations

import torch
from torch import Tensor

from .full import Full

__all__ = ["PAPER_STRENGTHS", "Lasso", "sparsity"]

PAPER_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)  # v2 D.6


class Lasso(Full):
    """A full map with the penalty ``lambda |A|_1`` (paper 1, v2 D.6).

    Differs from the paper: the penalty acts by its proximal step, ``a <- sign(a) max(|a| - lr lambda, 0)`` after each
    step on the loss, so that zeros *are* zeros; a gradient step on ``|a|`` jumps over zero for ever. Same minimiser.

    Args:
        c_in: Channels of network A.
        c_out: Channels of network B.
        strength: ``lambda``. The paper takes 1e-4, 1e-3, 1e-2 and 1e-1.
        bias: Whether to add a bias, which is not penalised.
        channel_dim: The channel axis.
        generator: Source of the random start.

    Raises:
        ValueError: If the strength is negative.
    """

    def __init__(
        self,
        c_in: int,
        c_out: int,
        strength: float = 1e-3,
        *,
        bias: bool = False,
        channel_dim: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        if not strength >= 0:
            raise ValueError(f"strength must be at least 0. Got {strength}.")
        super().__init__(c_in, c_out, bias=bias, channel_dim=channel_dim, generator=generator)
        self.family, self.strength = "lasso" if strength == 1e-3 else f"lasso-{strength:g}", strength

    def penalty(self) -> float:
        """``lambda |A|_1``, which the proximal step stands for."""
        return self.strength * float(self.weight.detach().abs().sum())

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Soft thresholding by ``lr lambda``."""
        self.weight.copy_(torch.nn.functional.softshrink(self.weight, lr * self.strength))


def sparsity(matrix: Tensor, threshold: float = 1e-3) -> float:
    """Share of entries with ``|a_ij| <= threshold`` (v2 D.1); ``1 - 1/n`` for a permutation.

    Args:
        matrix: Any shape.
        threshold: What counts as zero. The paper takes 1e-3.

    Returns:
        Between 0 and 1.

    Examples:
        >>> sparsity(torch.eye(4))
        0.75
    """
    return float((matrix.detach().abs() <= threshold).double().mean())
