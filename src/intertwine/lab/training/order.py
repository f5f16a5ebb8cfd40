"""Order of the examples of a run: the same for one seed, however many networks are trained together."""

import torch
from torch import Tensor

from ..._random import mixed

__all__ = ["order", "steps_per_epoch"]


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Number of batches; batch norm cannot normalise one example, so that a last batch of one is left out."""
    return max(examples // batch_size + (examples % batch_size > 1), 1)


def order(examples: int, seed: int, epoch: int) -> Tensor:
    """Permutation of the examples in one epoch of the run of a seed."""
    return torch.randperm(examples, generator=torch.Generator().manual_seed(mixed(seed, "order", epoch)))
