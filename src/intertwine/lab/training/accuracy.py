"""Share of examples that a model classifies correctly."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ...features.evaluate import evaluate


def accuracy(model: nn.Module, loader: Iterable[Any], device: str | torch.device | None = None) -> float:
    """Fraction of examples whose largest logit is at their label.

    Args:
        model: Maps inputs to logits ``(N, classes)``. It is run in eval mode and left in the mode it had.
        loader: Batches ``(inputs, labels, ...)``.
        device: Where to run; where the model's parameters are if ``None``. The model is moved there.

    Returns:
        Between 0 and 1.

    Raises:
        ValueError: If the loader is empty, or its labels are no classes.

    Examples:
        >>> batches = [(torch.eye(3), torch.tensor([0, 1, 0]))]
        >>> accuracy(nn.Identity(), batches)
        0.667
    """
    if device is None:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model.to(device)
    found = evaluate(model, loader).accuracy
    if found is None:
        raise ValueError("loader must yield labels of classes. Got none.")
    return found


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """``"auto"`` is CUDA where there is one, else the CPU.

    Raises:
        ValueError: If it is no device, or none that this machine has.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or another torch device. Got {device!r} ({error}).") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be one that this machine has. Got {str(chosen)!r}, and CUDA is not available.")
    try:
        torch.zeros(1, device=chosen).tolist()  # the meta device gives tensors, but no numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"device must be one that this machine has. Got {str(chosen)!r}, which does not compute here."
        ) from None
    return chosen
