"""Batches that are moved and mirrored anew at every pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ..data import Batches
from .augment import augment

__all__ = ["Augmented"]


@dataclass(frozen=True)
class Augmented:
    """Batches of normalised images under random translations and mirroring, drawn from torch's global random numbers.

    Args:
        batches: The images.
        translate: Largest shift in pixels.
        flip: Whether to mirror every second image, on average.

    Examples:
        >>> from intertwine.lab import data
        >>> moved = Augmented(data.load("digits").loader("train", batch_size=32), translate=1, flip=False)
        >>> next(iter(moved))[0].shape
        torch.Size([32, 1, 8, 8])
    """

    batches: Batches
    translate: int
    flip: bool

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self.batches:
            yield augment(inputs, self.translate, self.flip), labels
