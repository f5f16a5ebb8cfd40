"""Layers of networks as comparisons see them, the sizes and positions compared, and the pass over the data.

During the pass, keepers keep what they need of the layers. A keeper takes a layer's features on a batch (``keep``, as
of :class:`Tapped`) that belongs to a group of so many examples (``coming``), counts the group when all networks have
run on it (``commit``), and returns what it kept of the groups that count (``finished``).
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._evaluation import unchanged
from ..._memory import give_back, readable
from ..._nested import tensors_in
from ..._progress import is_silent, track
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from .._features import is_constant
from ..measures.cka import CKA

_POSITIONS = 16  # positions of each example, if it has as many
_ROWS = 16_384  # rows, examples times positions, below which all positions are taken
_PER_CHANNEL = 64  # rows per channel, so that products of channels are not noise
_FINER = 16  # times as many positions are tried
_PRODUCT = 2048  # positions up to which one product reads all sizes
_POOLS: dict[int, Callable[..., Any]] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def common_space(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial size at which features of sizes ``a`` and ``b`` are compared.

    The paper compares layers of equal size only (v2 D.7.1, v1 D.3.1). Here the finer side is averaged down to the
    coarser one, axis by axis. Tokens and a map of as many positions are matched in row-major order; otherwise space is
    averaged away.
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
    """Note on which sizes of layers a measure averaged to which size; empty where all are equal."""
    sizes = dict.fromkeys((x.space, y.space) for x in a for y in b if x.space != y.space)
    words = lambda space: "x".join(map(str, space)) or "no map"
    pairs = {" with ".join(sorted((words(s), words(t)))): common_space(s, t) for s, t in sizes}
    listed = "; ".join(f"{pair} at {words(space)}" if space else f"{pair} by mean" for pair, space in pairs.items())
    said = f"{measure} compares feature maps of different sizes after averaging the finer one: {listed}."
    return [said] if sizes else []


def enough(space: Sequence[int], examples: int, channels: int) -> int:
    """Number of positions of a map to sample."""
    rows = max(_ROWS, _PER_CHANNEL * channels)
    return min(prod(space), max(_POSITIONS, -(-rows // max(1, examples))))


@lru_cache(maxsize=4096)
def ordering(space: tuple[int, ...], seed: int) -> Tensor:
    """All positions of a map, as row-major indices ``(P,)``, ordered so that every initial part is spread evenly.

    A shifted additive sequence with the generalised golden ratios as steps (Roberts 2018), each position at its first
    visit; positions that it misses come last.
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
    """Features ``(N, C, *S)`` at a number of positions for each of some sizes, pooled: ``(N, count, C)`` each."""
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
    """Positions ``(p,)`` to read, and the matrix ``(p, sum of counts)`` that gives the chosen ones of all sizes."""
    unit = torch.eye(prod(own)).view(prod(own), 1, *own)
    columns = []
    for space, count in counts:
        coarse = pool(unit, space).reshape(prod(own), prod(space))
        columns.append(coarse if count >= prod(space) else coarse[:, ordering(space, seed)[:count].sort().values])
    weights = torch.cat(columns, 1)
    read = weights.any(1).nonzero()[:, 0]
    return read, weights[read]


FEWEST = 4  # examples: the unbiased estimators divide by N (N - 3)
_JOINED, _WHOLE = 64, 48  # examples: smaller batches count together; fewer if they run joined, which takes memory
_FEW = 1 << 20  # features of an example up to which those of a group of batches wait: more than inputs, joined, would
_LONG = 60.0  # seconds from which a pass is announced
Running = dict[str, tuple[nn.Module, Sequence[Point]]]


@dataclass
class Layer:
    """One layer of a network: what is known about it, and how measures read it, one block of examples at a time."""

    name: str
    side: str  # name of the network in messages
    shape: tuple[int, ...]  # channels, then space
    low: Tensor = field(default_factory=lambda: torch.empty(0))  # smallest value of every channel; NaN where a value is
    high: Tensor = field(default_factory=lambda: torch.empty(0))
    unseen: float = 0.0  # sum of fourth powers of a Gram matrix of channels that pairs from different blocks may make
    grams: dict[str, list[Tensor]] = field(default_factory=dict)  # by kernel, for each block
    sampled: dict[tuple[int, ...], list[Tensor]] = field(default_factory=dict)  # rows by spatial size, for each block

    def gram(self, measure: CKA, block: int) -> Tensor:
        """U-centred Gram matrix of a block of examples, ``(n, n)``; refused if the kernel has none."""
        return self.grams[measure.kernel.name][block]

    def rows(self, space: tuple[int, ...]) -> Sequence[Tensor]:
        """Rows of channels at a spatial size, ``(n, positions, C)`` for each block: at all positions, or sampled."""
        return self.sampled[space]

    def forget(self) -> None:
        """Free what was kept for scores."""
        self.grams, self.sampled = {}, {}

    def widen(self, low: Tensor, high: Tensor) -> None:
        """Include the extremes of more examples."""
        first = not len(self.low)
        self.low = low if first else torch.minimum(self.low, low)
        self.high = high if first else torch.maximum(self.high, high)

    @property
    def title(self) -> str:
        """Name in messages; a model that is not a container may be its own only layer, without a name."""
        return f"layer {self.name!r} of {self.side}" if self.name else f"{self.side} itself"

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
    def silent(self) -> str:
        """Reason why this layer has no score by any measure; empty if it may have one."""
        why = ""
        if not torch.isfinite(self.high - self.low).all():
            why = "NaN or infinite values in it"
        elif self.constant.all():
            why = f"all channels are {'zero' if self.dead.all() else 'constant'}"
        return f"No score for {self.title}: {why}." if why else ""


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
        """Indices of the layers that can have a score."""
        return [k for k, layer in enumerate(self.layers) if not layer.silent]


def channels_first_shape(point: Point) -> tuple[int, ...]:
    """Shape of one example's features at a point: channels, then space."""
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


def gather(
    models: Running,
    keepers: Mapping[str, Any],
    stream: Iterable[Any],
    reading: Reading,
    *,
    examples: int | None = None,
    progress: bool | None = False,
    joined: bool = True,
) -> dict[str, Network]:
    """Run networks over the data once, about so many ``examples``; Control-C ends the pass, and what was read counts.

    Raises:
        ValueError: If there are fewer than 4 examples.
        KeyboardInterrupt: If it is interrupted before there are 4.
    """
    # ``joined`` counts small batches together; they run one by one if all features of a network fit
    seen, notes, began = 0, list[str](), time.monotonic()
    give_back()  # memory holes left by earlier passes and scores
    with ExitStack() as stack:
        taps = {}
        for name, (model, points) in models.items():
            names = [p.name for p in points]
            stack.enter_context(unchanged(model))
            taps[name] = stack.enter_context(Tapped(model, names, outputs=reading.outputs, keep=keepers[name].keep))
            taps[name].points = tuple(points)
        few = max(sum(p.size for p in points) for _, points in models.values()) <= _FEW
        least = (_JOINED if few else _WHOLE) if joined else 1
        groups = batching.grouped(limited(stream, reading.max_examples), least)
        total = None if examples is None else examples * len(models)
        work = lambda group: sum(map(batching.size, group)) * len(models)
        what = "Examples through all networks" if len(models) > 1 else "Examples through the network"
        try:
            for group in track(groups, what, total, progress, work):
                began = time.monotonic() if joined and not seen else began  # mixed inputs have been read by now
                count = sum(map(batching.size, group))
                parts = group if few else [batching.join(group)]
                for (name, tap), batch in product(taps.items(), parts):  # features of one network at a time wait
                    keepers[name].coming = count
                    tap(batch)
                for keeper in keepers.values():
                    keeper.commit(count)
                left = (time.monotonic() - began) * ((examples or count) / count - 1)
                if not seen and left > _LONG and progress is not False and not is_silent():
                    print(
                        f"The pass over {examples} examples will take about {left / 60:.0f} min. To shorten it: "
                        "Reading(max_examples=...), --examples on the command line.",
                        file=sys.stderr,
                    )
                seen += count
        except KeyboardInterrupt:
            if seen < FEWEST:
                raise
            notes.append(f"Interrupted: these are the scores of the first {seen} examples.")
    if seen < FEWEST:
        raise ValueError(f"loader must yield at least {FEWEST} examples. Got {seen}: every score would be chance.")
    found = {name: keeper.finished() for name, keeper in keepers.items()}
    give_back()
    return {name: Network(one.layers, one.blocks, [*notes, *one.notes]) for name, one in found.items()}


def limited(stream: Iterable[Any], most: int | None) -> Iterator[Any]:
    """Batches of at most ``most`` examples in all."""
    left = sys.maxsize if most is None else most
    for batch in stream:
        count = batching.size(batch)
        if count >= left:
            if left:
                yield batching.head(batch, left)
            return
        left -= count
        yield batch


def mixed(
    stream: Iterable[Any], room: int, seed: int, notes: list[str], total: int | None, progress: bool | None
) -> Iterator[Any]:
    """All batches with their examples in random order, as far as the inputs fit in so many bytes.

    Blocks are made of neighbouring examples: for data that comes class by class, no block would hold two classes.
    ``notes`` receive what a reader must know. Control-C ends the stream, and what was read counts.

    Raises:
        KeyboardInterrupt: If too little was read.
    """  # noqa: DOC502 - raised where it is read
    generator, parts = torch.Generator().manual_seed(seed), 0
    batches = _until_stopped(track(stream, "Reading examples", total, progress and None, batching.size), notes)
    while held := _filling(batches, room):
        sizes = [*map(batching.size, held)]
        parts += 1
        if parts == 1 and sum(x.nbytes for x in tensors_in(held)) > room:
            notes.append(
                f"Inputs larger than {readable(room)} are mixed in parts of {sum(sizes)} examples. If the data comes "
                "class by class, shuffle it, or let Reading(memory=...) take more."
            )
        order = torch.randperm(sum(sizes), generator=generator)
        try:
            yield from (batching.join(held, index) for index in order.split(sizes))
        except ValueError as error:  # before the first
            notes.append(f"Examples are taken in the order of the loader; it should be random: {error}")
            yield from held


def _until_stopped(stream: Iterable[Any], notes: list[str]) -> Iterator[Any]:
    """Batches until Control-C, which raises if there are too few."""
    seen = 0
    try:
        for batch in stream:
            seen += batching.size(batch)
            yield batch
    except KeyboardInterrupt:
        if seen < FEWEST:
            raise
        notes.append(f"Interrupted: these are the scores of the first {seen} examples.")


def _filling(batches: Iterator[Any], room: int) -> list[Any]:
    """The next batches, up to the first that exceeds so many bytes."""
    held = list[Any]()
    for batch in batches:
        held.append(batch)
        room -= sum(x.nbytes for x in tensors_in(batch))
        if room < 0:
            break
    return held


def expected(loader: Iterable[Any], first: Any, max_examples: int | None) -> int | None:
    """Number of examples that will come, as far as it can be known."""
    total = batching.length(loader)
    if total is None:
        return max_examples
    if isinstance(loader, Sequence):
        count = sum(map(batching.size, loader))
    else:
        dataset = getattr(loader, "dataset", None)
        count = total * batching.size(first)
        count = min(count, len(dataset)) if isinstance(dataset, Sized) else count
    return count if max_examples is None else min(count, max_examples)
