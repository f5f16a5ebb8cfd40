"""The best pairing of channels, by the Hungarian method."""

import torch
from torch import Tensor

__all__ = ["assign"]


def assign(gain: Tensor) -> Tensor:
    """The permutation with the largest total gain, ``max_p sum_i gain[i, p[i]]``.

    Args:
        gain: ``(n, n)``; ``-inf`` forbids a pair.

    Returns:
        ``p``, int64 of shape ``(n,)``, on the device of ``gain``.

    Raises:
        ValueError: If every permutation uses a forbidden pair.
    """
    from scipy.optimize import linear_sum_assignment

    try:
        _, columns = linear_sum_assignment(gain.detach().to("cpu", torch.float64).numpy(), maximize=True)
    except ValueError:
        raise ValueError(
            "gain must allow at least one permutation. Got forbidden pairs (-inf) in every one, or NaN."
        ) from None
    return torch.as_tensor(columns, dtype=torch.int64, device=gain.device)
