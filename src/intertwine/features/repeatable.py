"""Loaders that shuffle by torch's global random numbers, read in an order that follows from a seed alone."""

from collections.abc import Iterable, Iterator
from typing import Any

from .._random import Stream


class Repeatable:
    """A loader whose every pass draws the same global random numbers, whatever was drawn before, and leaves no trace.

    Shuffling and augmentation by torch's global random numbers are then the same in every pass. A loader with a
    generator of its own goes on from where that stands.

    Examples:
        >>> import torch
        >>> loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=3, shuffle=True)
        >>> one, two = ([batch.tolist() for batch in Repeatable(loader, seed=0)] for _ in range(2))
        >>> one == two
        True
    """

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        stream = Stream(self.seed)
        with stream.drawing():
            batches = iter(self.loader)
        while True:
            with stream.drawing():
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch


def repeatable(loader: Iterable[Any], seed: int | None = None) -> Repeatable:
    """A loader as :class:`Repeatable`; one that is so already gets the new seed, or keeps its own."""
    if isinstance(loader, Repeatable):
        return loader if seed is None else Repeatable(loader.loader, seed)
    return Repeatable(loader, 0 if seed is None else seed)
