"""Circular padding as one operation, which PyTorch does by writing into a new tensor piece by piece."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class CircularAsIndex(TorchFunctionMode):
    """Replaces circular padding by an equal choice of positions, so that a capture sees what depends on what."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, or its equal."""
        kwargs = kwargs or {}
        if func is F.pad and (kwargs.get("mode") or (args[2] if len(args) > 2 else "constant")) == "circular":
            x = args[0] if args else kwargs["input"]
            return _wrap(x, args[1] if len(args) > 1 else kwargs["pad"])
        return func(*args, **kwargs)


def _wrap(x: Tensor, pad: tuple[int, ...]) -> Tensor:
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        size = x.shape[-1 - k]
        positions = torch.arange(-before, size + after, device=x.device) % size
        x = torch.index_select(x, x.dim() - 1 - k, positions)
    return x
