"""One network to be tried: how it is built, and what it is run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Case", "generator", "images", "tokens"]


@dataclass(frozen=True)
class Case:
    """A network of another library.

    Attributes:
        name: Its name there, with what was changed.
        library: The library.
        family: The file or package that defines it.
        make: Builds it, small, with the initial weights of the library.
        inputs: Inputs of one call for ``(seed, scale, batch)``: positional or keyword arguments.
        batches: Batch sizes that may be tried besides the example's two.
    """

    name: str
    library: str
    family: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int, float, int], tuple | Mapping[str, Any]]
    batches: tuple[int, ...] = (3,)


def generator(seed: int) -> torch.Generator:
    """A source of random numbers of its own."""
    return torch.Generator().manual_seed(seed)


def images(size: int, channels: int = 3, *more: int) -> Callable[[int, float, int], tuple[Tensor]]:
    """Inputs of a vision model: ``(b, channels, *more, size, size)``."""
    return lambda seed, scale, batch: (
        scale * torch.randn(batch, channels, *more, size, size, generator=generator(seed), dtype=torch.float64),
    )


def tokens(vocabulary: int, length: int, seed: int, batch: int, first: int = 3) -> Tensor:
    """Token numbers from ``first`` up."""
    return torch.randint(first, vocabulary, (batch, length), generator=generator(seed))
