"""A layer as the engines of ``compare`` see it, and how many of them fit in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._memory import readable
from .._features import is_constant, unit_scale
from .spool import Spool


@dataclass(frozen=True)
class Layer:
    """One layer of network A or B, its features read when needed."""

    name: str
    side: str
    spool: Spool
    device: torch.device

    def load(self) -> Tensor:
        """Features ``(N, C, *S)``, not to be changed."""
        return self.spool.read(self.name).to(self.device).movedim(self.spool.points[self.name].channel_dim, 1)

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64."""
        return self.spool.dtype(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, then space."""
        shape = list(self.spool.points[self.name].shape)
        axis = self.spool.points[self.name].channel_dim
        return (shape.pop(axis - (axis > 0)), *shape)

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.shape[0]

    @property
    def space(self) -> tuple[int, ...]:
        """Spatial size."""
        return self.shape[1:]

    @property
    def dead(self) -> Tensor:
        """Channels that are zero everywhere, ``(C,)`` bool."""
        low, high = self.spool.extremes(self.name)
        return (low == 0) & (high == 0)

    @property
    def constant(self) -> Tensor:
        """Channels that have one value everywhere, up to rounding, ``(C,)`` bool."""
        low, high = self.spool.extremes(self.name)
        return torch.ones(len(low), dtype=torch.bool) if self.name in self.spool.broken else is_constant(low, high)

    def nothing(self, measure: str) -> str:
        """Say that a measure has no score for this layer, since nothing in it tells examples apart."""
        if self.name in self.spool.broken:
            return f"{measure} has no score for layer {self.name!r} of {self.side}: NaN or infinite values in it."
        what = "zero" if self.dead.all() else "constant"
        return f"{measure} has no score for layer {self.name!r} of {self.side}: all channels are {what}."

    @property
    def scale(self) -> Tensor:
        """The power of 2 that brings the largest feature near 1, ``(1,)``."""
        low, high = self.spool.extremes(self.name)
        return unit_scale(torch.maximum(-low, high).double())

    @property
    def negative(self) -> bool:
        """Whether any feature is negative."""
        return bool((self.spool.extremes(self.name)[0] < 0).any())


def chunks(sizes: Sequence[int], memory: int, share: int) -> Iterator[range]:
    """Split positions ``0, 1, ...`` into runs whose ``sizes`` together fit one ``share``-th of the memory."""
    budget, start, used = memory // share, 0, 0
    for k, size in enumerate(sizes):
        if size > budget:
            raise ValueError(
                f"memory must hold the working data of two layers at a time. Got {readable(memory)}; "
                f"this comparison needs {readable(share * size)}. Use fewer examples or more memory: "
                "Reading(max_examples=..., memory=...)."
            )
        if used + size > budget:
            yield range(start, k)
            start, used = k, 0
        used += size
    yield range(start, len(sizes))
