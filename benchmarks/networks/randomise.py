"""Weights away from their initial values: equal gains, zero biases and tiny layer scales hide mistakes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["randomise"]


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter, running statistic and codebook of ``model`` generic values, in place, in evaluation mode.

    Matrices, kernels and tables are normal with standard deviation ``1 / sqrt(fan-in)``. Vectors keep their size and
    gain noise (a gain of one becomes ``1 + 0.3 z``); those that begin near zero, such as biases and layer scales, are
    drawn anew. Running means are moved, running variances lie in ``[0.5, 2]``, tables of zeros drawn as matrices.
    """
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.copy_(_generic(parameter, g))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(0.5 + 1.5 * torch.rand(buffer.shape, generator=g))
            elif name.endswith("running_mean"):
                buffer.add_(0.3 * torch.randn(buffer.shape, generator=g, dtype=buffer.dtype))
            elif buffer.is_floating_point() and buffer.dim() > 1 and not buffer.any():  # a codebook before training
                buffer.copy_(_generic(buffer, g))
    return model.eval()


def _generic(old: Tensor, g: torch.Generator) -> Tensor:
    noise = torch.randn(old.shape, generator=g, dtype=old.dtype)
    if old.dim() < 2 or old[0].numel() == 1:
        small = old.numel() == 0 or old.abs().max() < 0.1
        return 0.4 * noise if small else old + 0.3 * noise * old.abs().clamp_max(1.0)
    fan_in = old[0].numel() if old.shape[0] > 1 else 16
    return noise * fan_in**-0.5
