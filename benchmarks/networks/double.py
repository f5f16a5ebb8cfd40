"""Code that casts to float32 inside, run in float64 instead, so that rounding hides nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["InDouble"]

_LOW = (torch.float32, torch.float16, torch.bfloat16)


class InDouble(TorchFunctionMode):
    """Within this mode casts to a lower floating-point precision become casts to float64."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` with every low precision replaced."""
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double
        if func is torch._grouped_mm:
            return _grouped_mm(*args, **(kwargs or {}))
        args = tuple(_wide(a) for a in args)
        return func(*args, **{k: _wide(v) for k, v in (kwargs or {}).items()})


def _grouped_mm(rows: Tensor, matrices: Tensor, offs: Tensor, **_: Any) -> Tensor:
    """Rows times the matrix of their group; PyTorch's own has no float64."""
    starts = [0, *offs.tolist()]
    out = rows.new_zeros(rows.shape[0], matrices.shape[-1])
    for matrix, start, stop in zip(matrices, starts, starts[1:]):
        out[start:stop] = rows[start:stop] @ matrix
    return out


def _wide(value: object) -> object:
    if isinstance(value, torch.dtype) and value in _LOW:
        return torch.float64
    if isinstance(value, Tensor) and value.dtype in _LOW:
        return value.double()
    return value
