"""One pass of networks over the data, side by side: what is kept of their layers is the caller's choice."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from typing import Any, Protocol

from torch import Tensor, nn

from ..._progress import is_silent, track
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from .layers import Network

FEWEST = 4  # examples: the unbiased estimators divide by N (N - 3)
_JOINED = 64  # examples: smaller batches are joined
_LONG = 60.0  # seconds of which one is told before


class Keeper(Protocol):
    """What is kept of the layers of one network."""

    def keep(self, name: str, features: Tensor) -> Tensor:
        """Take a layer's features on one batch."""
        ...

    def commit(self, examples: int) -> None:
        """Count the batch, when all networks have run on it."""
        ...

    def finished(self) -> Network:
        """What was kept of the batches that count."""
        ...


def gather(
    models: Mapping[str, tuple[nn.Module, Sequence[Point]]],
    keepers: Mapping[str, Keeper],
    stream: Iterable[Any],
    reading: Reading,
    *,
    total: int | None = None,
    progress: bool | None = False,
    most: Mapping[str, int] | None = None,
    joined: bool = True,
) -> dict[str, Network]:
    """Run networks over the data once and keep what their keepers keep of the layers at these points.

    Those of ``most`` run on about so many examples alone; ``joined`` joins small batches. Control-C ends the pass: what
    has been read counts, and a note says so. What will take more than a minute is told after the first batch.

    Raises:
        KeyboardInterrupt: If it comes before enough examples for any score.
        ValueError: If too few examples come.
    """
    seen, notes, began = 0, list[str](), time.monotonic()
    with ExitStack() as stack:
        taps = {}
        for name, (model, points) in models.items():
            names = [p.name for p in points]
            taps[name] = stack.enter_context(Tapped(model, names, outputs=reading.outputs, keep=keepers[name].keep))
            taps[name].points = tuple(points)
        batches = _limited(stream, reading.max_examples)
        batches = batching.regroup(batches, _JOINED) if joined else batches
        try:
            for batch in track(batches, f"Running {'both' if len(models) > 1 else 'the'} networks", total, progress):
                count = batching.size(batch)
                running = [n for n in models if seen + count / 2 < (most or {}).get(n, sys.maxsize)]
                for name in running:
                    taps[name](batch)
                for name in running:
                    keepers[name].commit(count)
                if not seen and total and progress is not False:
                    _tell(time.monotonic() - began, total)
                seen += count
        except KeyboardInterrupt:
            if seen < FEWEST:
                raise
            notes.append(f"Interrupted: these are the scores of the first {seen} examples.")
    if seen < FEWEST:
        raise ValueError(f"loader must yield at least {FEWEST} examples. Got {seen}: every score would be chance.")
    found = {name: keeper.finished() for name, keeper in keepers.items()}
    return {name: Network(one.layers, one.blocks, [*notes, *one.notes]) for name, one in found.items()}


def _tell(first: float, batches: int) -> None:
    """Say how long the pass will take, where that is long, and what would shorten it."""
    left = first * (batches - 1)
    if left > _LONG and not is_silent():
        print(
            f"The pass over {batches} batches will take about {left / 60:.0f} min. Fewer examples shorten it: "
            "Reading(max_examples=...), --examples on the command line.",
            file=sys.stderr,
        )


def _limited(stream: Iterable[Any], most: int | None) -> Iterator[Any]:
    """Batches of at most so many examples in all."""
    seen = 0
    for batch in stream:
        count = batching.size(batch)
        if most is not None and seen + count >= most:
            if most > seen:
                yield batching.head(batch, most - seen)
            return
        seen += count
        yield batch


def expected(loader: Iterable[Any], first: Any, max_examples: int | None) -> int | None:
    """How many examples will come, as far as one can know."""
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
