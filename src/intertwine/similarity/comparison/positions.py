"""Feature maps of different sizes brought to one, and positions that stand for all of a map, in every network alike."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEWEST = 16  # positions of each example, where there are as many
_ROWS = 16_384  # rows, examples times positions, below which all positions are taken
_PER_CHANNEL = 64  # rows for each channel, so that products of channels are not noise
_FINER = 16  # times the number of positions are tried
_PRODUCT = 2048  # positions up to which one product reads all sizes
_POOLS: dict[int, Callable[..., Any]] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def common_space(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial size at which features of sizes ``a`` and ``b`` are compared.

    The paper compares layers of equal size only (v2 D.7.1, v1 D.3.1). Here the finer side is averaged down to the
    coarser one, axis by axis. Tokens and a map of as many positions are matched in row-major order; for any other
    difference in the number of axes (a vector against a map) space is averaged away.

    Examples:
        >>> common_space((32, 32), (16, 16)), common_space((8, 8), ()), common_space((64,), (8, 8))
        ((16, 16), (), (64,))
    """
    if len(a) == len(b) and len(a) in {0, *_POOLS}:
        return tuple(map(min, a, b))
    if 1 in (len(a), len(b)) and prod(a) == prod(b):
        return (prod(a),)
    return a if a == b else ()


def pool(x: Tensor, space: tuple[int, ...]) -> Tensor:
    """Features ``(N, C, *S)`` at the spatial size ``space``, as :func:`common_space` gives it."""
    if tuple(x.shape[2:]) == space:
        return x
    if not space:
        return x.flatten(2).mean(2)
    if x.ndim - 2 != len(space):
        return x.flatten(2)
    return _POOLS[len(space)](x, space if len(space) > 1 else space[0])


def pooling_note(measure: str, a: Sequence[Any], b: Sequence[Any]) -> list[str]:
    """The sizes of layers that were averaged to which for a measure, in words; nothing where all are equal."""
    sizes = dict.fromkeys((x.space, y.space) for x in a for y in b if x.space != y.space)
    words = lambda space: "x".join(map(str, space)) or "no map"
    pairs = {" with ".join(sorted((words(s), words(t)))): common_space(s, t) for s, t in sizes}
    listed = "; ".join(f"{pair} at {words(space)}" if space else f"{pair} by mean" for pair, space in pairs.items())
    said = f"{measure} compares feature maps of different sizes after averaging the finer one: {listed}."
    return [said] if sizes else []


def enough(space: Sequence[int], examples: int, channels: int) -> int:
    """How many positions of a map are sampled.

    Examples:
        >>> enough((32, 32), 1000, 64), enough((112, 112), 100, 64), enough((7, 7), 100, 512)
        (17, 164, 49)
    """
    rows = max(_ROWS, _PER_CHANNEL * channels)
    return min(prod(space), max(FEWEST, -(-rows // max(1, examples))))


@lru_cache(maxsize=4096)
def ordering(space: tuple[int, ...], seed: int) -> Tensor:
    """All positions of a map, row-major, in an order whose every beginning is spread evenly: ``(P,)``.

    A shifted additive sequence with the generalised golden ratios as steps (Roberts 2018), each position at its first
    visit; those that it misses come last.
    """
    dimensions, every = len(space), prod(space)
    ratio = 2.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    steps = torch.tensor([ratio ** -(k + 1) for k in range(dimensions)], dtype=torch.float64)
    shift = torch.rand(dimensions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    count = min(_FINER * every, 200_000)
    points = (shift + torch.arange(count, dtype=torch.float64)[:, None] * steps) % 1
    place = torch.zeros(count, dtype=torch.int64)
    for axis, length in enumerate(space):
        place = place * length + (points[:, axis] * length).long().clamp(max=length - 1)
    first = torch.full((every,), count).scatter_reduce_(0, place, torch.arange(count), "amin")
    return first.sort(stable=True).indices


def sampled(x: Tensor, counts: Mapping[tuple[int, ...], int], seed: int) -> list[Tensor]:
    """Features ``(N, C, *S)`` at so many positions of each of some sizes, rows of channels: ``(N, count, C)`` each.

    Where the map is finer than a size, each position is the mean over what it covers, as :func:`pool` takes it.
    """
    own = tuple(x.shape[2:])
    if not own:
        return [x[:, None, :] for _ in counts]
    flat = x.flatten(2)
    if prod(own) <= _PRODUCT and x.is_contiguous():
        read, weights = (one.to(flat.device) for one in _reader(own, tuple(counts.items()), seed))
        found = (flat.flatten(0, 1).index_select(1, read) @ weights.to(flat)).unflatten(0, flat.shape[:2])
        return [part.mT for part in found.split([min(n, prod(s)) for s, n in counts.items()], 2)]
    pooled, found_each = {own: x}, {}
    for space, count in sorted(counts.items(), key=lambda one: -prod(one[0])):
        divided = (s for s in pooled if len(s) == len(space) > 0 and all(f % c == 0 for f, c in zip(s, space)))
        map_ = pooled.setdefault(space, pool(pooled[min(divided, key=prod, default=own)], space))
        map_ = map_.flatten(2) if space else map_[:, :, None]
        if count < prod(space):
            map_ = map_.index_select(2, ordering(space, seed)[:count].sort().values.to(x.device))
        found_each[space] = map_.mT
    return [found_each[space] for space in counts]


@lru_cache(maxsize=256)
def _reader(own: tuple[int, ...], counts: tuple[tuple[tuple[int, ...], int], ...], seed: int) -> tuple[Tensor, Tensor]:
    """The positions ``(p,)`` from which those chosen of all sizes are read, by a matrix ``(p, sum of counts)``."""
    unit = torch.eye(prod(own)).view(prod(own), 1, *own)
    columns = []
    for space, count in counts:
        coarse = pool(unit, space).reshape(prod(own), prod(space))
        columns.append(coarse if count >= prod(space) else coarse[:, ordering(space, seed)[:count].sort().values])
    weights = torch.cat(columns, 1)
    read = weights.any(1).nonzero()[:, 0]
    return read, weights[read]
