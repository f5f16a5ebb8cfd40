"""Projected gradient on the Birkhoff polytope: permutations relaxed to doubly stochastic matrices."""

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from ..layer import Common
from .relaxed import SMALLEST_SCALE, RelaxedPermutation
from .sinkhorn import sinkhorn


class Birkhoff(RelaxedPermutation):
    """``A = P D`` with ``P`` doubly stochastic in training (paper 1, v2 D.2.1, v1 D.1.1).

    After every step ``P`` goes back to the polytope by a ReLU and ``T`` Sinkhorn steps, and ``D`` is kept positive.
    ``-alpha |P|_F`` in the loss draws ``P`` to the polytope's corners, which are the permutations. In the head start
    ``D`` is held. With signs, ``|P|`` is projected and the signs are kept.

    Differs from the paper in how the norm is written, see :func:`frobenius_on_polytope`: as printed it does nothing
    but divide the learning rate by ``1 + lr alpha / |P|_F``, since Sinkhorn undoes every step along ``P``. So
    ``alpha=0`` gives what the paper's own update gives.

    The random start is uniform in the polytope's interior with ``D = 1``; the paper does not state its own.

    Args:
        alpha: Weight of ``-|P|_F``. The paper takes 0.1.
        sinkhorn_steps: ``T``. The paper takes 16.
        norm: ``"polytope"``, ours, or ``"printed"``.
        **common: Of every ``StitchingLayer``.

    Attributes:
        permutation: ``P``, ``(n, n)``.
        scale: The diagonal of ``D``, ``(n,)``, or ``None`` where scales are not free.

    Raises:
        ValueError: If ``alpha`` is negative, there are no Sinkhorn steps, or ``norm`` is unknown.
    """

    scale: Tensor | None

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        alpha: float = 0.1,
        sinkhorn_steps: int = 16,
        norm: Literal["polytope", "printed"] = "polytope",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(c_in, c_out, **common)
        generator = common.get("generator")
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0. Got {alpha}.")
        if sinkhorn_steps < 1:
            raise ValueError(f"sinkhorn_steps must be at least 1. Got {sinkhorn_steps}.")
        if norm not in ("polytope", "printed"):
            raise ValueError(f'norm must be "polytope" or "printed". Got {norm!r}.')
        self.alpha, self.sinkhorn_steps, self.norm = alpha, sinkhorn_steps, norm
        p = sinkhorn(torch.rand(self.n, self.n, generator=generator), sinkhorn_steps)
        if self.relaxes.signs:
            p = p * torch.where(torch.rand(self.n, self.n, generator=generator) < 0.5, -1.0, 1.0)
        self.permutation = nn.Parameter(p)
        self.register_parameter("scale", nn.Parameter(torch.ones(self.n)) if self.relaxes.scales else None)

    def relaxed(self) -> Tensor:
        """``P``."""
        return self.permutation

    def scales(self) -> Tensor:
        """The diagonal of ``D``."""
        return self.permutation.new_ones(self.n) if self.scale is None else self.scale

    def regulariser(self) -> Tensor:
        """``-alpha |P|_F``."""
        norm = torch.linalg.matrix_norm if self.norm == "printed" else frobenius_on_polytope
        return -self.alpha * norm(self.permutation.abs() if self.relaxes.signs else self.permutation)

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Project ``P`` onto the polytope and keep ``D`` positive."""
        p = self.permutation
        if self.relaxes.signs:
            p.copy_(sinkhorn(p.abs(), self.sinkhorn_steps) * torch.where(p < 0, -1.0, 1.0))
        else:
            p.copy_(sinkhorn(p, self.sinkhorn_steps))
        if self.scale is not None:
            self.scale.clamp_(min=SMALLEST_SCALE)

    def head_start(self, active: bool) -> None:
        """Hold ``D`` (the paper: for the first 10 of 20 epochs), or let it go."""
        if self.scale is not None:
            self.scale.requires_grad_(not active)

    @torch.no_grad()
    def set_element(self, index: Tensor, sign: Tensor, scale: Tensor) -> None:
        """Go to a corner of the polytope."""
        self.permutation.zero_()
        self.permutation[torch.arange(self.n, device=index.device), index] = sign.to(self.permutation)
        if self.scale is not None:
            self.scale.copy_(scale)


def frobenius_on_polytope(p: Tensor) -> Tensor:
    """``sqrt(|P - 1/n|_F^2 + 1)``, which *is* ``|P|_F`` where rows and columns sum to one.

    Its gradient stays in the polytope's plane. That of ``|P|_F`` itself points along ``P``; a step along ``P``
    multiplies all of it by one number, and Sinkhorn's iteration divides that out again. (The paper's
    2-norm, read as an operator norm, would be 1 on all of the polytope.)

    Args:
        p: ``(n, n)``.

    Returns:
        A scalar; ``sqrt(n)`` at permutations, the largest value, and 1 at the centre.
    """
    return ((p - 1 / len(p)).square().sum() + 1).sqrt()
