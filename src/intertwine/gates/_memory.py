"""Refuse a result that memory cannot hold before the work is done, not after."""

import math
import os
from collections.abc import Sequence

import torch

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
    """
    needed, free = math.prod(shape) * bytes_each + beside, _free_bytes(device)
    if needed > free:
        raise ValueError(
            f"the kernel must fit in memory. Got shape {tuple(shape)}, {needed / 1e9:,.1f} GB with its gates where "
            f"{free / 1e9:,.1f} GB are free. Take fewer examples, or one block of rows at a time: x[:k] against y = x."
        )


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type != "cpu":
        return math.inf
    try:
        with open("/proc/meminfo") as lines:  # counts what caches would give back
            return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else math.inf
