"""A layer of a network as comparisons see it, whether its features are kept or statistics of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._memory import readable
from ...features import Point
from .._features import is_constant
from ..measures.cka import CKA


@dataclass
class Layer(ABC):
    """One layer of a network: what is known of it, and how measures read it, block of examples by block.

    Attributes:
        name: Name of the layer.
        side: The network, in messages.
        shape: Channels, then space.
        low: Smallest value of every channel, ``(C,)``; NaN where one is.
        high: Largest value of every channel.
    """

    name: str
    side: str
    shape: tuple[int, ...]
    low: Tensor = field(default_factory=lambda: torch.empty(0))
    high: Tensor = field(default_factory=lambda: torch.empty(0))

    @abstractmethod
    def gram(self, measure: CKA, block: int) -> Tensor:
        """The U-centred Gram matrix of a block of examples, ``(n, n)``.

        Raises:
            ValueError: If the kernel has none for these features.
        """

    @abstractmethod
    def rows(self, space: tuple[int, ...]) -> Sequence[Tensor]:
        """Rows of channels at a spatial size, ``(n, positions, C)`` for each block."""

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
        return (self.low == 0) & (self.high == 0)

    @property
    def constant(self) -> Tensor:
        """Channels that have one value everywhere, up to rounding."""
        return is_constant(self.low, self.high)

    @property
    def negative(self) -> bool:
        """Whether any feature is negative."""
        return bool((self.low < 0).any())

    @property
    def silent(self) -> str:
        """Why there is no score for this layer, by any measure; empty where there may be."""
        why = ""
        if not torch.isfinite(self.high - self.low).all():
            why = "NaN or infinite values in it"
        elif self.constant.all():
            why = f"all channels are {'zero' if self.dead.all() else 'constant'}"
        return f"No score for layer {self.name!r} of {self.side}: {why}." if why else ""


@dataclass(frozen=True)
class Network:
    """The layers of one network, read on the same examples as those of another."""

    layers: Sequence[Layer]
    blocks: Sequence[int]  # examples of each block
    notes: Sequence[str] = ()

    @property
    def examples(self) -> int:
        """Number of examples."""
        return sum(self.blocks)

    @property
    def living(self) -> list[int]:
        """The layers that can have a score."""
        return [k for k, layer in enumerate(self.layers) if not layer.silent]


def channels_first_shape(point: Point) -> tuple[int, ...]:
    """Channels, then space."""
    shape, axis = list(point.shape), point.channel_dim
    return (shape.pop(axis - (axis > 0)), *shape)


def check_shape(point: Point, features: Tensor) -> None:
    """Refuse features of another shape than that of the first batch."""
    if tuple(features.shape[1:]) != point.shape:
        raise ValueError(
            f"features of layer {point.name!r} must have one shape in all batches. Got {tuple(features.shape[1:])} "
            f"after {point.shape}. Pad or resize the inputs to one size."
        )


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
