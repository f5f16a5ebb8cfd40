"""Masked models, which pruned ones must equal: the whole model, of which some units no longer contribute."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...features.spectral_norms import spectral_norms
from ...symmetry.action import rewritable, tensors_of
from ...symmetry.description import Description

Rows = Mapping[str, Mapping[int, Tensor]]


def masked(sym: Description, model: nn.Module, kept: Rows) -> nn.Module:
    """The model with the slices of all other units set to zero; running statistics and spectral norms stay."""
    twin = rewritable(sym, model)
    divisors = {name: norm.size for name, norm in spectral_norms(twin).items()}
    with torch.no_grad():
        for tensor, axis, gone in _gone(sym, twin, kept):
            tensor.index_fill_(axis, gone, 0)
        for name, norm in spectral_norms(twin).items():
            norm.u.mul_(divisors[name] / norm.size)  # else what is left would be divided by a norm of its own
    return twin


@contextmanager
def excluded(sym: Description, model: nn.Module, kept: Rows) -> Iterator[nn.Module]:
    """The model in which units that a softmax or a top-k compares are never chosen: their logits are minus infinity."""
    twin = rewritable(sym, model)
    columns: dict[int, Tensor] = {}
    for tensor, axis, gone in _gone(sym, twin, kept):
        with torch.no_grad():
            if tensor.ndim == 1:
                tensor.index_fill_(0, gone, -torch.inf)
            elif tensor.ndim == 2 and axis == 0:
                columns[tensor.data_ptr()] = gone
    with _Logits(columns):
        yield twin


class _Logits(TorchFunctionMode):
    """Some outputs of some linear maps are minus infinity."""

    def __init__(self, columns: dict[int, Tensor]) -> None:
        super().__init__()
        self._columns = columns

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        gone = self._columns.get(args[1].data_ptr()) if func is nn.functional.linear and len(args) > 1 else None
        return result if gone is None or len(args[1]) != result.shape[-1] else result.index_fill(-1, gone, -torch.inf)


def _gone(sym: Description, twin: nn.Module, kept: Rows) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Every tensor and axis with the rows that do not stay."""
    statistics = {name for norm in sym.batch_norms for name in (norm.mean, norm.variance)}
    statistics |= {name for norm in spectral_norms(twin).values() for name in (norm.u_name, norm.v_name)}
    live = tensors_of(twin)
    for name, axes in kept.items():
        for axis, rows in axes.items() if name not in statistics else ():
            every = torch.arange(live[name].shape[axis])
            yield live[name], axis, every[~torch.isin(every, rows)].to(live[name].device)
