"""All pairs of layers of two networks by every measure, by the way that is fastest for each."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product, repeat
from typing import Any

import torch

from ..._progress import track
from ...features import Point
from ..base import Measure
from ..inference import Draws
from ..measures.cka import CKA
from ..measures.procrustes import Procrustes
from .block_grams import ESTIMATED
from .estimates import Estimates
from .kernel_alignment import estimate_cka
from .layers import Layer, Network, channels_first_shape, chunks
from .positions import common_space, pooling_note
from .procrustes import SHARE, Task, estimate_procrustes, stack_sizes
from .whole import WholeLayer

_GRAMS = 4  # of the memory, for the Gram matrices of each network


@dataclass(frozen=True)
class How:
    """How scores are judged, and in how much memory: by ``draws`` where all examples and positions count."""

    draws: Draws | None = None
    shuffled: bool = True
    intervals: bool = True
    seed: int = 0
    memory: int = 1 << 40
    progress: bool | None = False


def has_estimator(measure: Measure[Any]) -> bool:
    """Whether a measure follows from what one pass keeps: Procrustes, and unbiased CKA with kernels of channels."""
    return isinstance(measure, Procrustes) or (_by_grams(measure) and measure.kernel.name in ESTIMATED)  # type: ignore[attr-defined]


def score_all(
    measures: Sequence[Measure[Any]], a: Network, b: Network, how: How, what: str = "Comparing layers"
) -> dict[str, Estimates]:
    """Scores of all measures for all pairs of layers of two networks.

    Control-C ends the work: what has been scored counts, and a note says so.
    """
    size = len(a.layers), len(b.layers)
    shuffles, halves = (len(how.draws.permutations), len(how.draws.halves)) if how.draws else (0, 0)
    alone = [m for m in measures if how.draws and not isinstance(m, Procrustes) and not _by_grams(m)]
    found = {m.name: Estimates.empty(*size, shuffles, halves if m in alone else 0) for m in measures}

    def work() -> Iterator[None]:
        for m in measures:
            if isinstance(m, CKA) and _by_grams(m):
                yield from _by_tiles(m, a, b, how, found[m.name])
        crosses = [m for m in measures if isinstance(m, Procrustes)]
        task = Task(crosses, how.draws, how.shuffled, how.intervals, how.seed, how.memory)
        yield from estimate_procrustes(task, a, b, found)
        for m in alone:
            assert how.draws is not None
            yield from _one_by_one(m, a, b, how.draws, how.memory, found[m.name])

    try:
        for _ in track(work(), what, len(measures) * size[0] * size[1], how.progress):
            pass
    except KeyboardInterrupt:
        next(iter(found.values())).notes.append("Interrupted: pairs of layers that were not reached have no score.")
    folds = len(how.draws.folds) if how.draws else 0
    for m in measures:
        found[m.name].judge(m, a.examples, folds)
    return found


def check_memory(
    measures: Sequence[Measure[Any]], a: Sequence[Point], b: Sequence[Point], examples: int, memory: int
) -> None:
    """Refuse what would be refused after the networks ran: all that decides is known before."""
    wide = any(p.dtype == torch.float64 for p in (*a, *b))
    for m in measures:
        if isinstance(m, Procrustes):
            for some, others in ((a, b), (b, a)):
                shapes = [channels_first_shape(p) for p in others]
                for shape in map(channels_first_shape, some):
                    list(chunks(stack_sizes([shape], shapes, examples, memory), memory, SHARE))
        elif m.pairwise:
            size = (12 if not _by_grams(m) else 8 if wide else 4) * examples**2
            list(chunks([size], memory, _GRAMS))


def _by_grams(measure: Measure[Any]) -> bool:
    return isinstance(measure, CKA) and measure.estimator == "unbiased"


def _by_tiles(measure: CKA, a: Network, b: Network, how: How, found: Estimates) -> Iterator[None]:
    """Score with one CKA, as many layers of either network at a time as fit in memory."""
    every = [4 * a.examples**2 * (2 if _wide(x) else 1) if how.draws else 0 for x in (*a.layers, *b.layers)]
    tiles_a, tiles_b = (
        list(chunks(some, how.memory, _GRAMS)) for some in (every[: len(a.layers)], every[len(a.layers) :])
    )
    for rows in tiles_a:
        left = Network([a.layers[i] for i in rows], a.blocks)
        for columns in tiles_b:
            right = left if a is b and rows == columns else Network([b.layers[j] for j in columns], b.blocks)
            found.put((slice(rows.start, rows.stop), slice(columns.start, columns.stop)),
                      estimate_cka(measure, left, right, how.draws))  # fmt: skip
            if len(tiles_b) > 1:
                _forget(right.layers)
            yield from repeat(None, len(rows) * len(columns))
        _forget(left.layers)
    _forget(b.layers)


def _wide(layer: Layer) -> bool:
    return isinstance(layer, WholeLayer) and layer.stored.dtype == torch.float64


def _forget(layers: Sequence[Layer]) -> None:
    for layer in layers:
        if isinstance(layer, WholeLayer):
            layer.forget()


def _one_by_one(
    measure: Measure[Any], a: Network, b: Network, draws: Draws, memory: int, found: Estimates
) -> Iterator[None]:
    """Score with a measure of any kind: what a side alone determines is computed once for layers that fit in memory."""
    sizes = [
        [12 * side.examples**2 if measure.pairwise else x.stored.nbytes // 4 for x in side.layers]  # type: ignore[attr-defined]
        for side in (a, b)
    ]
    for rows, columns in product(*(list(chunks(some, memory, _GRAMS)) for some in sizes)):
        known: dict[tuple[int, int, Any], Any] = {}

        cells: dict[tuple[int, int], tuple[Any, Any]] = {}
        for i, j in product([i for i in rows if i in a.living], [j for j in columns if j in b.living]):
            x, y = a.layers[i], b.layers[j]
            space = None if measure.pairwise else common_space(x.space, y.space)  # pairs have summed over space
            with _noted(f"{measure.name} has no score for layer {x.name!r} of A and {y.name!r} of B", found.notes):
                for which, k, one in ((a, i, x), (b, j, y)):
                    if (id(which), k, space) not in known:
                        known[id(which), k, space] = measure.prepare(one.features(space))  # type: ignore[attr-defined]
                pair = known[id(a), i, space], known[id(b), j, space]
                found.scores[i, j] = measure.score(*pair)
                cells[i, j] = pair
                floor = measure.floor(*pair)
                found.floor[i, j] = torch.nan if floor is None else floor
        for p, order in enumerate(draws.permutations):
            moved = {id(y): y.take(order) for _, y in cells.values()}
            for at, (x, y) in cells.items():
                found.null[(*at, p)] = measure.score(x, moved[id(y)])
        for h, half in enumerate(draws.subsamples):
            halved: dict[int, Any] = {}
            for at, pair in cells.items():
                said = f"{measure.name} left out halves of the examples for layer {a.layers[at[0]].name!r} of A and "
                with _noted(f"{said}{b.layers[at[1]].name!r} of B", found.notes):
                    for one in pair:
                        if id(one) not in halved:
                            halved[id(one)] = one.take(half)
                    found.halves[(*at, h)] = measure.score(*(halved[id(one)] for one in pair))
        yield from repeat(None, len(rows) * len(columns))
    if not measure.pairwise:
        found.notes += pooling_note(measure.name, a.layers, b.layers)


class _noted(suppress):
    """A note instead of a refusal."""

    def __init__(self, what: str, notes: list[str]) -> None:
        super().__init__(ValueError)
        self._what, self._notes = what, notes

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, ValueError):
            self._notes.append(f"{self._what}: {error}")
        return super().__exit__(kind, error, trace)
