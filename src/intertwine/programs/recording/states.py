"""Parameters and buffers of a model as values of its program."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...errors import CaptureError
from ..calls import Ref
from .memory import Geometry, geometry, overlap, storage_key
from .recorder import Recorder


def check_states(model: nn.Module) -> None:
    """Check that parameters and buffers are dense tensors with contents."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise CaptureError(
                f"model must be initialised. Got the lazy parameter {name}. Run it once on an example first."
            )
        if tensor.layout != torch.strided or tensor.is_quantized:
            kind = "quantised" if tensor.is_quantized else str(tensor.layout)
            raise CaptureError(
                f"parameters must be dense floating-point tensors. Got {kind} {name}. Scalings leave its grid; convert "
                "it to dense floating point first."
            )
        plain = type(tensor) in (Tensor, nn.Parameter) or isinstance(tensor, nn.Buffer)
        if not plain and hasattr(type(tensor), "__torch_dispatch__") and not isinstance(tensor, nn.Parameter):
            raise CaptureError(f"parameters must be ordinary tensors. Got {type(tensor).__name__} {name}.")


def declare_states(recorder: Recorder, model: nn.Module) -> tuple[dict[str, Ref], dict[str, str]]:
    """Declare parameters and buffers; tied ones are declared once, under the first name."""
    states: dict[str, Ref] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    taken: dict[int, list[tuple[Geometry, str]]] = {}
    saved = {name for name, _ in _saved_buffers(model)}
    for kind, items in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in items:
            known = first.get(id(tensor)) or _same_memory(tensor, taken)
            if known is not None and tensor.numel():
                aliases[name] = known
                continue
            _check_memory(tensor, name, taken)
            first[id(tensor)] = name
            states[name] = recorder.declare(
                tensor, "constant" if kind == "buffer" and name not in saved else kind, name
            )
    return states, aliases


def _saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that a state dict holds; the others are made anew with every model, as constants are."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, tensor


def _same_memory(tensor: Tensor, taken: dict[int, list[tuple[Geometry, str]]]) -> str | None:
    here = taken.get(storage_key(tensor), ())
    return next((name for place, name in here if place == geometry(tensor)), None)


def _check_memory(tensor: Tensor, name: str, taken: dict[int, list[tuple[Geometry, str]]]) -> None:
    """Tensors that overlap without being one cannot move independently."""
    here = taken.setdefault(storage_key(tensor), [])
    for place, other in here:
        if overlap(place, geometry(tensor)):
            raise CaptureError(
                f"parameters and buffers must not share memory in part. Got {name} and {other}. Clone one, or tie them "
                "as one parameter."
            )
    here.append((geometry(tensor), name))
