"""Runs in float64, casts to lower precision inside the model's code left out: what is left is rounding at 1e-16."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..._evaluation import copied
from ..._examples import widened
from ...testing import outputs, tolerance

_LOWER = (torch.float32, torch.float16, torch.bfloat16)


class _Float64(TorchDispatchMode):
    """Casts go to float64 instead of a lower precision."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float64:
            return _by_group(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") in _LOWER:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def _by_group(rows: Tensor, matrices: Tensor, offs: Tensor, bias: None = None, out_dtype: Any = None) -> Tensor:
    """``rows[offs[e - 1] : offs[e]] @ matrices[e]`` for every ``e``, which torch has for lower precisions only."""
    ends = [0, *offs.tolist()]
    parts = [rows[a:b] @ matrix for a, b, matrix in zip(ends, ends[1:], matrices)]
    return torch.cat([*parts, rows.new_zeros(len(rows) - ends[-1], matrices.shape[-1])])


@contextmanager
def float64_casts() -> Iterator[None]:
    """Casts to lower precision become casts to float64."""
    with _Float64():
        yield


def in_float64(model: nn.Module, inputs: Any) -> tuple[nn.Module, Any, float]:
    """A copy of a model and inputs in float64, or as they are where its code does not run in float64.

    With them the relative error of the outputs that counts as rounding there.
    """
    wide, wide_inputs = copied(model).double(), widened(inputs)
    try:
        with float64_casts():
            outputs(wide, wide_inputs)
    except (RuntimeError, TypeError, ValueError):
        dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
        return copied(model), inputs, max(map(tolerance, dtypes), default=tolerance(torch.float32))
    return wide, wide_inputs, tolerance(torch.float64)
