"""Refuse a kernel that memory cannot hold before the work is done, not after."""

import math
from collections.abc import Sequence

import torch

from ... import _memory

__all__ = ["check_fits"]


def check_fits(shape: Sequence[int], bytes_each: int, device: torch.device, beside: int = 0) -> None:
    """Check that a kernel fits into the memory that is free.

    Args:
        shape: Of the kernel.
        bytes_each: Bytes of an entry.
        device: Where it will lie.
        beside: Bytes of what is held with it, such as gates.

    Raises:
        ValueError: If it does not.
    """  # noqa: DOC502 - raised by the check
    _memory.check_fits(
        math.prod(shape) * bytes_each + beside,
        "the kernel",
        f"shape {tuple(shape)} with its gates",
        "Take fewer examples, or one block of rows at a time: x[:k] against y = x.",
        device,
    )
