"""Two networks, layer by layer: every pair of layers, with chance levels and confidence intervals."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..._io import versions
from ..._progress import track
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from ..base import Measure
from ..registry import DEFAULT
from ..registry import measure as find
from .crosses import compare_crosses
from .draws import Cells, Draws
from .grams import compare_grams
from .inference import calibrate, interval, p_value
from .layers import Layer
from .memory import check_memory
from .pairs import compare_pairs
from .result import Comparison
from .spool import Spool, parse_memory

READING = Reading()

T = TypeVar("T")
_FEWEST = 4  # examples: the unbiased estimators divide by N (N - 3)


def compare(
    a: nn.Module,
    b: nn.Module,
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    measures: str | Measure[Any] | Sequence[str | Measure[Any]] = DEFAULT,
    *,
    layers_b: str | Sequence[str] | None = None,
    null: int = 20,
    bootstrap: int = 20,
    confidence: float = 0.95,
    seed: int = 0,
    reading: Reading = READING,
    progress: bool | None = None,
) -> Comparison:
    """Compare every layer of one network with every layer of another on the same examples.

    The loader is read once and each batch goes to both networks. All scores are exact; for minibatch
    estimates see :func:`intertwine.similarity.minibatch_cka`. Features that do not fit in memory go to temporary files.

    Cost, beside the forward passes, with ``F`` numbers per example in all layers together: a CKA takes ``N^2 F`` for
    its Gram matrices, computed once, whatever ``null`` and ``bootstrap`` are. Procrustes takes one pass over all pairs
    for the scores and all intervals, and another for each of ``null`` shuffles; ``null=0`` and ``bootstrap=0`` leave
    them out.

    Measures that compare channels position by position (Procrustes) need feature maps of one size: the finer side is
    averaged down to the coarser one, and to a vector where the other side has no space. CKA compares any two sizes as
    they are, since its Gram matrices sum over space within each network.

    Args:
        a: Network A: any module, on any device.
        b: Network B; widths, depths and resolutions may differ.
        loader: Batches: tensors, tuples ``(inputs, labels, ...)`` or dicts of keyword arguments.
        layers: Layer names or patterns, for both networks; ``name#k`` for the ``k``-th call of a module that runs more
            than once. ``None`` takes the outputs of activation modules, or of leaf modules where a model calls its
            activations as functions.
        measures: Measures or their names (see :func:`intertwine.similarity.measure_names`).
        layers_b: Layers of B where they differ.
        null: Shuffles of the examples for chance levels, p-values and calibrated scores; 0 for none.
        bootstrap: Random halves of the examples for the intervals, drawn without replacement; 0 for none.
        confidence: Coverage of the intervals.
        seed: Seed of shuffles and halves: the same seed gives the same numbers.
        reading: Which tensors and axes are features, how many examples are read, and in how much memory.
        progress: Whether to show progress.

    Raises:
        ValueError: If an option is out of range, the loader is empty, fewer than 4 examples come, a layer is unknown or
            never runs, features are not finite, or the memory does not suffice.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        >>> result = compare(net, net, torch.randn(60, 5).split(20))
        >>> result.layers_a, result.examples
        (('1', '3'), 60)
        >>> result.scores["g_relu_cka"].diagonal().round(decimals=6).tolist()
        [1.0, 1.0]
    """
    chosen = _measures(measures)
    _check_gates(chosen, a, b)
    _check_options(null, bootstrap, confidence, reading.max_examples)
    budget = parse_memory(reading.memory)
    first, stream = batching.peek(loader)
    expected = _expected(loader, first, reading.max_examples)
    with ExitStack() as stack:
        tapped, spools, sides = [], [], []
        device = _work_device(a)
        for side, model, wanted in (("A", a, layers), ("B", b, layers if layers_b is None else layers_b)):
            spool = stack.enter_context(Spool(budget // 4, expected, reading.max_examples))
            tap = stack.enter_context(Tapped(model, wanted, outputs=reading.outputs, keep=spool.append))
            spool.open(_with_axes(tap.prepare(first), reading.channel_dim))
            tapped.append(tap)
            spools.append(spool)
            sides.append([Layer(name, side, spool, device) for name in spool.points])
        if expected:
            check_memory(chosen, sides[0], sides[1], Draws.make(expected, null, bootstrap, seed), budget)
        for batch in track(stream, "Running both networks", batching.length(loader), progress):
            for tap in tapped:
                tap(batch)
            if spools[0].examples == reading.max_examples:
                break
        examples = spools[0].examples
        if examples < _FEWEST:
            raise ValueError(
                f"loader must yield at least {_FEWEST} examples. Got {examples}: every score would be chance."
            )
        draws = Draws.make(examples, null, bootstrap, seed)
        cells = _run(chosen, sides[0], sides[1], draws, budget, progress)
        settings = {"null": null, "bootstrap": len(draws.halves), "confidence": confidence}
        notes = [f"The features of network {n} went to temporary files." for n, s in zip("AB", spools) if s.on_disk]
        if bootstrap and not len(draws.halves):
            notes.append(f"No intervals: {examples} examples are too few to halve.")
        return _result(chosen, cells, sides[0], sides[1], draws, seed, settings, notes)


def _measures(measures: str | Measure[Any] | Sequence[str | Measure[Any]]) -> list[Measure[Any]]:
    several = [measures] if isinstance(measures, str | Measure) else measures
    found = {m.name: m for m in map(find, several)}
    if not found:
        raise ValueError("measures must name at least one measure. Got an empty list.")
    return list(found.values())


def _check_gates(chosen: Sequence[Measure[Any]], *models: nn.Module) -> None:
    """Check that features tell gates where gates are compared."""
    names = [m.name for m in chosen if m.reads_gates]
    own = (getattr(part, "makes_own_gates", True) for model in models for part in model.modules())  # iw.gates says so
    if names and not all(own):
        raise ValueError(
            f"{names[0]} must be given networks that make their own gates, which the signs of their features tell. Got "
            "a gated network. Give its gating network (model.gating.network), or compare whole networks with hard "
            "gates by iw.gates.npk_alignment."
        )


def _check_options(null: int, bootstrap: int, confidence: float, max_examples: int | None) -> None:
    for name, value in (("null", null), ("bootstrap", bootstrap)):
        if value < 0:
            raise ValueError(f"{name} must be 0 or more. Got {value}.")
    if bootstrap == 1:
        raise ValueError("bootstrap must be 0 or at least 2: one half has no spread. Got 1.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1. Got {confidence}.")
    if max_examples is not None and max_examples < _FEWEST:
        raise ValueError(f"max_examples must be at least {_FEWEST}. Got {max_examples}.")


def _expected(loader: Iterable[Any], first: Any, max_examples: int | None) -> int | None:
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


def _with_axes(points: Sequence[Point], channel_dim: int | Mapping[str, int] | None) -> list[Point]:
    """Points with the channel axes that the caller gave."""
    by_name = channel_dim if isinstance(channel_dim, Mapping) else {}
    default = channel_dim if isinstance(channel_dim, int) else None
    placed = []
    for point in points:
        axis = by_name.get(point.name, point.channel_dim if default is None else default)
        rank = len(point.shape) + 1
        if not -rank < axis < rank or axis == 0:
            raise ValueError(
                f"channel_dim must be an axis of {point.name!r} other than the batch. Got {axis} of {rank} axes."
            )
        placed.append(replace(point, channel_dim=axis))
    return placed


def _work_device(model: nn.Module) -> torch.device:
    """Work where network A is; on the CPU for devices without float64."""
    device = batching.device_of(model)
    return device if device is not None and device.type == "cuda" else torch.device("cpu")


def _run(
    measures: Sequence[Measure[Any]],
    a: Sequence[Layer],
    b: Sequence[Layer],
    draws: Draws,
    memory: int,
    progress: bool | None,
) -> dict[str, Cells]:
    """Every measure's cells, each kind by the engine that is fastest for it."""
    found: dict[str, Cells] = {}
    crosses: list[Any] = [m for m in measures if m.engine == "crosses"]
    pairs = len(a) * len(b)
    if crosses:
        work = compare_crosses(crosses, a, b, draws, memory)
        found |= _finish(work, "Comparing by Procrustes", pairs, progress)
    steps: dict[str, Any] = {"grams": (compare_grams, len(a) + len(b)), "pairs": (compare_pairs, pairs)}
    for m in measures:
        if m.engine in steps:
            engine, total = steps[m.engine]
            found[m.name] = _finish(engine(m, a, b, draws, memory), f"Comparing by {m.name}", total, progress)
    return found


def _finish(work: Generator[None, None, T], description: str, total: int, progress: bool | None) -> T:
    """Run an engine to its end under a progress display, and return what it returns."""
    returned: list[T] = []

    def steps() -> Iterator[None]:
        returned.append((yield from work))

    for _ in track(steps(), description, total, progress):
        pass
    return returned[0]


def _result(
    measures: Sequence[Measure[Any]],
    cells: Mapping[str, Cells],
    a: Sequence[Layer],
    b: Sequence[Layer],
    draws: Draws,
    seed: int,
    settings: dict[str, Any],
    notes: list[str],
) -> Comparison:
    summaries = {m.name: _summary(m, cells[m.name], draws, settings["confidence"]) for m in measures}
    every_note = notes + [note for m in measures for note in cells[m.name].notes]
    columns = {key: {m: summary[key] for m, summary in summaries.items()} for key in next(iter(summaries.values()))}
    return Comparison(
        layers_a=tuple(layer.name for layer in a),
        layers_b=tuple(layer.name for layer in b),
        measures=tuple(m.name for m in measures),
        groups={m.name: m.group for m in measures},
        channels_a=tuple(layer.channels for layer in a),
        channels_b=tuple(layer.channels for layer in b),
        dead_a=tuple(int(layer.dead.sum()) for layer in a),
        dead_b=tuple(int(layer.dead.sum()) for layer in b),
        shapes_a=tuple(layer.shape for layer in a),
        shapes_b=tuple(layer.shape for layer in b),
        examples=draws.examples,
        seed=seed,
        settings=settings,
        notes=tuple(dict.fromkeys(every_note)),
        versions=versions(),
        **columns,
    )


def _summary(measure: Measure[Any], cells: Cells, draws: Draws, confidence: float) -> dict[str, Any]:
    """Chance level, p-value, calibrated score and interval of every cell; ``None`` for what was not asked."""
    summary: dict[str, Any] = dict.fromkeys(("low", "high", "chance", "null_p", "calibrated", "floor"))
    summary["scores"] = cells.scores
    if not cells.floor.isnan().all():
        summary["floor"] = cells.floor
    if len(draws.permutations):
        summary["chance"] = cells.null.mean(2)
        summary["null_p"] = _by_cell(p_value, cells.scores, cells.null)
        summary["calibrated"] = _by_cell(calibrate, cells.scores, cells.null)
    if len(draws.halves):

        def end(which: int) -> Tensor:
            def of(score: float, halves: Tensor) -> float:
                return interval(measure, score, halves, draws.examples, confidence, len(draws.folds))[which]

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
