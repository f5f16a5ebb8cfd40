"""Runs in float64, casts to lower precision inside the model's code left out: what is left is rounding at 1e-16.

Every room that writes other weights for the same function (act, fold, rotate, convert, prune, mappings) proves it here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .._evaluation import copied
from .._examples import each, widened
from .._nested import tensors_in
from ..testing import outputs, relative_error, tolerance
from .action import rewritable, tensors_of
from .description import Description

_LOWER = (torch.float32, torch.float16, torch.bfloat16)


class _Float64(TorchDispatchMode):
    """Casts go to float64 instead of a lower precision."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(func) == "aten._grouped_mm.default" and args[0].dtype == torch.float64:
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
    """A copy of a model whose outputs are compared, in float64 where its code runs in float64."""

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
    """Watches for casts to a lower precision, from that of the weights on; constants that are promoted do no harm."""

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


@dataclass(frozen=True)
class Proof:
    """Measured error of the new weights against the old ones, in float64, with a negative control.

    Attributes:
        error: Relative error of the outputs.
        rtol: Largest error that counts as rounding.
        control: The error when one tensor changes by other numbers of the same size: it must be large.
        tensor: That tensor.
    """

    error: float
    rtol: float
    control: float
    tensor: str


class Probe:
    """The one proof that new weights make the same function: a copy of a model, whose tensors are swapped for a run.

    Its outputs now are what others are compared with; ``tensors`` are live. It is a ``ValueError`` if they hold no
    finite number, or differ between two runs in eval mode.
    """

    def __init__(self, wide: Wide) -> None:
        self.wide, self.dtype, self.rtol = wide, wide.dtype, wide.rtol
        self.tensors = tensors_of(wide.model)
        self._reference = wide.outputs()
        if not any(bool(torch.isfinite(t).any()) for t in self._reference):
            raise ValueError("model must return finite numbers on the inputs. Got none.")
        if self.error({}) > self.rtol:
            raise ValueError(
                "model must return the same twice in eval mode. Got outputs that differ: fix its randomness."
            )

    def error(self, changed: Mapping[str, Tensor]) -> float:
        """Relative change of the outputs when some tensors are replaced for one run."""
        before = {name: self.tensors[name].clone() for name in changed}
        with torch.no_grad():
            try:
                for name, tensor in changed.items():
                    self.tensors[name].copy_(tensor)
                return relative_error(self._reference, self.wide.outputs())
            finally:
                for name, tensor in before.items():
                    self.tensors[name].copy_(tensor)

    def prove(
        self,
        changed: Mapping[str, Tensor],
        wrong: Iterable[tuple[str, Mapping[str, Tensor]]],
        rtol: float | None = None,
    ) -> Proof:
        """The error of changed tensors, and the largest of changes that are wrong, by name, until one is seen."""
        rtol = self.rtol if rtol is None else rtol
        error, control, seen = self.error(changed), 0.0, ""
        for name, tensors in wrong:
            control, seen = max((control, seen), (self.error(tensors), name))
            if control > rtol:
                break
        return Proof(error, rtol, control, seen)


def probed(sym: Description, model: nn.Module, inputs: Any, randomise: bool = True) -> Probe:
    """A probe of a model whose architecture has a symmetry; the model is left as it is.

    With ``randomise``, constant parameters (zero biases, unit gains) and batch-norm statistics of the copy get random
    values first: equal entries would hide mistakes.

    Raises:
        ValueError: See ``Probe``; or if the model is on the meta device.
    """
    if any(t.is_meta for t in tensors_of(model).values()):
        raise ValueError("model must hold weights to be run. Got tensors on the meta device: load a checkpoint.")
    wide = in_float64(rewritable(sym, model), inputs)
    if randomise:
        _randomise(sym, tensors_of(wide.model))
    return Probe(wide)


def without_each(sym: Description, changed: Mapping[str, Tensor]) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Negative controls: changed tensors, each of them in turn left as it was under all its names."""
    for name in changed:
        if name not in sym.aliases:
            yield name, {n: t for n, t in changed.items() if sym.aliases.get(n, n) != name}


def _randomise(sym: Description, tensors: Mapping[str, Tensor]) -> None:
    """Give distinct entries to every described tensor whose entries are all equal, and to batch-norm statistics."""
    generator = torch.Generator().manual_seed(0)
    variances = {norm.variance for norm in sym.batch_norms}
    statistics = variances | {norm.mean for norm in sym.batch_norms}
    with torch.no_grad():
        for name in sym.layouts:
            tensor = tensors.get(name)
            if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
                continue
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            if name in variances:
                tensor.copy_(0.5 + noise)
            elif name in statistics or bool((tensor == tensor.flatten()[0]).all()):
                tensor.add_(noise - 0.5)
