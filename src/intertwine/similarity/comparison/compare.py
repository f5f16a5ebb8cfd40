"""Two networks, layer by layer: every pair of layers, with chance levels and confidence intervals."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import check_module
from ..._io import versions
from ..._memory import parse_memory
from ..._progress import track
from ..._result import of_networks
from ..._words import check_whole
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from ...features.residual import additions
from ..base import Measure
from ..measures.procrustes import Procrustes
from ..registry import DEFAULT
from ..registry import measure as find
from .all_pairs.plan import WORK, Plan, alike, counterparts, in_order, plan, whole
from .all_pairs.run import CONFIDENCE, run, run_crosses, summarise
from .draws import Cells, Draws
from .layer_groups import acting, default_measures, joined
from .layers import Layer
from .memory import check_memory
from .resampling import NO_RESAMPLING, RESAMPLING, Resampling, untrained_copies
from .result import Comparison
from .spool import Spool

READING = Reading()
_FEWEST = 4  # examples: the unbiased estimators divide by N (N - 3)
_SHARE = 4  # of the memory, for the features of a network, and for fresh weights


@dataclass(frozen=True)
class _Side:
    """A network while its features are read."""

    tap: Tapped
    spool: Spool
    layers: list[Layer]


@of_networks("a", "b")
def compare(
    a: nn.Module,
    b: nn.Module,
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    measures: str | Measure[Any] | Sequence[str | Measure[Any]] | None = None,
    *,
    layers_b: str | Sequence[str] | None = None,
    resampling: Resampling | None = RESAMPLING,
    reading: Reading = READING,
    progress: bool | None = None,
) -> Comparison:
    """Compare every layer of one network with every layer of another on the same examples.

    The loader is read once and each batch goes to both networks. All scores are exact; for minibatch
    estimates see :func:`intertwine.similarity.minibatch_cka`. Features that do not fit in memory go to temporary files.

    Cost, beside the forward passes, with ``F`` numbers per example in all layers together: a CKA takes ``N^2 F`` for
    its Gram matrices, computed once, however much is resampled. Procrustes takes one pass over all pairs for the scores
    and all intervals, and another for each shuffle; ``resampling=None`` leaves both out. Untrained networks run as the
    two themselves do, and their scores take no shuffles and halves.

    Measures that compare channels position by position (Procrustes) need feature maps of one size: the finer side is
    averaged down to the coarser one, and to a vector where the other side has no space. CKA compares any two sizes as
    they are, since its Gram matrices sum over space within each network.

    Args:
        a: Network A: any module, on any device.
        b: Network B; widths, depths and resolutions may differ.
        loader: Batches: tensors, tuples ``(inputs, labels, ...)`` or dicts of keyword arguments.
        layers: Layer names or patterns, for both networks; ``name#k`` for the ``k``-th call of a module that runs more
            than once. ``None`` takes what the nonlinearities return, whether they are modules or called as functions,
            and the residual stream behind each of several equal blocks where no nonlinearity made it, as in
            transformers; in a model without any, the leaf modules that do more than hand on their input.
        measures: Measures or their names (see :func:`intertwine.similarity.measure_names`). ``None`` takes orthogonal
            Procrustes, linear CKA, and the measures whose group is the networks' own at these layers: G_ReLU behind a
            ReLU, permutations behind a GELU; all of centred channels, so that translations, which the next layer's bias
            absorbs, change nothing.
        layers_b: Layers of B where they differ.
        resampling: Shuffles for chance levels, halves for intervals, networks with fresh weights, and the seed of all;
            ``None`` for the scores alone.
        reading: Which tensors and axes are features, how many examples are read, and in how much memory.
        progress: Whether to show progress.

    Raises:
        TypeError: If ``resampling`` is something else.
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
    for name, model in (("a", a), ("b", b)):
        check_module(model, name)
    if not isinstance(resampling, Resampling | None):
        raise TypeError(f"resampling must be a Resampling, such as Resampling(null=5), or None. Got {resampling!r}.")
    given = None if measures is None else _measures(measures)
    _check_fewest(reading.max_examples)
    drawn = resampling or NO_RESAMPLING
    budget, work = parse_memory(reading.memory), _work(reading.work)
    first, stream = batching.peek(loader)
    expected = _expected(loader, first, reading.max_examples)
    fresh, notes = untrained_copies(a, b, drawn, budget // _SHARE)
    share = budget // _SHARE // (1 + max(map(len, fresh)))
    with ExitStack() as stack:

        def opened(side: str, model: nn.Module, wanted: Any) -> _Side:
            spool = stack.enter_context(Spool(share, expected, reading.max_examples))
            tap = stack.enter_context(Tapped(model, wanted, outputs=reading.outputs, keep=spool.append))
            spool.open(_with_axes(tap.prepare(first), reading.channel_dim))
            return _Side(tap, spool, [Layer(name, side, spool, _work_device(a)) for name in spool.points])

        sides = [opened("A", a, layers), opened("B", b, layers if layers_b is None else layers_b)]
        notes += _unread((a, b), sides, (layers, layers_b), first)
        kinds: list[tuple[str, ...]] = [("",) * len(side.layers) for side in sides]
        if given is None or len(given) > 1:
            kinds, unknown = _kinds((a, b), sides, first)
            notes += unknown
        layers_of = (sides[0].layers, sides[1].layers)
        moving = joined(kinds[0], kinds[1], in_order(*layers_of))
        chosen = _measures(default_measures(moving, DEFAULT)) if given is None else given
        _check_gates(chosen, a, b)
        crosses = [m for m in chosen if isinstance(m, Procrustes)]
        pairs = len(fresh[0]) * len(fresh[1])
        if expected:
            likely = Draws.make(expected, drawn.null, drawn.bootstrap, drawn.seed)
            check_memory(chosen, *layers_of, plan(crosses, *layers_of, likely, work, None, pairs), budget)
        anew = [
            [opened(f"untrained {name}", model, list(side.spool.points)) for model in copies]
            for name, copies, side in zip("AB", fresh, sides)
        ]
        for batch in track(stream, "Running both networks", batching.length(loader), progress):
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
        settings = {"null": drawn.null, "bootstrap": len(draws.halves), "confidence": CONFIDENCE}
        return _result(chosen, cells, base, kinds, [side.layers for side in sides], draws, drawn.seed, settings, notes)


def _unread(models: Sequence[nn.Module], sides: Sequence[_Side], wanted: Sequence[Any], first: Any) -> list[str]:
    """Say that a residual stream is not among the layers that were chosen."""
    if any(one is not None for one in wanted):
        return []
    found = [name for name, model, side in zip("AB", models, sides) if _has_unread(model, side, first)]
    if not found:
        return []
    of = " and of ".join(found)
    return [
        f"The residual stream of {of} is not among the layers: no module returns it. To compare it, make each block a "
        "module of one class, in a ModuleList or Sequential."
    ]


def _has_unread(model: nn.Module, side: _Side, first: Any) -> bool:
    return not any(p.stream for p in side.spool.points.values()) and additions(model, first) > 1


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


def _kinds(
    models: tuple[nn.Module, nn.Module], sides: Sequence[_Side], first: Any
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The groups that act on every layer of A and of B, by name, and where that is not known."""
    kinds: list[tuple[str, ...]] = []
    notes: list[str] = []
    for name, model, side in zip("AB", models, sides):
        if kinds and models[1] is models[0] and list(side.spool.points) == list(sides[0].spool.points):
            kinds.append(kinds[0])
            continue
        found, why = acting(model, list(side.spool.points.values()), first)
        kinds.append(found)
        notes += [f"What may move the features of {name} is not known: {why}"] if why else []
    return kinds, notes


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


def _check_fewest(max_examples: int | None) -> None:
    check_whole("max_examples", max_examples or 0)
    if max_examples is not None and max_examples < _FEWEST:
        raise ValueError(f"max_examples must be at least {_FEWEST}. Got {max_examples}.")


def _work(work: float | None) -> float:
    if work is None:
        return WORK
    if isinstance(work, bool) or not isinstance(work, int | float) or not work > 0:
        raise ValueError(f"work must be a positive number of operations, or math.inf. Got {work!r}.")
    return work


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


def _result(
    measures: Sequence[Measure[Any]],
    cells: Mapping[str, Cells],
    base: Mapping[str, Tensor],
    kinds: Sequence[tuple[str, ...]],
    layers: Sequence[Sequence[Layer]],
    draws: Draws,
    seed: int,
    settings: dict[str, Any],
    notes: list[str],
) -> Comparison:
    a, b = layers
    summaries = {m.name: summarise(m, cells[m.name], draws.examples) for m in measures}
    every_note = notes + [note for m in measures for note in cells[m.name].notes]
    columns: dict[str, Any] = {
        key: {m: summary[key] for m, summary in summaries.items()} for key in next(iter(summaries.values()))
    }
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
        untrained_pairs=base,
        acting_a=kinds[0],
        acting_b=kinds[1],
        **columns,
    )
