"""The median rule for kernel bandwidths."""

import torch
from torch import Tensor

_EXACT = 4096  # examples; of more, evenly spaced ones are used


def check_bandwidth(bandwidth: float | None) -> None:
    """Refuse bandwidths that are no lengths."""
    if bandwidth is not None and not 0 < bandwidth < float("inf"):
        raise ValueError(f"bandwidth must be positive, or None for the median rule. Got {bandwidth}.")


def median_distance(distances: Tensor, root: bool = False) -> float:
    """Median over pairs of different examples, of at most 4096 evenly spaced ones; ``root`` for squared distances."""
    n = len(distances)
    if n > _EXACT:
        chosen = torch.linspace(0, n - 1, _EXACT, device=distances.device).long()
        distances = distances[chosen][:, chosen]
        n = _EXACT
    below = distances[torch.ones(n, n, dtype=torch.bool, device=distances.device).tril_(-1)]
    middle = torch.stack([below.median(), -(-below).median()])  # torch takes the lower one of the two in the middle
    median = float((middle.sqrt() if root else middle).mean())
    if median <= 0:
        raise ValueError(
            "bandwidth must be given here: at least half of all pairs of examples have equal features. Got a median "
            "distance of 0. Pass LaplaceKernel(bandwidth=...) or RBFKernel(bandwidth=...), or leave duplicates out."
        )
    return median
