"""Zoos: many networks of one architecture that differ in their seeds, and the pairs that are drawn from them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .training import Card, load_checkpoint, read_card

__all__ = ["Member", "draw_pairs", "read_zoo"]


@dataclass(frozen=True)
class Member:
    """One network of a zoo."""

    path: Path  # Of its checkpoint
    card: Card  # What it is

    @property
    def name(self) -> str:
        """For people and for ``pair_interval``: the name of its file, without the ending."""
        return self.path.stem

    def load(self) -> nn.Module:
        """The network, in evaluation mode."""
        return load_checkpoint(self.path)


def draw_pairs(models: int, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Draw ordered pairs of distinct models, uniformly and with replacement, as the paper does (v2 D.1).

    Pairs share models: for an interval over them use ``intertwine._zoo_intervals.pair_interval``, not one over pairs.

    Raises:
        ValueError: If there are fewer than 2 models or no pairs.

    Examples:
        >>> draw_pairs(100, 3)
        [(44, 14), (39, 92), (33, 3)]
    """
    if models < 2:
        raise ValueError(f"models must be at least 2 to draw pairs of distinct ones. Got {models}.")
    if count < 1:
        raise ValueError(f"count must be at least 1. Got {count}.")
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(models, (count,), generator=generator)
    second = (first + torch.randint(1, models, (count,), generator=generator)) % models
    return list(zip(first.tolist(), second.tolist()))


def read_zoo(folder: str | Path) -> list[Member]:
    """Find the members of a zoo that ``train_many`` wrote, by seed: of one architecture on one data set."""
    folder = Path(folder)
    found = [Member(path, card) for path in sorted(folder.glob("*.safetensors")) if (card := read_card(path))]
    if not found:
        raise ValueError(f"zoo must be a folder with checkpoints and cards. Got none in {str(folder)!r}. Train some.")
    kinds = sorted({f"{m.card.architecture} on {m.card.data}" for m in found})
    if len(kinds) > 1:
        raise ValueError(f"zoo must hold one architecture on one data set. Got {', '.join(kinds)} in {str(folder)!r}.")
    return sorted(found, key=lambda m: (m.card.seed is None, m.card.seed or 0, m.path))
