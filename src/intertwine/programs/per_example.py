"""Numbers and constants of a program that grow with the batch."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._nested import leaves


@dataclass(frozen=True)
class PerExample:
    """A whole number that grows with the batch: ``base + slope N``."""

    base: int
    slope: int

    def at(self, n: int) -> int:
        """Its value for ``n`` examples."""
        return self.base + self.slope * n


@dataclass(frozen=True)
class Growing:
    """A constant that grows with the batch: block ``k`` of ``N`` along an axis is ``first + k step``."""

    axis: int  # The axis
    first: Tensor  # The first block
    step: Tensor | None  # What each block adds; ``None`` where all are equal

    def at(self, n: int) -> Tensor:
        """Its value for ``n`` examples."""
        blocks = self.first.unsqueeze(self.axis)
        blocks = blocks.expand(*(n if d == self.axis else -1 for d in range(blocks.ndim)))
        if self.step is not None:
            count = torch.arange(n, device=self.first.device).view(-1, *[1] * (blocks.ndim - self.axis - 1))
            blocks = blocks + self.step.unsqueeze(self.axis) * count
        return blocks.flatten(self.axis, self.axis + 1).to(self.first.dtype)


def grows(argument: Any) -> bool:
    """Whether an argument holds a number that grows with the batch."""
    return any(isinstance(leaf, PerExample) for leaf in leaves(argument))
