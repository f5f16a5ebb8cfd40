"""Features a few channels at a time, normalised, so that no second copy of all of them is made."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .._features import subtract

_BYTES = 24 << 20


def channel_blocks(
    x: Tensor, dtype: torch.dtype, shift: Tensor | None = None, scale: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield ``(x - shift) * scale`` as blocks ``(c, N, P)`` with contiguous rows, all in one buffer."""
    n, channels, p = x.shape
    if shift is None and scale is None and x.dtype == dtype and p >= 64 and x.stride(2) == 1:
        yield x.transpose(0, 1)
        return
    step = max(1, min(channels, _BYTES // (n * p * dtype.itemsize)))
    buffer = torch.empty(step, n, p, dtype=dtype, device=x.device)
    for start in range(0, channels, step):
        part = x[:, start : start + step].transpose(0, 1)
        block = buffer[: len(part)].copy_(part)
        if shift is not None:
            subtract(block, shift[start : start + step, None, None])
        if scale is not None:
            block *= scale[start : start + step].to(block)[:, None, None]
        yield block
