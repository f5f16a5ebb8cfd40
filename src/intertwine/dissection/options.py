"""Options of a dissection: how maps are read, and when a unit counts as a detector."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Criterion:
    """When a unit is a detector of a concept.

    Attributes:
        quantile: Share of a unit's values above its threshold.
        iou: Intersection over union above which a unit is a detector.
        standardise: Divide every channel by its root mean square before rotating. The scales of channels after a ReLU
            are free under the symmetry group, and a rotation mixes them: only with this does the result not depend on
            them. The papers rotate channels as they are.
        empty: What to do about concepts that no pixel carries: refuse, or leave them out with a note.

    Raises:
        ValueError: If one is out of range.
    """

    quantile: float = 0.005
    iou: float = 0.04
    standardise: bool = False
    empty: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be a share in (0, 1), such as 0.005. Got {self.quantile}.")
        if not 0 <= self.iou < 1:
            raise ValueError(f"iou must be in [0, 1), such as 0.04. Got {self.iou}.")
        if self.empty not in ("error", "drop"):
            raise ValueError(f"empty must be 'error' or 'drop'. Got {self.empty!r}.")


@dataclass(frozen=True)
class Maps:
    """How the maps of a layer are read from images.

    Attributes:
        transform: Turns images ``(B, 3, H, W)`` in [0, 1] into the model's input, such as a normalisation; ``None``
            passes them as they are.
        channel_dim: Channel axis of the features, 1 or -1; ``None`` asks ``intertwine.features``.
        grid: Rows and columns of patches, for tokens that do not form a grid of the image's shape.
        batch_size: Images in a batch.
        memory: Bytes that maps and labels may take; beyond it the model runs again for every basis.
        device: Where the model's inputs go; ``None`` for where the model is.

    Raises:
        ValueError: If the batch size is less than 1.
    """

    transform: Callable[[Tensor], Any] | None = None
    channel_dim: int | None = None
    grid: tuple[int, int] | None = None
    batch_size: int = 32
    memory: int = 2**30
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1. Got {self.batch_size}.")
