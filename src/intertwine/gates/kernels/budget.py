"""Budgets of kernels: work and memory that are refused before they are begun."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ... import _memory


@dataclass(frozen=True)
class Budget:
    """What a path kernel may take.

    Attributes:
        memory: Bytes of one tile, beside gates and result.
        max_operations: Multiply-adds above which the work is refused.
        batch_size: Examples that run through the network at once, for their gates.
    """

    memory: float = 2**28
    max_operations: float = 1e14
    batch_size: int = 500


DEFAULT = Budget()


def check_fits(shape: Sequence[int], bytes_each: int, device: torch.device, beside: int = 0) -> None:
    """Check that a kernel fits into the free memory of a device, with what is held ``beside`` it (bytes)."""
    _memory.check_fits(
        math.prod(shape) * bytes_each + beside,
        "the kernel",
        f"shape {tuple(shape)} with its gates",
        "Take fewer examples, or one block of rows at a time: x[:k] against y = x.",
        device,
    )
