"""Functions of torch as one operation each, so that a capture sees what depends on what.

Circular padding is written into a new tensor piece by piece; one-hot codes look at the numbers first, to see that they
are in range, and no decision of the model depends on that.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class AsOneOperation(TorchFunctionMode):
    """Replaces circular padding by an equal choice of positions, one-hot codes by ones written at their places."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, or its equal."""
        kwargs = kwargs or {}
        if func is F.pad and (kwargs.get("mode") or (args[2] if len(args) > 2 else "constant")) == "circular":
            x = args[0] if args else kwargs["input"]
            return _wrap(x, args[1] if len(args) > 1 else kwargs["pad"])
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        if func is F.one_hot and isinstance(classes, int) and classes > 0:
            places = args[0] if args else kwargs["tensor"]
            zeros = torch.zeros(*places.shape, classes, dtype=torch.int64, device=places.device)
            return zeros.scatter(-1, places.unsqueeze(-1), 1)
        return func(*args, **kwargs)


def _wrap(x: Tensor, pad: tuple[int, ...]) -> Tensor:
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        size = x.shape[-1 - k]
        positions = torch.arange(-before, size + after, device=x.device) % size
        x = torch.index_select(x, x.dim() - 1 - k, positions)
    return x
