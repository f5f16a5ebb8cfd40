"""Two networks, layer by layer, in the time of a few forward passes: one pass over the data, and what it kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._progress import track
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from ..base import Measure
from ..measures.cka import CKA
from ..measures.procrustes import Procrustes
from .block_grams import ESTIMATED
from .estimate_cka import estimate_cka
from .estimate_procrustes import SHUFFLES, Task, estimate_procrustes
from .estimates import Estimates
from .statistics import Collector, LayerStatistics, Wanted

_FEWEST = 4
_JOINED = 64  # examples: smaller batches are joined


def has_estimator(measure: Measure[Any]) -> bool:
    """Whether a measure follows from what one pass keeps: Procrustes, and unbiased CKA with kernels of channels."""
    if isinstance(measure, CKA):
        return measure.estimator == "unbiased" and measure.kernel.name in ESTIMATED
    return isinstance(measure, Procrustes)


@dataclass
class Statistics:
    """What one pass kept of one network."""

    layers: list[LayerStatistics]
    blocks: list[int]  # examples of each block
    notes: list[str] = field(default_factory=list)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return sum(self.blocks)


def gather(
    models: Mapping[str, nn.Module],
    points: Mapping[str, Sequence[Point]],
    first: Any,
    stream: Iterator[Any],
    wanted: Wanted,
    reading: Reading,
    total: int | None,
    progress: bool | None,
    what: str = "Running both networks",
) -> dict[str, Statistics]:
    """Run networks over the data once, side by side, and keep the statistics of their layers.

    Control-C ends the pass: what has been read counts.
    """
    notes: list[str] = []
    with ExitStack() as stack:
        collectors = {name: Collector(name, points[name], wanted) for name in models}
        taps = {}
        for name, model in models.items():
            names = [p.name for p in points[name]]
            taps[name] = stack.enter_context(
                Tapped(model, names, outputs=reading.outputs, keep=collectors[name].keep)
            )
            taps[name].prepare(first)
        seen = 0
        batches = batching.regroup(_limited(stream, reading.max_examples), min(_JOINED, wanted.block))
        try:
            for batch in track(batches, what, total, progress):
                for tap in taps.values():
                    tap(batch)
                count = batching.size(batch)
                for collector in collectors.values():
                    collector.commit(count)
                seen += count
        except KeyboardInterrupt:
            if seen < _FEWEST:
                raise
            notes.append(f"Interrupted: these are the scores of the first {seen} examples.")
        if seen < _FEWEST:
            raise ValueError(f"loader must yield at least {_FEWEST} examples. Got {seen}: every score would be chance.")
    return {name: Statistics(c.finished(), c.examples, notes) for name, c in collectors.items()}


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


def estimate(
    measures: Sequence[Measure[Any]],
    a: Statistics,
    b: Statistics,
    shuffled: bool,
    intervals: bool,
    confidence: float,
    seed: int,
    progress: bool | None,
    what: str = "Comparing layers",
) -> dict[str, Estimates]:
    """Estimates of all measures for all pairs of layers of two networks."""
    found: dict[str, Estimates] = {}
    for measure in measures:
        if isinstance(measure, CKA):
            found[measure.name] = estimate_cka(measure, a.layers, b.layers, a.blocks, confidence)
    crosses = [m for m in measures if isinstance(m, Procrustes)]
    if crosses:
        task = Task(crosses, a.blocks, SHUFFLES if shuffled else 0, intervals, confidence, seed)
        found |= estimate_procrustes(task, a.layers, b.layers)
    return found


def kernels_of(measures: Sequence[Measure[Any]]) -> list[Any]:
    """The kernels of the CKAs among the measures."""
    return list({m.kernel.name: m.kernel for m in measures if isinstance(m, CKA)}.values())


def needs_rows(measures: Sequence[Measure[Any]]) -> bool:
    """Whether a measure compares channels, so that rows of them are kept."""
    return any(isinstance(m, Procrustes) for m in measures)


def silent_notes(sides: Sequence[Statistics]) -> list[str]:
    """The layers that have no score."""
    return [layer.silent for side in sides for layer in side.layers if layer.silent]
