"""Two networks, layer by layer: every pair of layers, with chance levels and confidence intervals."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

from torch import nn

from ..._evaluation import check_module
from ..._io import versions
from ..._memory import parse_memory
from ..._result import of_networks
from ..._words import check_whole
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from ...features.residual import additions
from ..base import Measure
from ..registry import DEFAULT
from ..registry import measure as find
from .all_pairs.plan import ordered_alike
from .all_pairs.run import CONFIDENCE
from .estimation.run import has_estimator, run_estimates
from .estimation.statistics import channels_first_shape
from .exact import Found, Request, check_work, run_exactly
from .layer_groups import acting, default_measures, joined
from .resampling import NO_RESAMPLING, RESAMPLING, Resampling, untrained_copies
from .result import Comparison

READING = Reading()
_FEWEST = 4  # examples: the unbiased estimators divide by N (N - 3)
_SHARE = 4  # of the memory, for fresh weights
_FEW, _SMALL = 256, 1 << 24  # examples, and numbers of all layers, up to which exact scores cost little


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
    exact: bool | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare every layer of one network with every layer of another on the same examples.

    The loader is read once and each batch goes to both networks. Of the features, statistics are kept: Gram matrices of
    blocks of examples, and channels at sampled positions, from which all scores follow with an ``error``, within which
    the exact score lies 19 times of 20, an interval over examples, and a chance level. With ``exact=True`` all features
    are kept, in memory or in temporary files, and all pairs of examples and positions count; so it is by default where
    data and networks are small, or a measure has no estimator.

    Cost: a few forward passes, in memory that does not depend on the number of examples but for the statistics: about
    128 numbers per example and layer, and 16 positions of its channels. Untrained networks run on a third of them,
    and their scores are kept for later comparisons of the same architectures on the same data. Exactly, with ``F``
    numbers per example in all layers, a CKA takes ``N^2 F``, and Procrustes a pass over all pairs for each shuffle.

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
        exact: Whether all pairs of examples and all positions count; ``None`` where that is cheap or the only way.
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
    """  # noqa: DOC502 - raised by what it calls
    for name, model in (("a", a), ("b", b)):
        check_module(model, name)
    if not isinstance(resampling, Resampling | None):
        raise TypeError(f"resampling must be a Resampling, such as Resampling(null=5), or None. Got {resampling!r}.")
    if exact not in (True, False, None):
        raise TypeError(f"exact must be True, False or None. Got {exact!r}.")
    given = None if measures is None else _measures(measures)
    _check_fewest(reading.max_examples)
    drawn = resampling or NO_RESAMPLING
    budget = parse_memory(reading.memory)
    check_work(reading.work)
    first, stream = batching.peek(loader)
    expected = _expected(loader, first, reading.max_examples)
    points = [
        _points(model, wanted, reading, first)
        for model, wanted in ((a, layers), (b, layers if layers_b is None else layers_b))
    ]
    notes = _unread((a, b), points, (layers, layers_b), first)
    kinds: list[tuple[str, ...]] = [("",) * len(some) for some in points]
    if given is None or len(given) > 1:
        kinds, unknown = _kinds((a, b), points, first)
        notes += unknown
    shapes = [[(p.name, channels_first_shape(p)) for p in some] for some in points]
    moving = joined(kinds[0], kinds[1], ordered_alike(*shapes))
    chosen = _measures(default_measures(moving, DEFAULT)) if given is None else given
    _check_gates(chosen, a, b)
    total = batching.length(loader)
    asked = Request((a, b), points, chosen, first, stream, drawn, reading, budget, expected, total, progress)
    if _exactly(exact, chosen, points, expected):
        fresh, more = untrained_copies(a, b, drawn, budget // _SHARE)
        found = run_exactly(asked, fresh)
    else:
        found, more = run_estimates(asked)
    return _result(chosen, found, kinds, drawn.seed, [*notes, *more])


def _points(model: nn.Module, wanted: Any, reading: Reading, first: Any) -> list[Point]:
    with Tapped(model, wanted, outputs=reading.outputs) as tap:
        return _with_axes(tap.prepare(first), reading.channel_dim)


def _exactly(
    exact: bool | None, chosen: Sequence[Measure[Any]], points: Sequence[Sequence[Point]], expected: int | None
) -> bool:
    """Whether all pairs of examples are scored: where it was asked for, costs little, or there is no other way."""
    unknown = [m.name for m in chosen if not has_estimator(m)]
    if exact is False and unknown:
        raise ValueError(
            f"exact must be True or None for measures without an estimator. Got False with {', '.join(unknown)}."
        )
    if exact is not None or unknown:
        return exact is not False
    numbers = sum(p.size for some in points for p in some)
    return expected is not None and expected <= _FEW and expected * numbers <= _SMALL


def _unread(
    models: Sequence[nn.Module], points: Sequence[Sequence[Point]], wanted: Sequence[Any], first: Any
) -> list[str]:
    """Say that a residual stream is not among the layers that were chosen."""
    if any(one is not None for one in wanted):
        return []
    found = [
        name
        for name, model, some in zip("AB", models, points)
        if not any(p.stream for p in some) and additions(model, first) > 1
    ]
    if not found:
        return []
    of = " and of ".join(found)
    return [
        f"The residual stream of {of} is not among the layers: no module returns it. To compare it, make each block a "
        "module of one class, in a ModuleList or Sequential."
    ]


def _kinds(
    models: tuple[nn.Module, nn.Module], points: Sequence[Sequence[Point]], first: Any
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The groups that act on every layer of A and of B, by name, and where that is not known."""
    kinds: list[tuple[str, ...]] = []
    notes: list[str] = []
    for name, model, some in zip("AB", models, points):
        if kinds and models[1] is models[0] and [p.name for p in some] == [p.name for p in points[0]]:
            kinds.append(kinds[0])
            continue
        found, why = acting(model, list(some), first)
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


def _result(
    measures: Sequence[Measure[Any]], found: Found, kinds: Sequence[tuple[str, ...]], seed: int, notes: list[str]
) -> Comparison:
    a, b = found.layers
    keys = next(iter(found.columns.values()))
    columns: dict[str, Any] = {key: {m.name: found.columns[m.name][key] for m in measures} for key in keys}
    return Comparison(
        layers_a=tuple(layer.name for layer in a),
        layers_b=tuple(layer.name for layer in b),
        measures=tuple(m.name for m in measures),
        groups={m.name: m.group for m in measures},
        channels_a=tuple(layer.shape[0] for layer in a),
        channels_b=tuple(layer.shape[0] for layer in b),
        dead_a=tuple(int(layer.dead.sum()) for layer in a),
        dead_b=tuple(int(layer.dead.sum()) for layer in b),
        shapes_a=tuple(layer.shape for layer in a),
        shapes_b=tuple(layer.shape for layer in b),
        examples=found.examples,
        seed=seed,
        settings={**found.settings, "confidence": CONFIDENCE},
        notes=tuple(dict.fromkeys([*notes, *found.notes])),
        versions=versions(),
        untrained_pairs=found.untrained,
        acting_a=kinds[0],
        acting_b=kinds[1],
        **columns,
    )
