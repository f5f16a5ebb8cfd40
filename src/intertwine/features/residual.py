"""Residual streams that no module returns, as where a transformer is written without a module for each block."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from .._evaluation import evaluating
from ._hooks import unwrap
from .activations import nonlinearity_run
from .batches import call, device_of, head


def additions(model: nn.Module, example: Any) -> int:
    """How many sums of a run skip a nonlinearity and are not the input of one: ends of residual blocks.

    Args:
        model: Any module; it runs once, on the first two examples.
        example: As in ``layers``.
    """
    model = unwrap(model)
    with evaluating(model), torch.no_grad(), _Additions() as seen:
        call(model, head(example, 2), device_of(model))
    return len(seen.ends)


class _Additions(TorchDispatchMode):
    """Notes when every tensor was made, and which sums are ends of residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: set[int] = set()  # Steps of the run at which the sums were made
        self._made = WeakTensorKeyDictionary()  # Step at which a tensor was made; activations are not kept for it
        self._step = self._latest = 0  # Steps so far, and that of the latest nonlinearity

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        output = func(*args, **(kwargs or {}))
        made = output[0] if isinstance(output, tuple) else output
        if not isinstance(made, Tensor):
            return output
        self._step += 1
        given = [x for x in args[:2] if isinstance(x, Tensor)]
        if nonlinearity_run(func, args, kwargs):
            self.ends -= {self._made.get(x) for x in given}
            self._latest = self._step
        elif func.overloadpacket.__name__ in ("add", "add_") and self._skips(given):
            self.ends.add(self._step)
        self._made[made] = self._step
        return output

    def _skips(self, given: list[Tensor]) -> bool:
        """Whether one of two tensors was made before the latest nonlinearity; what no step made is a weight."""
        alike = len(given) == 2 and given[0].shape == given[1].shape
        return alike and min(self._made.get(x, self._step) for x in given) < self._latest
