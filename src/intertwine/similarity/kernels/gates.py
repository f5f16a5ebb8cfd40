"""The gates kernel: how many units are switched on for both of two examples."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .._features import Moments, double, working_dtype
from .base import Kernel
from .linear import linear_gram


@dataclass(frozen=True)
class GatesKernel(Kernel):
    """``k(x, y) = sum over c, s of 1{x_cs > 0} 1{y_cs > 0}``: one layer's overlap of active units (paper 2, section 2).

    Give it features behind a ReLU, whose signs are the layer's gates: ``q > 0`` and ``relu(q) > 0`` are the same, and
    so they are behind leaky ReLUs and all activations that keep signs. The Gram matrix is what one layer contributes to
    the neural path kernel of a fully connected network (theorem 3.1), so that this CKA compares what two layers switch
    on, not how strongly, and sees no scale at all. A channel that is positive for all examples, or for none, says
    nothing and is centred away.

    Behind a ReLU the group is exactly that of the ReLU. On features without zeros, such as pre-activations, it is
    larger: a flipped sign exchanges on and off, which centring cannot tell apart.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import cka
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(50, 8, generator=g)
        >>> scales, signs = torch.rand(8, generator=g) + 0.1, torch.tensor([1.0] * 7 + [-1.0])
        >>> round(cka(x, x.relu() * scales, kernel="gates"), 6)
        1.0
        >>> round(cka(x, x * signs, kernel="gates"), 6), cka(x, x.relu() * signs, kernel="gates") < 0.95
        (1.0, True)
    """

    name = "gates"
    measure = "gates_cka"
    group = "positive monomial maps (permutations times positive scales per channel); signs too where nothing is 0"
    psd = True
    reads_gates = True

    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix of the gates, each centred over examples."""
        return linear_gram(x > 0, dtype=working_dtype(x)), {}

    def explicit(self, x: Tensor, moments: Moments) -> Tensor:
        """The gates."""
        return double(x > 0)
