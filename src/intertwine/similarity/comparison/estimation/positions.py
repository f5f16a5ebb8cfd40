"""Positions of feature maps that stand for all of them: the same in every network that has maps of one size."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from ..spatial_sizes import common_space, pool

FEWEST = 16  # positions of each example, where there are as many
_ROWS = 16_384  # rows, examples times positions, below which all positions are taken
_PER_CHANNEL = 64  # rows for each channel, so that products of channels are not noise
_FINER = 16  # times the number of positions are tried
_PRODUCT = 2048  # positions up to which one product reads all sizes


def enough(space: Sequence[int], examples: int, channels: int, times: int = 1) -> int:
    """How many positions of a map are sampled; ``times`` as many where a first sample was not precise enough.

    Examples:
        >>> enough((32, 32), 1000, 64), enough((112, 112), 100, 64), enough((7, 7), 100, 512)
        (17, 164, 49)
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


def sampled(x: Tensor, spaces: Sequence[tuple[int, ...]], counts: Sequence[int], seed: int) -> list[Tensor]:
    """Features ``(N, C, *S)`` at some positions of each of some sizes, rows of channels: ``(N, count, C)`` each.

    Where the map is finer than a size, each position is the mean over what it covers, as :func:`pool` takes it.
    """
    own = tuple(x.shape[2:])
    every = prod(own)
    if not own:
        return [x[:, None, :] for _ in spaces]
    flat = x.flatten(2)
    if every <= _PRODUCT and x.is_contiguous():
        weights = _reader(own, tuple(spaces), tuple(counts), seed).to(flat)
        found = (flat.flatten(0, 1) @ weights).unflatten(0, flat.shape[:2])
        return [part.mT for part in found.split([min(n, prod(s)) for s, n in zip(spaces, counts)], 2)]
    pooled: dict[tuple[int, ...], Tensor] = {own: x}
    found_each = []
    for space, count in sorted(zip(spaces, counts), key=lambda one: -prod(one[0])):
        finer = min((s for s in pooled if _divides(s, space)), key=prod, default=own)
        map_ = pooled.setdefault(space, pool(pooled[finer], space)).flatten(2)
        if count < prod(space):
            map_ = map_.index_select(2, ordering(space, seed)[:count].sort().values.to(x.device))
        found_each.append((space, map_.mT if space else map_))
    by_space = dict(found_each)
    return [by_space[s] if s else flat.mean(2)[:, None, :] for s in spaces]


def _divides(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
    return len(fine) == len(coarse) > 0 and all(s % t == 0 for s, t in zip(fine, coarse))


@lru_cache(maxsize=256)
def _reader(own: tuple[int, ...], spaces: tuple[tuple[int, ...], ...], counts: tuple[int, ...], seed: int) -> Tensor:
    """A matrix ``(P, sum of counts)`` that reads the chosen positions of all sizes in one product."""
    unit = torch.eye(prod(own)).view(prod(own), 1, *own)
    columns = []
    for space, count in zip(spaces, counts):
        every = prod(space)
        coarse = pool(unit, space).reshape(prod(own), every)
        columns.append(coarse if count >= every else coarse[:, ordering(space, seed)[:count].sort().values])
    return torch.cat(columns, 1)


def sizes(space: tuple[int, ...], others: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sizes at which a layer meets layers of other sizes."""
    return list(dict.fromkeys(common_space(space, other) for other in others))
