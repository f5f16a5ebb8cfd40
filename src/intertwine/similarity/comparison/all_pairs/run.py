"""Every pair of layers by every measure, and what shuffles and halves of the examples say of each score."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...._progress import track
from ...base import Measure
from ...measures.procrustes import Procrustes
from ..draws import Cells, Draws
from ..inference import best_p_values, calibrate, interval, p_value
from ..layers import Layer
from .by_cka import compare_grams
from .by_procrustes import compare_crosses
from .one_by_one import compare_pairs
from .plan import Plan

T = TypeVar("T")
CONFIDENCE = 0.95


def run(
    measures: Sequence[Measure[Any]],
    a: Sequence[Layer],
    b: Sequence[Layer],
    draws: Draws,
    memory: int,
    progress: bool | None,
    whose: str = "",
) -> dict[str, Cells]:
    """Cells of all measures but Procrustes, by the engine that is fastest for each; ``whose`` layers, progress says."""
    found: dict[str, Cells] = {}
    steps: dict[str, Any] = {"grams": (compare_grams, len(a) + len(b)), "pairs": (compare_pairs, len(a) * len(b))}
    for m in measures:
        if m.engine in steps:
            engine, total = steps[m.engine]
            found[m.name] = _finish(engine(m, a, b, draws, memory), f"{_comparing(whose)} by {m.name}", total, progress)
    return found


def run_crosses(
    measures: Sequence[Procrustes],
    a: Sequence[Layer],
    b: Sequence[Layer],
    plan: Plan,
    memory: int,
    progress: bool | None,
    whose: str = "",
) -> dict[str, Cells]:
    """Cells of Procrustes measures as planned."""
    if not measures:
        return {}
    work = compare_crosses(measures, a, b, plan, memory)
    return _finish(work, f"{_comparing(whose)} by Procrustes", int(plan.cells.sum()), progress)


def _comparing(whose: str) -> str:
    return f"Comparing {whose}" if whose else "Comparing"


def _finish(work: Generator[None, None, T], description: str, total: int, progress: bool | None) -> T:
    """Run an engine to its end under a progress display, and return what it returns."""
    returned: list[T] = []

    def steps() -> Iterator[None]:
        returned.append((yield from work))

    for _ in track(steps(), description, total, progress):
        pass
    return returned[0]


def summarise(measure: Measure[Any], cells: Cells, examples: int) -> dict[str, Any]:
    """Chance level, p-value, calibrated score and interval of every cell; ``None`` for what was not asked."""
    summary: dict[str, Any] = dict.fromkeys(("low", "high", "chance", "null_p", "best_p", "calibrated", "floor"))
    summary["scores"] = cells.scores
    if not cells.floor.isnan().all():
        summary["floor"] = cells.floor
    if cells.null.shape[2]:
        summary["chance"] = cells.null.mean(2)
        summary["null_p"] = _by_cell(p_value, cells.scores, cells.null)
        summary["best_p"] = best_p_values(cells.scores, cells.null)
        summary["calibrated"] = _by_cell(calibrate, cells.scores, cells.null)
    if cells.halves.shape[2] and measure.has_limit:

        def end(which: int) -> Tensor:
            def of(score: float, halves: Tensor) -> float:
                return interval(measure, score, halves, examples, CONFIDENCE, cells.parts)[which]

            return _by_cell(of, cells.scores, cells.halves, fewest=2)

        summary["low"], summary["high"] = end(0), end(1)
    return summary


def _by_cell(summarise: Callable[[float, Tensor], float], scores: Tensor, samples: Tensor, fewest: int = 1) -> Tensor:
    """Apply a summary to the samples of every cell that has a score and enough of them; NaN samples are left out."""
    out = torch.full_like(scores, torch.nan)
    for at in (~scores.isnan()).nonzero().tolist():
        valid = samples[tuple(at)]
        valid = valid[~valid.isnan()]
        if len(valid) >= fewest:
            out[tuple(at)] = summarise(float(scores[tuple(at)]), valid)
    return out
