"""Comparison of two networks, layer by layer: every pair of layers, with chance levels and confidence intervals."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..._examples import both_given
from ..._io import digest, versions
from ..._memory import parse_memory
from ..._nested import tensors_in
from ..._result import of_networks
from ..._words import check_whole, counted
from ...features import Point, Reading, Tapped
from ...features import batches as batching
from ...features.activations import additions
from ..base import Measure
from ..inference import CONFIDENCE, NO_RESAMPLING, RESAMPLING, Draws, Resampling
from ..measures.cka import CKA
from ..registry import DEFAULT, SPACES, acting, default_measures, joined
from ..registry import measure as find
from .all_pairs import INTERRUPTED, check_memory, has_estimator, score_all
from .estimates import How
from .keepers import Collector, Features, Wanted
from .layers import FEWEST, Network, Running, channels_first_shape, expected, gather, limited, mixed
from .result import Comparison
from .untrained import CUT_SHORT, Fresh, architecture, known_by, untrained_pairs

READING = Reading()
SHARE = 4  # parts of the memory: one each for a network's features, mixed inputs, and what untrained networks read
_FEW, _SMALL = 256, 1 << 24  # examples, and numbers in all layers, up to which exact scores cost little
_BRIEF = 256, 32, 2048  # untrained networks see at least 256 examples, or as few as 32 if these give 2048 rows
Points = Sequence[Sequence[Point]]  # of the layers of each network
UNTRAINED: dict[str, tuple[dict[str, Tensor], int]] = {}
"""Scores of untrained networks known in this process, and how many networks: by architectures and data alone."""
ACTING: dict[str, tuple[tuple[str, ...], str]] = {}
"""Groups that move the layers of networks, known in this process: by architecture and example."""


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

    The loader is read once, its examples are mixed, and each batch goes to both networks. Only statistics of the
    features are kept: Gram matrices of blocks of examples, and channels at sampled positions, about 128 numbers per
    example and layer, and 16 positions of its channels. All scores follow from these, with an ``error`` within which
    the exact score lies 19 times out of 20, an interval over examples, and a chance level. Untrained networks run on a
    quarter of the examples; their scores are reused for the same architectures on the same data. With ``exact=True``
    all features are kept, in memory or in temporary files, and all pairs of examples and positions count; this is the
    default where data and networks are small, or a measure has no estimator. With ``F`` numbers per example in all
    layers, a CKA then takes ``N^2 F``, and Procrustes a pass over all pairs for each shuffle.

    Measures that compare channels position by position (Procrustes) need feature maps of one size: the finer side is
    averaged down to the coarser one, or to a vector if the other side has no space. CKA compares any two sizes as they
    are, since its Gram matrices sum over space within each network.

    Args:
        a: Network A: any module, on any device.
        b: Network B.
        loader: Batches: tensors, tuples ``(inputs, labels, ...)`` or dicts of keyword arguments.
        layers: Layer names or patterns, for both networks; ``name#k`` is the ``k``-th call of a module that runs more
            than once. ``None`` takes the outputs of nonlinearities, whether modules or called as functions, and the
            residual stream behind each of several equal blocks where no nonlinearity made it, as in transformers; in a
            model without nonlinearities, the leaf modules that do more than pass on their input.
        measures: Measures or their names (see :func:`intertwine.similarity.measure_names`). ``None`` takes orthogonal
            Procrustes, linear CKA, and the measures whose group is the networks' own at these layers: G_ReLU behind a
            ReLU, permutations behind a GELU. All take centred channels, so that translations, which the next layer's
            bias absorbs, change nothing.
        layers_b: Layers of B, if they differ.
        resampling: Shuffles for chance levels, halves for intervals, networks with fresh weights, and the seed of all
            of these; ``None`` for scores alone.
        exact: Whether all pairs of examples and all positions count; ``None``: where that is cheap or the only way.
        reading: Which tensors and axes are features, how many examples are read, and in how much memory.
        progress: Whether to show progress.

    Raises:
        TypeError: If ``resampling`` is neither a ``Resampling`` nor ``None``.
        ValueError: If an option is out of range, the loader is empty, there are fewer than 4 examples, a layer is
            unknown or never runs, features are not finite, or memory does not suffice.

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
    """  # noqa: DOC502 - raised by the checks
    check_options(resampling, exact, reading)
    given = None if measures is None else chosen_measures(measures)
    memory, options = parse_memory(reading.memory), resampling or NO_RESAMPLING
    first, stream = batching.peek(loader)
    asked = layers, layers if layers_b is None else layers_b
    points = []
    for name, model, some in zip("ab", (a, b), asked):
        with both_given(name):
            points.append(points_of(model, some, reading, first))
    notes = _unread((a, b), points, (layers, layers_b), first)
    kinds, unknown = [("",) * len(some) for some in points], list[str]()
    if given is None or len(given) > 1:
        kinds, unknown = _kinds((a, b), points, first)
    chosen = given or _fitting(points, kinds, unknown)
    _check_gates(chosen, a, b)
    count = expected(loader, first, reading.max_examples)
    exactly = _exactly(exact, chosen, points, count)
    known = known_by((a, b), points, chosen, options, reading.outputs, first, count, exactly)
    untrained, networks = UNTRAINED.get(known, (None, 0))
    held = list[Any]()  # batches that untrained networks will read
    if exactly and count:
        check_memory(chosen, points[0], points[1], count, memory)
    own = batching.device_of(a)
    device = own if own is not None and own.type == "cuda" else torch.device("cpu")  # which has float64
    wanted = Wanted.of(chosen, points, count, options.seed)

    def read(models: Running, batches: Iterable[Any], examples: int | None, share: int) -> dict[str, Network]:
        """Run networks over the data; the features of one take up to one ``share``-th of the memory."""
        keepers = {
            name: Features(name, some, memory // share, count, device) if exactly else Collector(name, some, wanted)
            for name, (_, some) in models.items()
        }
        asked: dict[str, Any] = {"examples": examples, "progress": progress, "joined": not exactly}
        return gather(models, keepers, batches, reading, **asked)

    fresh, groups = untrained_pairs((a, b), points, options) if untrained is None else (Fresh(), [])
    most = 0 if not fresh else sys.maxsize if exactly else brief(points, count or 0)
    if not exactly:
        stream = mixed(limited(stream, reading.max_examples), memory // SHARE, options.seed, notes, count, progress)
    models: Running = {"A": (a, points[0]), "B": (b, points[1])}
    if a is b and points[0] == points[1]:
        del models["B"]
    found = read(models, _holding(stream, held, most, memory // SHARE), count, SHARE)
    one, other = found["A"], found.get("B", found["A"])
    intervals = options.bootstrap > 0 and one.examples >= 2 * FEWEST
    draws = Draws.make(one.examples, options.null, options.bootstrap, options.seed) if exactly else None
    how = How(draws, options.null > 0, intervals, options.seed, memory, progress)
    scored = score_all(chosen, one, other, how)
    for layer in (*one.layers, *other.layers):
        layer.forget()
    notes += [*unknown, *one.notes, *other.notes, *(x.silent for x in (*one.layers, *other.layers) if x.silent)]
    notes += [note for m in chosen for note in scored[m.name].notes]
    if untrained is None and any(note.startswith("Interrupted") for note in notes):
        untrained = {}  # Control-C asks for no more work
    elif untrained is None:
        untrained, said = _untrained_scores(chosen, read, how, fresh, groups, held, reading.max_examples)
        notes, networks = notes + said, len(fresh)
        if known and not said:
            UNTRAINED[known] = untrained, networks
    if options.bootstrap and not intervals:
        notes.append(f"No intervals: {one.examples} examples are too few to halve.")
    pairs = len(next(iter(untrained.values()), ()))
    columns = [scored[m.name].columns(m, options.null > 0, intervals, exactly) for m in chosen]
    fields: dict[str, Any] = {key: {m.name: one[key] for m, one in zip(chosen, columns)} for key in columns[0]}
    return Comparison(
        measures=tuple(m.name for m in chosen),
        groups={m.name: m.group for m in chosen},
        examples=one.examples,
        seed=options.seed,
        settings=settings_of(options, exactly, intervals, chosen, max(one.blocks), pairs),
        notes=tuple(dict.fromkeys(notes)),
        versions=versions(),
        untrained_pairs=untrained,
        untrained_networks=networks,
        **fields,
        **_described("a", one, kinds[0]),
        **_described("b", other, kinds[1]),
    )


def check_options(resampling: Any, exact: Any, reading: Reading) -> None:
    """Refuse options that are out of range."""
    if not isinstance(resampling, Resampling | None):
        raise TypeError(f"resampling must be a Resampling, such as Resampling(null=5), or None. Got {resampling!r}.")
    if exact not in (True, False, None):
        raise TypeError(f"exact must be True, False or None. Got {exact!r}.")
    check_whole("max_examples", reading.max_examples or 0)
    if reading.max_examples is not None and reading.max_examples < FEWEST:
        raise ValueError(f"max_examples must be at least {FEWEST}. Got {reading.max_examples}.")


def _fitting(points: Points, kinds: Sequence[tuple[str, ...]], unknown: Sequence[str]) -> list[Measure[Any]]:
    """Measures whose groups are those of the layers; default measures if a network could not be read."""
    in_order = any([*map(of, points[0])] == [*map(of, points[1])] for of in (attrgetter("name"), channels_first_shape))
    otherwise = DEFAULT if unknown else [m for m in DEFAULT if m in SPACES]  # a network not read may have any group
    return chosen_measures(default_measures(joined(kinds[0], kinds[1], in_order), otherwise))


def _described(side: str, network: Network, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Fields of a comparison that describe the layers of one network."""
    keys = (f"{key}_{side}" for key in ("layers", "channels", "dead", "shapes"))
    known = zip(*((x.name, x.shape[0], int(x.dead.sum()), x.shape) for x in network.layers))
    return {**dict(zip(keys, known)), f"acting_{side}": kinds}


def settings_of(
    drawn: Resampling, exactly: bool, intervals: bool, measures: Sequence[Measure[Any]], block: int, pairs: int
) -> dict[str, Any]:
    """Settings of a comparison: how it judged its scores."""
    kinds = sorted({m.estimator for m in measures if isinstance(m, CKA)})
    over = "all pairs of examples" if exactly else f"all pairs within blocks of {block} examples"
    found = {
        "estimator": f"{' and '.join(kinds)} HSIC over {over}" if kinds else None,
        "null": drawn.null if exactly or not drawn.null else "closed form",
        "bootstrap": drawn.bootstrap if exactly or not intervals else "jackknife",
        "confidence": CONFIDENCE,
        "untrained": counted(pairs, "pair"),
    }
    return found if exactly else {**found, "estimated": True}


def _holding(stream: Iterable[Any], held: list[Any], most: int, room: int) -> Iterator[Any]:
    """All batches; the first ones are also held for later, up to so many examples and so many bytes."""
    for batch in stream:
        some = batching.head(batch, most) if batching.size(batch) > most > 0 else batch
        room -= sum(x.nbytes for x in tensors_in(some))
        if most > 0 and (room > 0 or not held):
            held.append(some)
        most -= batching.size(batch)
        yield batch


def brief(points: Points, count: int) -> int:
    """Number of examples for untrained networks: a quarter, and enough that maps are not fitted to noise."""
    usual, least, rows = _BRIEF
    positions = min(prod(channels_first_shape(p)[1:]) for some in points for p in some)
    return max(count // 4, min(usual, max(least, rows // positions)))


def _untrained_scores(
    measures: Sequence[Measure[Any]], read: Callable[..., dict[str, Network]], how: How, fresh: Fresh,
    groups: Sequence[Sequence[str]], held: Sequence[Any], most: int | None,
) -> tuple[dict[str, Tensor], list[str]]:  # fmt: skip
    """Scores of untrained networks, which live one at a time, or why there are none; judged no more than needed."""
    found, count, exactly = dict[str, Network](), sum(map(batching.size, held)), how.draws is not None
    count = min(count, most or count)
    for name, (make, points, _) in fresh.items():
        model = make()
        if isinstance(model, str):
            return {}, [model]
        with suppress(KeyboardInterrupt):
            found |= read({name: (model, points)}, held, count, SHARE * -(-len(fresh) // 2))
        if name not in found or found[name].examples < count:
            return {}, [CUT_SHORT]
        del model  # before the next one is made
    draws = Draws.make(count, 0, 0, 0) if exactly and found else None
    how = How(draws, shuffled=False, intervals=False, memory=how.memory, progress=how.progress)
    every = []
    for k, (x, y) in enumerate(chain.from_iterable(combinations(group, 2) for group in groups)):
        how = replace(how, paired=k > 0 and fresh[x][1] == fresh[y][1] and not exactly)
        every.append(score_all(measures, found[x], found[y], how, "Comparing untrained networks"))
    cut = any(INTERRUPTED in some.notes for each in every for some in each.values())
    scores = {m.name: torch.stack([each[m.name].scores for each in every]) for m in measures if every}
    return scores, ["Interrupted: some pairs of untrained networks have no score."] if cut else []


def points_of(model: nn.Module, wanted: Any, reading: Reading, first: Any) -> list[Point]:
    """Points where the layers of a network are read, with the channel axes that the caller gave."""
    given, found = reading.channel_dim, []
    with Tapped(model, wanted, outputs=reading.outputs) as tap:
        for point in tap.prepare(first):
            asked, rank = given.get(point.name) if isinstance(given, Mapping) else given, len(point.shape) + 1
            axis = point.channel_dim if asked is None else asked
            if not -rank < axis < rank or axis == 0:
                raise ValueError(
                    f"channel_dim must be an axis of {point.name!r} other than the batch. Got {axis} of {rank} axes."
                )
            found.append(replace(point, channel_dim=axis))
    return found


def _exactly(exact: bool | None, chosen: Sequence[Measure[Any]], points: Points, expected: int | None) -> bool:
    """Whether to score all pairs of examples: where asked for, where it costs little, or where it is the only way."""
    unknown = [m.name for m in chosen if not has_estimator(m)]
    if exact is False and unknown:
        raise ValueError(
            f"exact must be True or None for measures without an estimator. Got False with {', '.join(unknown)}."
        )
    if exact is not None or unknown:
        return exact is not False
    numbers = sum(p.size for some in points for p in some)
    return expected is not None and expected <= _FEW and expected * numbers <= _SMALL


def _unread(models: Sequence[nn.Module], points: Points, wanted: Sequence[Any], first: Any) -> list[str]:
    """Notes on residual streams that are not among the chosen layers."""
    if any(one is not None for one in wanted):
        return []
    unread = lambda model, some: not any(p.stream for p in some) and additions(model, first) > 1
    of = " and of ".join(name for name, model, some in zip("AB", models, points) if unread(model, some))
    said = (
        f"The residual stream of {of} is not among the layers: no module returns it. To compare it, make each block a "
        "module of one class, in a ModuleList or Sequential."
    )
    return [said] if of else []


def _kinds(models: Sequence[nn.Module], points: Points, first: Any) -> tuple[list[tuple[str, ...]], list[str]]:
    """Groups that act on every layer of A and of B, by name, and notes on those that are not known."""
    found = []
    for model, some in zip(models, points):
        known = digest([repr((architecture(model), some)), *tensors_in(batching.example(first, 2))])
        if known not in ACTING:
            ACTING[known] = acting(model, list(some), first)
        found.append(ACTING[known])
    notes = [f"Groups that act on {name}'s features are unknown: {why}" for name, (_, why) in zip("AB", found) if why]
    return [kinds for kinds, _ in found], notes


def chosen_measures(measures: str | Measure[Any] | Sequence[str | Measure[Any]]) -> list[Measure[Any]]:
    """Measures from names or measures, each once."""
    several = [measures] if isinstance(measures, str | Measure) else measures
    found = {m.name: m for m in map(find, several)}
    if not found:
        raise ValueError("measures must name at least one measure. Got an empty list.")
    return list(found.values())


def _check_gates(chosen: Sequence[Measure[Any]], *models: nn.Module) -> None:
    """Check that the signs of features are the networks' gates, where gates are compared."""
    names = [m.name for m in chosen if m.reads_gates]
    own = (getattr(part, "makes_own_gates", True) for model in models for part in model.modules())  # set by iw.gates
    if names and not all(own):
        raise ValueError(
            f"{names[0]} must be given networks that make their own gates: the signs of their features. Got a "
            "gated network. Give its gating network (model.gating.network), or compare whole networks with hard "
            "gates by iw.gates.npk_alignment."
        )
