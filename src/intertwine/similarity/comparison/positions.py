"""Positions of feature maps that stand for all of them: the same in every network that has maps of one size."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from .spatial_sizes import common_space, pool

FEWEST = 32  # positions of each example, where there are as many
_ROWS = 16_384  # rows, examples times positions, below which all positions are taken
_PER_CHANNEL = 64  # rows for each channel, so that products of channels are not noise
_FINER = 16  # times the number of positions are tried


def enough(space: Sequence[int], examples: int, channels: int, times: int = 1) -> int:
    """How many positions of a map are sampled; ``times`` as many where a first sample was not precise enough.

    Examples:
        >>> enough((32, 32), 1000, 64), enough((112, 112), 100, 64), enough((7, 7), 100, 512)
        (32, 164, 49)
    """
    rows = max(_ROWS, _PER_CHANNEL * channels)
    wanted = times * max(FEWEST, -(-rows // max(1, examples)))
    every = prod(space)
    return every if wanted >= every else wanted


@lru_cache(maxsize=4096)
def ordering(space: tuple[int, ...], seed: int) -> Tensor:
    """All positions of a map, row-major, in an order whose every beginning is spread evenly: ``(P,)``.

    A shifted additive sequence with the generalised golden ratios as steps (Roberts 2018), each position at its first
    visit; those that it misses come last.
    """
    dimensions, every = len(space), prod(space)
    generator = torch.Generator().manual_seed(seed)
    ratio = 2.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    steps = torch.tensor([ratio ** -(k + 1) for k in range(dimensions)], dtype=torch.float64)
    shift = torch.rand(dimensions, generator=generator, dtype=torch.float64)
    count = min(_FINER * every, 200_000)
    points = (shift + torch.arange(count, dtype=torch.float64)[:, None] * steps) % 1
    place = torch.zeros(count, dtype=torch.int64)
    for axis, length in enumerate(space):
        place = place * length + (points[:, axis] * length).long().clamp(max=length - 1)
    first = torch.full((every,), count).scatter_reduce_(0, place, torch.arange(count), "amin")
    return first.sort(stable=True).indices


def sampled(x: Tensor, space: tuple[int, ...], count: int, seed: int) -> Tensor:
    """Features ``(N, C, *S)`` at ``count`` positions of the size ``space``, rows of channels: ``(N, count, C)``.

    Where the map is finer, each position is the mean over what it covers, as :func:`pool` takes it.
    """
    own, every = tuple(x.shape[2:]), prod(space)
    if not space:
        return (x.flatten(2).mean(2) if own else x)[:, None, :]
    if count >= every:
        return pool(x, space).flatten(2).mT
    chosen = ordering(space, seed)[:count].sort().values
    if len(own) == len(space) and own != space and all(s % t == 0 for s, t in zip(own, space)):
        return _covered(x, space, chosen)
    x = pool(x, space).flatten(2)
    return x.index_select(2, chosen.to(x.device)).mT


def _covered(x: Tensor, space: tuple[int, ...], chosen: Tensor) -> Tensor:
    """Means over the boxes of a finer map that the chosen positions cover, read there alone."""
    own, places, rest = tuple(x.shape[2:]), torch.zeros(len(chosen), 1, dtype=torch.int64), chosen
    coordinates: list[Tensor] = []
    for length in reversed(space):
        coordinates.insert(0, rest % length)
        rest = rest // length
    for at, fine, coarse in zip(coordinates, own, space):
        inside = at[:, None] * (fine // coarse) + torch.arange(fine // coarse)
        places = (places[:, :, None] * fine + inside[:, None, :]).flatten(1)
    found = x.flatten(2).index_select(2, places.flatten().to(x.device))
    return found.unflatten(2, tuple(places.shape)).mean(3).mT


def sizes(space: tuple[int, ...], others: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sizes at which a layer meets layers of other sizes."""
    return list(dict.fromkeys(common_space(space, other) for other in others))
