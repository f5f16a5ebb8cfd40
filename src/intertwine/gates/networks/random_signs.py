"""Random signs of one size as weights (assumption 2.1)."""

import torch
from torch import nn


def bernoulli_(model: nn.Module, sigma: float, seed: int = 0) -> nn.Module:
    """Give every weight the value ``+sigma`` or ``-sigma``, each with probability 1/2 (P2 assumption 2.1).

    Args:
        model: Changed in place.
        sigma: Size of the weights; ``c / sqrt(width)`` in the limits, ``c / sqrt(width * window)`` for convolutions.
        seed: Of the signs.

    Returns:
        ``model``.

    Raises:
        ValueError: If ``sigma`` is not positive.

    Examples:
        >>> bernoulli_(nn.Linear(2, 2, bias=False), 0.5).weight.abs()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]], grad_fn=<AbsBackward0>)
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be positive. Got {sigma}.")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.copy_(signs * sigma)
    return model
