"""Accuracy of a model; choice of device and precision."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from ...features.evaluate import evaluate

_UNITS = ("amx_tile", "avx512_bf16")  # features of CPUs that multiply in bfloat16


def accuracy(model: nn.Module, loader: Iterable[Any]) -> float:
    """Fraction of examples ``(inputs, labels, ...)``, 0 to 1, whose largest logit ``(N, classes)`` is at their label.

    The model is run in eval mode and then returned to its own mode.

    Raises:
        ValueError: If the loader is empty, or its labels are not classes.

    Examples:
        >>> batches = [(torch.eye(3), torch.tensor([0, 1, 0]))]
        >>> accuracy(nn.Identity(), batches)
        0.667
    """
    found = evaluate(model, loader).accuracy
    if found is None:
        raise ValueError("loader must yield labels of classes. Got none.")
    return found


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """A device of this machine, else a ``ValueError``; ``"auto"`` is CUDA if available, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or another torch device. Got {device!r} ({error}).") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be one that this machine has. Got {str(chosen)!r}, and CUDA is not available.")
    try:
        torch.zeros(1, device=chosen).tolist()  # the meta device makes tensors without numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"device must be one that this machine has. Got {str(chosen)!r}, which does not compute here."
        ) from None
    return chosen


def fast_precision(device: str | torch.device = "auto") -> Literal["float32", "bfloat16"]:
    """The precision in which training is fastest here: bfloat16 if the hardware multiplies in it.

    Otherwise bfloat16 is emulated, and slower than float32.
    """
    kind = choose_device(device).type
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        asks = (getattr(torch.cpu, f"_is_{unit}_supported", None) for unit in _UNITS)  # absent in some builds
        native = kind == "cpu" and any(ask() for ask in asks if ask)
    return "bfloat16" if native else "float32"
