"""Sparse linear maps: full ones with an L1 penalty."""

from typing import Unpack

import torch
from torch import Tensor

from ..layer import Common
from .full import Full


class Lasso(Full):
    """A full map with the penalty ``lambda |A|_1`` (paper 1, v2 D.6).

    Differs from the paper: the penalty acts by its proximal step, ``a <- sign(a) max(|a| - lr lambda, 0)`` after each
    step on the loss, so that zeros *are* zeros; a gradient step on ``|a|`` jumps over zero for ever. Same minimiser;
    ``proximal=False`` is as printed. A bias is not penalised.

    Args:
        strength: ``lambda``. The paper takes 1e-4, 1e-3, 1e-2 and 1e-1.
        proximal: Whether the penalty acts by its proximal step, or as a term of the loss.
        **common: Of every ``StitchingLayer``.

    Raises:
        ValueError: If the strength is negative.
    """

    def __init__(
        self, c_in: int, c_out: int, strength: float = 1e-3, proximal: bool = True, **common: Unpack[Common]
    ) -> None:
        if not strength >= 0:
            raise ValueError(f"strength must be at least 0. Got {strength}.")
        super().__init__(c_in, c_out, **common)
        self.proximal = proximal
        self.family, self.strength = "lasso" if strength == 1e-3 else f"lasso-{strength:g}", strength

    def regulariser(self) -> Tensor:
        """``lambda |A|_1`` where there is no proximal step; what is added to the loss."""
        return self.weight.new_zeros(()) if self.proximal else self.strength * self.weight.abs().sum()

    def penalty(self) -> float:
        """``lambda |A|_1``, which the proximal step stands for."""
        return self.strength * float(self.weight.detach().abs().sum())

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Soft thresholding by ``lr lambda``."""
        if self.proximal:
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
