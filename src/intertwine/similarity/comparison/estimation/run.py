"""Two networks, layer by layer, in the time of a few forward passes: one pass over the data, and what it kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor, nn

from ...._nested import tensors_in
from ...._progress import track
from ....features import Point, Reading, Tapped
from ....features import batches as batching
from ...base import Measure
from ...measures.cka import CKA
from ...measures.procrustes import Procrustes
from ..all_pairs.run import CONFIDENCE
from ..exact import Found, Request
from ..resampling import Copies, Resampling, untrained_copies
from ..spatial_sizes import pooling_note
from .block_grams import ESTIMATED
from .cka import estimate_cka
from .estimates import Estimates
from .procrustes import SHUFFLES, Task, estimate_procrustes
from .statistics import Collector, LayerStatistics, Wanted

UNTRAINED = "untrained"
_FEWEST = 4
_JOINED = 64  # examples: smaller batches are joined
_SHARE = 4  # of the memory, for fresh weights
_BRIEF = 256  # examples at least that untrained networks see, and a third of all
_UNTRAINED: dict[str, dict[str, Tensor]] = {}  # scores of untrained networks in this process


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
    stream: Iterator[Any],
    wanted: Wanted,
    reading: Reading,
    total: int | None,
    progress: bool | None,
    what: str = "Running both networks",
    brief: int | None = None,
) -> dict[str, Statistics]:
    """Run networks over the data once, side by side, and keep the statistics of their layers.

    Those whose names begin with ``untrained`` run on the first ``brief`` examples alone. Control-C ends the pass: what
    has been read counts.

    Raises:
        KeyboardInterrupt: If it comes before enough examples for any score.
        ValueError: If too few examples come.
    """
    notes: list[str] = []
    with ExitStack() as stack:
        collectors = {name: Collector(name, points[name], wanted) for name in models}
        taps = {}
        for name, model in models.items():
            names = [p.name for p in points[name]]
            taps[name] = stack.enter_context(Tapped(model, names, outputs=reading.outputs, keep=collectors[name].keep))
            taps[name].points = tuple(points[name])
        seen = 0
        batches = batching.regroup(_limited(stream, reading.max_examples), min(_JOINED, wanted.block))
        try:
            for batch in track(batches, what, total, progress):
                running = [
                    n
                    for n in models
                    if brief is None or seen + batching.size(batch) / 2 < brief or not n.startswith(UNTRAINED)
                ]
                for name in running:
                    taps[name](batch)
                count = batching.size(batch)
                for name in running:
                    collectors[name].commit(count)
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
    seed: int,
    progress: bool | None,
    what: str = "Comparing layers",
) -> dict[str, Estimates]:
    """Estimates of all measures for all pairs of layers of two networks."""
    found: dict[str, Estimates] = {}
    for measure in measures:
        if isinstance(measure, CKA):
            found[measure.name] = estimate_cka(measure, a.layers, b.layers, a.blocks, CONFIDENCE)
    crosses = [m for m in measures if isinstance(m, Procrustes)]
    if crosses:
        task = Task(crosses, a.blocks, SHUFFLES if shuffled else 0, intervals, CONFIDENCE, seed)
        found |= estimate_procrustes(task, a.layers, b.layers)
    return found


def run_estimates(asked: Request) -> tuple[Found, list[str]]:
    """Run both networks, and untrained ones where their scores are not known yet, and estimate all scores."""
    models, points, chosen, drawn = asked.models, asked.points, asked.measures, asked.drawn
    expected, progress = asked.examples, asked.progress
    known = _key(models, points, chosen, drawn, asked.first, expected)
    base = _UNTRAINED.get(known)
    fresh, notes = (
        (([], []), []) if base is not None else untrained_copies(models[0], models[1], drawn, asked.memory // _SHARE)
    )
    anew, pairs = _pairs(models, points, fresh)
    wanted = Wanted.of(
        kernels_of(chosen), [p for some in points for p in some], needs_rows(chosen), expected, drawn.seed
    )
    running = (
        {"A": models[0]} | ({} if _same(models, points) else {"B": models[1]}) | {n: m for n, (m, _) in anew.items()}
    )
    where = {"A": points[0], "B": points[1]} | {n: points[side] for n, (_, side) in anew.items()}
    brief = max(_BRIEF, (expected or 0) // 3)
    found = gather(running, where, asked.stream, wanted, asked.reading, asked.batches, progress, brief=brief)
    a, b = found["A"], found.get("B", found["A"])
    shuffled, intervals = drawn.null > 0, drawn.bootstrap > 0
    estimates = estimate(chosen, a, b, shuffled, intervals, drawn.seed, progress)
    if base is None:
        base = _untrained(chosen, [(found[x], found[y]) for x, y in pairs], drawn.seed, progress)
        _UNTRAINED[known] = base
    columns = {m.name: estimates[m.name].summary(shuffled, intervals, m.has_limit) for m in chosen}
    said = [*dict.fromkeys(silent_notes([a, b])), *(note for m in chosen for note in estimates[m.name].notes)]
    note = pooling_note("Procrustes", a.layers, b.layers) if needs_rows(chosen) else None
    settings = {
        "null": "closed form" if shuffled else 0,
        "bootstrap": "jackknife" if intervals else 0,
        "estimated": True,
    }
    every = [*a.notes, *said, *([note] if note else [])]
    return Found(columns, (a.layers, b.layers), a.examples, base, settings, every), notes


def _same(models: Sequence[nn.Module], points: Sequence[Sequence[Point]]) -> bool:
    return models[0] is models[1] and list(points[0]) == list(points[1])


def _pairs(
    models: Sequence[nn.Module], points: Sequence[Sequence[Point]], fresh: Copies
) -> tuple[dict[str, tuple[nn.Module, int]], list[tuple[str, str]]]:
    """Untrained networks by name, with the side that they stand for, and which of them are compared.

    Of one architecture, all stand for both sides: three networks make three pairs.
    """
    a, b = fresh
    if not a or not b:
        return {}, []
    if _architecture(models[0]) == _architecture(models[1]) and [p.name for p in points[0]] == [
        p.name for p in points[1]
    ]:
        every = {f"{UNTRAINED} {k}": (model, 0) for k, model in enumerate([*a, *b[: max(1, len(b) - 1)]])}
        return every, list(combinations(every, 2))
    ours = {f"{UNTRAINED} A{k}": (model, 0) for k, model in enumerate(a)}
    theirs = {f"{UNTRAINED} B{k}": (model, 1) for k, model in enumerate(b)}
    return ours | theirs, list(product(ours, theirs))


def _untrained(
    chosen: Sequence[Measure[Any]], pairs: Sequence[tuple[Statistics, Statistics]], seed: int, progress: bool | None
) -> dict[str, Tensor]:
    """Scores of pairs of untrained networks, ``(pairs, L_a, L_b)``."""
    if not pairs:
        return {}
    every = [estimate(chosen, x, y, False, False, seed, progress, "Comparing untrained networks") for x, y in pairs]
    return {m.name: torch.stack([one[m.name].scores for one in every]) for m in chosen}


def _architecture(model: nn.Module) -> tuple[Any, ...]:
    """What makes two models of one architecture: their modules as they print, and the shapes of their tensors."""
    return repr(model), tuple((name, tuple(x.shape)) for name, x in model.state_dict().items())


def _key(
    models: Sequence[nn.Module],
    points: Sequence[Sequence[Point]],
    chosen: Sequence[Measure[Any]],
    drawn: Resampling,
    first: Any,
    expected: int | None,
) -> str:
    """What scores of untrained networks depend on: architectures, layers, measures, seeds, and the data's beginning."""
    known = sha256()
    own = drawn.untrained if isinstance(drawn.untrained, int) else id(drawn.untrained)
    layers = [[(p.name, p.channel_dim) for p in some] for some in points]
    facts = (
        [_architecture(m) for m in models],
        layers,
        [m.name for m in chosen],
        own,
        drawn.null > 0,
        drawn.seed,
        expected,
    )
    known.update(repr(facts).encode())
    for tensor in tensors_in(batching.example(first, batching.size(first))):
        known.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return known.hexdigest()


def kernels_of(measures: Sequence[Measure[Any]]) -> list[Any]:
    """The kernels of the CKAs among the measures."""
    return list({m.kernel.name: m.kernel for m in measures if isinstance(m, CKA)}.values())


def needs_rows(measures: Sequence[Measure[Any]]) -> bool:
    """Whether a measure compares channels, so that rows of them are kept."""
    return any(isinstance(m, Procrustes) for m in measures)


def silent_notes(sides: Sequence[Statistics]) -> list[str]:
    """The layers that have no score."""
    return [layer.silent for side in sides for layer in side.layers if layer.silent]
