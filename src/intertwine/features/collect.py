"""Features of a whole data set in memory, for data that is small."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._progress import track
from .batches import length, peek
from .reading import Selector
from .tapped import Tapped

__all__ = ["collect"]


def collect(
    model: nn.Module,
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    *,
    outputs: Selector | Mapping[str, Selector] | None = None,
    max_examples: int | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> dict[str, Tensor]:
    """Collect hidden features of all examples, on the CPU.

    Everything is held in memory; :func:`intertwine.features.tap`, with the same arguments, streams instead.

    Raises:
        ValueError: If the loader is empty, ``max_examples`` is less than 1, or the features of a layer change shape
            between batches.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        >>> features = collect(model, torch.randn(10, 1, 4, 4).split(3))
        >>> {name: tuple(x.shape) for name, x in features.items()}
        {'1': (10, 4, 2, 2)}
    """
    if max_examples is not None and max_examples < 1:
        raise ValueError(f"max_examples must be at least 1. Got {max_examples}.")
    _, batches = peek(loader)
    parts: dict[str, list[Tensor]] = {}
    examples = 0
    with Tapped(model, layers, outputs=outputs, device=device) as tapped:
        for batch in track(batches, "Collecting features", length(loader), progress):
            features = tapped(batch)
            room = None if max_examples is None else max_examples - examples
            for name, x in features.items():
                parts.setdefault(name, []).append(x[:room].cpu())
            examples += next(iter(features.values())).shape[0]
            if max_examples is not None and examples >= max_examples:
                break
    return {name: _joined(name, chunks) for name, chunks in parts.items()}


def _joined(name: str, chunks: list[Tensor]) -> Tensor:
    shapes = {tuple(chunk.shape[1:]) for chunk in chunks}
    if len(shapes) > 1:
        raise ValueError(
            f"features of layer {name!r} must have one shape in all batches. Got {sorted(shapes)}. "
            "Pad or resize the inputs to one size."
        )
    return torch.cat(chunks)
