"""Runs in float64, casts to lower precision inside the model's code left out: what is left is rounding at 1e-16."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..._evaluation import copied
from ..._examples import each, widened
from ..._nested import tensors_in
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


@dataclass(frozen=True)
class Wide:
    """A copy of a model whose outputs are compared, in float64 where its code runs in float64.

    Attributes:
        model: The copy.
        inputs: What it runs on.
        dtype: Lowest floating-point precision seen in its run.
        casts: What it runs in: nothing, or casts to lower precision that go to float64.
    """

    model: nn.Module
    inputs: Any
    dtype: torch.dtype
    casts: Callable[[], AbstractContextManager[object]]

    @property
    def rtol(self) -> float:
        """Relative error that rounding alone may cause at that precision."""
        return tolerance(self.dtype)

    def outputs(self, model: nn.Module | None = None) -> list[Tensor]:
        """All tensors that the copy returns, or a model that was made of it."""
        with self.casts():
            return outputs(self.model if model is None else model, self.inputs)


def in_float64(model: nn.Module, inputs: Any) -> Wide:
    """A copy of a model and inputs in float64, or as they are where its code does not run in float64."""
    wide, given, found = copied(model).double(), widened(inputs), []
    for casts in (nullcontext, _Float64):
        with suppress(RuntimeError, TypeError, ValueError):
            found.append(_run(wide, given, casts))
            if found[-1].dtype == torch.float64:
                return found[-1]
    return min(found, key=lambda one: _eps(one.dtype)) if found else _run(copied(model), inputs, nullcontext)


def _run(model: nn.Module, inputs: Any, casts: Callable[[], AbstractContextManager[object]]) -> Wide:
    tensors = (*model.parameters(), *model.buffers(), *(t for example in each(inputs) for t in tensors_in(example)))
    with casts(), _LowestPrecision(_lowest(torch.float64, tensors)) as seen:
        found = outputs(model, inputs)
    return Wide(model, inputs, _lowest(seen.dtype, found), casts)


def _lowest(dtype: torch.dtype, tensors: Iterable[Tensor]) -> torch.dtype:
    return max((dtype, *(t.dtype for t in tensors if t.is_floating_point())), key=_eps)


class _LowestPrecision(TorchDispatchMode):
    """Watches for casts to a lower floating-point precision; constants of low precision that are promoted do no harm.

    Args:
        dtype: Where to start: the lowest precision of the weights.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [x.dtype for x in args if isinstance(x, Tensor) and x is not result and x.is_floating_point()]
        if given and isinstance(result, Tensor) and result.is_floating_point():
            lower = _eps(result.dtype) > max(map(_eps, given))
            self.dtype = _lowest(self.dtype, [result] if lower else [])
        return result


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)
