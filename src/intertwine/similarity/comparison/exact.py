"""Every score of every pair of layers exactly, from the features of all layers: the oracle of the estimator."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._progress import track
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from ..base import Measure
from ..measures.procrustes import Procrustes
from .all_pairs.plan import WORK, Plan, alike, counterparts, plan, whole
from .all_pairs.run import run, run_crosses, summarise
from .draws import Draws
from .layers import Layer
from .memory import check_memory
from .resampling import Copies, Resampling
from .spool import Spool

_FEWEST = 4  # examples: the unbiased estimators divide by N (N - 3)
_SHARE = 4  # of the memory, for the features of a network


@dataclass(frozen=True)
class Found:
    """What either way found: matrices by measure, facts of the layers, notes."""

    columns: dict[str, dict[str, Any]]
    layers: tuple[Sequence[Any], Sequence[Any]]
    examples: int
    untrained: dict[str, Tensor]
    settings: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class _Side:
    """A network while its features are read."""

    tap: Tapped
    spool: Spool
    layers: list[Layer]


@dataclass(frozen=True)
class Request:
    """One comparison as it was asked for, checked, its data at the first batch."""

    models: tuple[nn.Module, nn.Module]
    points: Sequence[Sequence[Point]]
    measures: Sequence[Measure[Any]]
    first: Any  # batch
    stream: Iterator[Any]  # of all batches
    drawn: Resampling
    reading: Reading
    memory: int
    examples: int | None  # that are expected
    batches: int | None
    progress: bool | None


def run_exactly(asked: Request, fresh: Copies) -> Found:
    """Keep the features of all layers, in memory or in temporary files, and score all pairs of examples."""
    models, points, chosen, drawn = asked.models, asked.points, asked.measures, asked.drawn
    reading, budget, expected, progress = asked.reading, asked.memory, asked.examples, asked.progress
    work = check_work(reading.work)
    share = budget // _SHARE // (1 + max(map(len, fresh)))
    notes: list[str] = []
    with ExitStack() as stack:

        def opened(side: str, model: nn.Module, some: Sequence[Point]) -> _Side:
            spool = stack.enter_context(Spool(share, expected, reading.max_examples))
            names = [p.name for p in some]
            tap = stack.enter_context(Tapped(model, names, outputs=reading.outputs, keep=spool.append))
            tap.points = tuple(some)
            spool.open(some)
            return _Side(tap, spool, [Layer(name, side, spool, _work_device(models[0])) for name in spool.points])

        sides = [opened(name, model, some) for name, model, some in zip("AB", models, points)]
        layers_of = (sides[0].layers, sides[1].layers)
        crosses = [m for m in chosen if isinstance(m, Procrustes)]
        pairs = len(fresh[0]) * len(fresh[1])
        if expected:
            likely = Draws.make(expected, drawn.null, drawn.bootstrap, drawn.seed)
            check_memory(chosen, *layers_of, plan(crosses, *layers_of, likely, work, None, pairs), budget)
        anew = [
            [opened(f"untrained {name}", model, some) for model in copies]
            for name, copies, some in zip("AB", fresh, points)
        ]
        for batch in track(asked.stream, "Running both networks", asked.batches, progress):
            for side in (*sides, *anew[0], *anew[1]):
                side.tap(batch)
            if sides[0].spool.examples == reading.max_examples:
                break
        examples = sides[0].spool.examples
        if examples < _FEWEST:
            raise ValueError(
                f"loader must yield at least {_FEWEST} examples. Got {examples}: every score would be chance."
            )
        draws = Draws.make(examples, drawn.null, drawn.bootstrap, drawn.seed)
        cells = run(chosen, *layers_of, draws, budget, progress)
        chosen_plan = plan(crosses, *layers_of, draws, work, alike(chosen, cells), pairs)
        cells |= run_crosses(crosses, *layers_of, chosen_plan, budget, progress)
        notes += chosen_plan.notes
        base = _fresh_scores(chosen, anew, chosen_plan, budget, progress) if anew[0] else {}
        stored = [n for n, side in zip("AB", sides) if side.spool.on_disk]
        notes += [f"The features of network {n} went to temporary files." for n in stored]
        if drawn.bootstrap and not len(draws.halves):
            notes.append(f"No intervals: {examples} examples are too few to halve.")
        notes += [note for m in chosen for note in cells[m.name].notes]
        settings = {"null": drawn.null, "bootstrap": len(draws.halves)}
        columns = {m.name: {**summarise(m, cells[m.name], examples), "error": None} for m in chosen}
        facts = [[_Facts(layer.name, layer.shape, layer.dead) for layer in side] for side in layers_of]
        return Found(columns, (facts[0], facts[1]), examples, base, settings, notes)


@dataclass(frozen=True)
class _Facts:
    """What a result says of a layer, when its features are gone."""

    name: str
    shape: tuple[int, ...]
    dead: Tensor


def _fresh_scores(
    measures: Sequence[Measure[Any]],
    anew: Sequence[Sequence[_Side]],
    trained: Plan,
    memory: int,
    progress: bool | None,
) -> dict[str, Tensor]:
    """Scores of copies of A with copies of B, ``(pairs, L_a, L_b)``: of all pairs of layers, or of partners alone."""
    a, b = anew
    every_a, every_b = ([layer for side in copies for layer in side.layers] for copies in anew)
    draws, whose = trained.draws.without(), "untrained networks"
    found = run(measures, every_a, every_b, draws, memory, progress, whose)
    crosses = [m for m in measures if isinstance(m, Procrustes)]
    chosen = whole(draws, len(every_a), len(every_b))
    if not trained.cells.all():
        cells, shape = torch.zeros_like(chosen.cells), (len(a), len(a[0].layers), len(b), len(b[0].layers))
        scores = alike(measures, found)
        for i in range(len(a)):
            j = i % len(b)
            block = None if scores is None else scores.view(shape)[i, :, j]
            cells.view(shape)[i, :, j] = counterparts(a[i].layers, b[j].layers, block)
        chosen = Plan(draws, cells, torch.zeros_like(cells), 0)
    found |= run_crosses(crosses, every_a, every_b, chosen, memory, progress, whose)
    return {name: _by_pair(one.scores, len(a), len(b)) for name, one in found.items()}


def _by_pair(scores: Tensor, a: int, b: int) -> Tensor:
    """Scores of stacked copies, ``(a L_a, b L_b)``, as ``(pairs, L_a, L_b)``; pairs without any score are left out."""
    pairs = scores.unflatten(1, (b, -1)).unflatten(0, (a, -1)).transpose(1, 2).flatten(0, 1)
    scored = ~pairs.isnan().all(2).all(1)
    return pairs[scored] if scored.any() else pairs


def check_work(work: float | None) -> float:
    """The work that may be spent, checked."""
    if work is None:
        return WORK
    if isinstance(work, bool) or not isinstance(work, int | float) or not work > 0:
        raise ValueError(f"work must be a positive number of operations, or math.inf. Got {work!r}.")
    return work


def _work_device(model: nn.Module) -> torch.device:
    """Work where network A is; on the CPU for devices without float64."""
    device = batching.device_of(model)
    return device if device is not None and device.type == "cuda" else torch.device("cpu")
