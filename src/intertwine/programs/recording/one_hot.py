"""One-hot codes as one operation: PyTorch looks at the numbers first, to see that they are in range."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class OneHotAsScatter(TorchFunctionMode):
    """Replaces one-hot codes of a given number of classes by ones written at their places.

    Nothing is then read from the numbers, on which no decision of the model depends.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, or its equal."""
        kwargs = kwargs or {}
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        if func is F.one_hot and isinstance(classes, int) and classes > 0:
            return _codes(args[0] if args else kwargs["tensor"], classes)
        return func(*args, **kwargs)


def _codes(places: Tensor, classes: int) -> Tensor:
    zeros = torch.zeros(*places.shape, classes, dtype=torch.int64, device=places.device)
    return zeros.scatter(-1, places.unsqueeze(-1), 1)
