"""Networks with noise on their weights, as tuning leaves relatives of one network."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def rms(p: Tensor) -> Tensor:
    return p.square().mean().sqrt()


def shaken(model: nn.Module, size: float, of: Callable[[Tensor], Tensor | float] = lambda p: 1.0) -> nn.Module:
    """The model itself, with normal noise on every parameter ``p``, of standard deviation ``size * of(p)``."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * of(p) * torch.randn_like(p))
    return model
