"""SoftSort: permutations as the sorting of scores."""

from typing import Unpack

import torch
from torch import Tensor, nn

from ..layer import Common
from .relaxed import RelaxedPermutation

_GAP = 8.0  # temperatures between neighbouring scores at a given permutation: P is within 1e-3 of it


def soft_sort(scores: Tensor, tau: float) -> Tensor:
    """A relaxed permutation that sorts ``scores`` in descending order.

    ``P = softmax(-|sort(s) 1^T - 1 s^T| / tau)`` over rows (Prillo and Eisenschlos 2020). The formula printed in paper
    1 (v2 D.2.2, v1 D.1.2) lacks the magnitude and has ``exp`` inside the softmax, which makes rows of equal entries.

    Args:
        scores: ``(n,)``.
        tau: Temperature; about ``1 / n`` for scores of unit size.

    Returns:
        ``(n, n)``, rows sum to one; columns need not.

    Examples:
        >>> soft_sort(torch.tensor([0.0, 2.0, 1.0]), 0.1)
        tensor([[0.0000, 1.0000, 0.0000],
                [0.0000, 0.0000, 1.0000],
                [1.0000, 0.0000, 0.0000]])
    """
    descending = scores.sort(descending=True).values
    return torch.softmax(-(descending[:, None] - scores).abs() / tau, dim=1)


class SoftSort(RelaxedPermutation):
    """``P D`` with ``P`` from SoftSort and ``D = diag(exp lambda)`` (paper 1, v2 D.2.2, corrected as said above).

    The paper rounds by the largest entry of each row, which need not give a permutation; here by assignment.

    Args:
        tau: Temperature; ``1 / n`` if ``None``, as the paper found necessary.
        **common: Of every ``StitchingLayer``.

    Attributes:
        scores: ``s``, ``(n,)``.
        log_scale: ``lambda``, ``(n,)``.

    Raises:
        ValueError: If ``tau`` is not positive.
    """

    family = "softsort"

    def __init__(self, c_in: int, c_out: int, *, tau: float | None = None, **common: Unpack[Common]) -> None:
        super().__init__(c_in, c_out, **common)
        generator = common.get("generator")
        self.tau = 1 / self.n if tau is None else tau
        if not self.tau > 0:
            raise ValueError(f"tau must be positive. Got {tau}.")
        self.scores = nn.Parameter(torch.randn(self.n, generator=generator))
        self.log_scale = nn.Parameter(torch.zeros(self.n))

    def relaxed(self) -> Tensor:
        """The sorting matrix of the scores."""
        return soft_sort(self.scores, self.tau)

    def scales(self) -> Tensor:
        """``exp lambda``."""
        return self.log_scale.exp()

    def head_start(self, active: bool) -> None:
        """Hold ``D``, or let it go."""
        self.log_scale.requires_grad_(not active)

    @torch.no_grad()
    def set_element(self, index: Tensor, sign: Tensor, scale: Tensor) -> None:
        """Scores that the permutation sorts, 8 temperatures apart."""
        ranks = torch.arange(self.n - 1, -1, -1, dtype=self.scores.dtype, device=self.scores.device)
        self.scores[index] = (ranks - (self.n - 1) / 2) * _GAP * self.tau
        self.log_scale.copy_(scale.log())
