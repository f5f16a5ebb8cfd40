"""All pairs of layers of two networks by every measure, by the way that is fastest for each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product, repeat
from typing import Any

import torch

from ..._progress import track
from ...features import Point
from ..base import Measure
from ..measures.cka import CKA
from ..measures.procrustes import Procrustes
from .block_grams import ESTIMATED
from .estimates import Estimates, How
from .keepers import WholeLayer
from .kernel_alignment import estimate_cka
from .layers import Layer, Network, channels_first_shape, chunks
from .positions import common_space, pooling_note
from .procrustes import SHARE, estimate_procrustes, stack_sizes

INTERRUPTED = "Interrupted: pairs of layers that were not reached have no score."
_GRAMS = 4  # of the memory, for the Gram matrices of each network


def has_estimator(measure: Measure[Any]) -> bool:
    """Whether a measure follows from what one pass keeps: Procrustes, and unbiased CKA with kernels of channels."""
    return isinstance(measure, Procrustes) or (_by_grams(measure) and measure.kernel.name in ESTIMATED)  # type: ignore[attr-defined]


def score_all(
    measures: Sequence[Measure[Any]], a: Network, b: Network, how: How, what: str = "Comparing layers"
) -> dict[str, Estimates]:
    """Scores of all measures for all pairs of layers of two networks.

    Control-C ends the work: what has been scored counts, and a note says so.
    """
    size, draws = (len(a.layers), len(b.layers)), how.draws
    shuffles, halves, folds = (len(draws.permutations), len(draws.halves), len(draws.folds)) if draws else (0, 0, 0)
    crosses = [m for m in measures if isinstance(m, Procrustes)]
    alone = [m for m in measures if draws and not isinstance(m, Procrustes) and not _by_grams(m)]
    found = {m.name: Estimates(*size, shuffles, halves if m in alone else 0) for m in measures}

    def work() -> Iterator[None]:
        for m in measures:
            if isinstance(m, CKA) and _by_grams(m):
                yield from _by_tiles(m, a, b, how, found[m.name])
        yield from estimate_procrustes(crosses, a, b, how, found)
        for m in alone:
            yield from _one_by_one(m, a, b, how, found[m.name])

    try:
        for _ in track(work(), what, len(measures) * size[0] * size[1], how.progress):
            pass
    except KeyboardInterrupt:
        next(iter(found.values())).notes.append(INTERRUPTED)
    for m in measures:
        found[m.name].judge(m, a.blocks, folds)
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
    wide = lambda x: isinstance(x, WholeLayer) and x.stored.dtype == torch.float64
    sizes = [[(8 if wide(x) else 4) * a.examples**2 if how.draws else 0 for x in side.layers] for side in (a, b)]
    for rows, columns in product(*(list(chunks(some, how.memory, _GRAMS)) for some in sizes)):
        left = Network([a.layers[i] for i in rows], a.blocks)
        right = left if a is b and rows == columns else Network([b.layers[j] for j in columns], b.blocks)
        _forget((*a.layers, *b.layers), {id(layer) for layer in (*left.layers, *right.layers)})
        estimate_cka(measure, left, right, how, found, (rows.start, columns.start))
        yield from repeat(None, len(rows) * len(columns))
    _forget((*a.layers, *b.layers), set())


def _forget(layers: Sequence[Layer], but: set[int]) -> None:
    """Free the Gram matrices of layers that are no more needed."""
    for layer in layers:
        if isinstance(layer, WholeLayer) and id(layer) not in but:
            layer.grams.clear()


def _one_by_one(measure: Measure[Any], a: Network, b: Network, how: How, found: Estimates) -> Iterator[None]:
    """Score with a measure of any kind: what a side alone determines is computed once for layers that fit in memory."""
    assert how.draws is not None
    sizes = [
        [12 * side.examples**2 if measure.pairwise else x.stored.nbytes // 4 for x in side.layers]  # type: ignore[attr-defined]
        for side in (a, b)
    ]
    for rows, columns in product(*(list(chunks(some, how.memory, _GRAMS)) for some in sizes)):
        known: dict[tuple[int, Any], Any] = {}  # by layer and spatial size
        cells: dict[tuple[int, int], list[Any]] = {}
        for i, j in product([i for i in rows if i in a.living], [j for j in columns if j in b.living]):
            both = a.layers[i], b.layers[j]
            # measures of pairs of examples have summed over space
            space = None if measure.pairwise else common_space(both[0].space, both[1].space)
            with _noted(f"{measure.name} has no score for", both, found.notes):
                for one in both:
                    if (id(one), space) not in known:
                        known[id(one), space] = measure.prepare(one.features(space))  # type: ignore[attr-defined]
                pair = [known[id(one), space] for one in both]
                found.scores[i, j] = measure.score(*pair)
                cells[i, j] = pair
                floor = measure.floor(*pair)
                found.floor[i, j] = torch.nan if floor is None else floor
        for p, order in enumerate(how.draws.permutations):
            moved = {id(y): y.take(order) for _, y in cells.values()}
            for at, (x, y) in cells.items():
                found.null[(*at, p)] = measure.score(x, moved[id(y)])
        for h, half in enumerate(how.draws.subsamples):
            halved: dict[int, Any] = {}
            for (i, j), pair in cells.items():
                both = a.layers[i], b.layers[j]
                with _noted(f"{measure.name} left out halves of the examples for", both, found.notes):
                    for one in pair:
                        if id(one) not in halved:
                            halved[id(one)] = one.take(half)
                    found.halves[i, j, h] = measure.score(*(halved[id(one)] for one in pair))
        yield from repeat(None, len(rows) * len(columns))
    if not measure.pairwise:
        found.notes += pooling_note(measure.name, a.layers, b.layers)


@contextmanager
def _noted(what: str, pair: Sequence[Layer], notes: list[str]) -> Iterator[None]:
    """A note about a pair of layers instead of a refusal."""
    try:
        yield
    except ValueError as error:
        notes.append(f"{what} {pair[0].title} and {pair[1].title}: {error}")
