"""Gumbel-Sinkhorn: permutations sampled by noise on logits that Sinkhorn's iteration makes doubly stochastic."""

from __future__ import annotations

from math import log
from typing import Unpack

import torch
from torch import Tensor, nn

from ..layer import Common
from .relaxed import RelaxedPermutation
from .sinkhorn import sinkhorn_log

__all__ = ["GumbelSinkhorn"]


class GumbelSinkhorn(RelaxedPermutation):
    """``P D`` with ``P = S((L + noise) / tau)``, ``S`` Sinkhorn's iteration on ``exp``, and ``D = diag(exp lambda)``.

    In training mode every call draws independent standard Gumbel noise from torch's global generator, which
    ``train_layers`` seeds; without noise otherwise. Rounded by assignment on ``L`` (Mena et al. 2018, section 4).

    Args:
        tau: Temperature.
        noise: Factor of the noise; 0 for none.
        sinkhorn_steps: Rounds of Sinkhorn's iteration.
        **common: Of every ``StitchingLayer``.

    Attributes:
        logits: ``L``, ``(n, n)``.
        log_scale: ``lambda``, ``(n,)``.

    Raises:
        ValueError: If ``tau`` is not positive or ``noise`` is negative.
    """

    family = "gumbel_sinkhorn"

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        tau: float = 1.0,
        noise: float = 1.0,
        sinkhorn_steps: int = 16,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(c_in, c_out, **common)
        generator = common.get("generator")
        if not tau > 0 or not noise >= 0:
            raise ValueError(f"tau must be positive and noise at least 0. Got tau={tau}, noise={noise}.")
        self.tau, self.noise, self.sinkhorn_steps = tau, noise, sinkhorn_steps
        self.logits = nn.Parameter(torch.randn(self.n, self.n, generator=generator))
        self.log_scale = nn.Parameter(torch.zeros(self.n))

    def relaxed(self) -> Tensor:
        """A random doubly stochastic matrix in training mode, the one without noise otherwise."""
        logits: Tensor = self.logits
        if self.training and self.noise:
            # -log of exponential numbers are Gumbel numbers
            logits = logits - self.noise * torch.empty_like(logits).exponential_().log()
        return sinkhorn_log(logits / self.tau, self.sinkhorn_steps)

    def scales(self) -> Tensor:
        """``exp lambda``."""
        return self.log_scale.exp()

    def head_start(self, active: bool) -> None:
        """Hold ``D``, or let it go."""
        self.log_scale.requires_grad_(not active)

    @torch.no_grad()
    def set_element(self, index: Tensor, sign: Tensor, scale: Tensor) -> None:
        """Logits that stand above the noise: ``5 + 2 log n`` temperatures for the pairs, 0 elsewhere."""
        self.logits.zero_()
        self.logits[torch.arange(self.n, device=index.device), index] = (5 + 2 * log(self.n)) * self.tau
        self.log_scale.copy_(scale.log())

    def _preference(self) -> Tensor:
        return self.logits.detach()

    def _smooth(self) -> Tensor:
        return sinkhorn_log(self.logits.detach() / self.tau, self.sinkhorn_steps)
