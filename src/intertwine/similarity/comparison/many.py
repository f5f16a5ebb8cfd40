"""Many networks on the same data: one pass over each, and all pairs from what the passes kept."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, combinations, combinations_with_replacement
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._attributes import Kept
from ..._evaluation import check_module
from ..._examples import both_given
from ..._io import check_writable, digest, versions, write_tensors
from ..._memory import parse_memory
from ..._nested import tensors_in
from ..._progress import track
from ...features import Point, Reading
from ...features import batches as batching
from ..base import Measure
from ..inference import NO_RESAMPLING, RESAMPLING, Resampling, given
from .all_pairs import INTERRUPTED, has_estimator, score_all
from .compare import READING, SHARE, brief, check_options, chosen_measures, points_of, settings_of
from .estimates import How
from .keepers import Collector, Wanted, read_layer, to_tensors
from .layers import FEWEST, Network, Running, gather, limited, mixed
from .result import ComparisonSet
from .untrained import CUT_SHORT, Fresh, Make, Redrawn, architecture, grouped, makers

MANY = ("linear_cka", "orthogonal_procrustes_centered")
"""Measures that ``compare_many`` takes by default."""
_TILE = 16  # networks, on either side, whose statistics of one layer are in memory
_STEP = 4  # networks whose pairs with all later ones are scored together
_KEPT = 2  # version of the stored statistics
_PARTS = ("scores", "error", "low", "high", "chance", "null_p")
Built = nn.Module | Callable[[], nn.Module]
Work = Callable[[Sequence["Tile"]], Iterable[Mapping[str, Any]]]


def compare_many(
    models: Mapping[str, Built] | Sequence[nn.Module],
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    measures: str | Measure[Any] | Sequence[str | Measure[Any]] = MANY,
    *,
    folder: str | Path | None = None,
    work: Work | None = None,
    resampling: Resampling | None = RESAMPLING,
    reading: Reading = READING,
    progress: bool | None = None,
) -> ComparisonSet:
    """Compare many networks at each layer on the same examples.

    Every network runs once, and what its pass keeps goes to a file: Gram matrices of blocks of examples, and channels
    at sampled positions. All pairs are scored from the files, layer by layer, a few networks at a time, so memory
    depends neither on the number of networks nor on that of examples. With a ``folder`` the files stay: an interrupted
    run continues where it stopped, and of networks added later only these run.

    Errors, intervals and chance are those of :func:`intertwine.compare`. So are untrained networks: so many of each
    architecture, on a quarter of the examples.

    Args:
        models: Networks by name, or functions that build one: called when its turn comes, and the network then dropped.
        loader: Batches; read once for each network, so it must not be an iterator.
        layers: Names or patterns of layers that all networks have; ``None`` as in :func:`intertwine.compare`, of these.
        measures: Measures with an estimator: CKA (unbiased; linear, max, gates) and Procrustes.
        folder: Folder in which the statistics are kept; by default a temporary one.
        work: Function that scores the pairs: it turns tiles of them into what :meth:`Tile.scored` gives, in order. By
            default this process scores one tile after the other. ``intertwine.lab.tiles.by_jobs`` has them scored by
            workers of this machine or a Ray cluster, any of which may die.
        resampling: As in :func:`intertwine.compare`; ``None`` for scores alone. Untrained networks that are given stand
            for those of their architecture.
        reading: Which tensors and axes are features, and how many examples are read.
        progress: Whether to show progress.

    Raises:
        TypeError: If the loader is an iterator, or something is not a network.
        ValueError: If there are fewer than two networks, no layer that all of them have, a measure without an
            estimator, or an untrained network of another architecture.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> build = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        >>> found = compare_many({"a": build, "b": build, "c": build}, torch.randn(300, 5).split(100), progress=False)
        >>> found.layers, tuple(found.matrix("linear_cka", "1").shape)
        (('1', '3'), (3, 3))
    """  # noqa: DOC502 - raised by a check
    check_options(resampling, None, reading)
    named = dict(models) if isinstance(models, Mapping) else {f"network {k + 1}": m for k, m in enumerate(models)}
    if len(named) < 2:
        raise ValueError(f"models must be at least two. Got {len(named)}.")
    chosen, drawn = chosen_measures(measures), resampling or NO_RESAMPLING
    if unknown := [m.name for m in chosen if not has_estimator(m)]:
        raise ValueError(f"measures must have an estimator. Got {', '.join(unknown)}. Compare two networks by them.")
    batching.check_repeatable(loader)
    with TemporaryDirectory(prefix="intertwine-") as scratch:
        kept = Path(scratch if folder is None else folder)
        check_writable(kept / "probe", "folder")
        passed = partial(_passed, kept, loader, chosen, drawn.seed, progress)
        networks, known = _listed(named, layers, reading, batching.peek(loader)[0])
        fresh, groups = _untrained(networks, known, drawn)
        points = [some for _, some, _ in networks.values()]
        files, blocks, notes = passed(networks, reading)
        examples, own, more = sum(blocks), len(files), dict[str, Path]()
        try:
            if fresh:
                more, _, said = passed(fresh, reading, min(examples, brief(points, examples)))
                notes += said
        except KeyboardInterrupt:
            notes.append(CUT_SHORT)
        shared, intervals = [p.name for p in points[0]], drawn.bootstrap > 0 and examples >= 2 * FEWEST
        if drawn.bootstrap and not intervals:
            notes.append(f"No intervals: {examples} examples are too few to halve.")
        every = [(name, str(path)) for name, path in (*files.items(), *more.items())]
        place = {name: own + k for k, name in enumerate(more)}
        sets = [some for group in groups if len(some := [place[x] for x in group if x in place]) > 1]
        like = Tile("", (), (), tuple(m.name for m in chosen), drawn.seed, drawn.null > 0, intervals)
        tiles = _tiles(range(own), every, shared, like)
        for some in sets:
            tiles |= _tiles(some, every, shared, replace(like, shuffled=False, intervals=False))
        in_turn = map(Tile.scored, track([*tiles], "Comparing layers of all pairs", None, progress))
        results = in_turn if work is None else work([*tiles])
        found, said = _joined(results, tiles.values(), (len(_PARTS), len(shared), len(every), len(every)), own)
    kinds = [*(networks[name][2] for name in files), *(fresh[name][2] for name in more)]
    levels = {m: _pairs(sets, x[0], kinds) for m, x in found.items() if sets}
    untrained = {m: pairs for m, pairs in levels.items() if not pairs.isnan().all()}
    pairs = len(next(iter(untrained.values()), ()))
    parts: Any = {
        part: {m: x[k, :, :own, :own].contiguous() for m, x in found.items()} for k, part in enumerate(_PARTS)
    }
    return ComparisonSet(
        names=tuple(files),
        layers=tuple(shared),
        measures=like.measures,
        groups={m.name: m.group for m in chosen},
        examples=examples,
        settings={"seed": drawn.seed, **settings_of(drawn, False, intervals, chosen, max(blocks), pairs)},
        notes=tuple(dict.fromkeys([*notes, *said])),
        versions=versions(),
        architectures=tuple(kinds[:own]),
        untrained_pairs=untrained,
        **parts,
    )


def _listed(
    named: Mapping[str, Built], layers: str | Sequence[str] | None, reading: Reading, first: Any
) -> tuple[Fresh, dict[Any, int]]:
    """Makers of the networks, with the layers that all have and their architectures' numbers; and these numbers."""
    found, known = Fresh(), dict[Any, int]()
    for name, m in named.items():
        built = _built(name, m)
        with both_given(name):
            points = points_of(built, layers, reading, first)
        found[name] = partial(_built, name, m), points, known.setdefault(architecture(built), len(known))
    every = [[p.name for p in points] for _, points, _ in found.values()]
    shared = [name for name in every[0] if all(name in names for names in every)]
    if not shared:
        raise ValueError("layers must name one that all networks have. Got none. Name layers, or compare two by two.")
    return {x: (make, [p for p in some if p.name in shared], k) for x, (make, some, k) in found.items()}, known


def _untrained(networks: Fresh, known: Mapping[Any, int], drawn: Resampling) -> tuple[Fresh, list[list[str]]]:
    """Untrained networks of each architecture, and which of them are compared with each other."""
    built = () if isinstance(drawn.untrained, int) else [m for side in given(drawn.untrained) for m in side]
    own = [(known.get(architecture(m)), partial(_built, "untrained", m)) for m in dict.fromkeys(built)]
    if any(k is None for k, _ in own):
        raise ValueError("untrained must be built as models are. Got a network of another architecture.")
    made, points, alike = dict[str, Sequence[Make]](), list[Sequence[Point]](), list[bool]()
    redrawn = lru_cache(maxsize=1)(lambda make: Redrawn(make()))  # they come one architecture after another
    for k in known.values():
        (name, (make, some, _)), *others = (one for one in networks.items() if one[1][2] == k)
        draw = lambda seed, make=make: redrawn(make)(seed)
        made[name] = [one for its, one in own if its == k] or makers(name, draw, drawn, k, bool(others))
        points.append(some)
        alike.append(bool(others))
    return grouped(made, points, alike)


def _pairs(groups: Sequence[Sequence[int]], scores: Tensor, kinds: Sequence[int]) -> Tensor:
    """Scores of pairs of untrained networks ``(pairs, L, K, K)``, by architectures; NaN beyond the last pair."""
    found: dict[tuple[int, int], list[Tensor]] = {}
    for i, j in chain.from_iterable(combinations(group, 2) for group in groups):
        for at in {(kinds[i], kinds[j]), (kinds[j], kinds[i])}:
            found.setdefault(at, []).append(scores[:, i, j])
    pairs = scores.new_full((max(map(len, found.values())), len(scores), max(kinds) + 1, max(kinds) + 1), nan)
    for (s, t), some in found.items():
        pairs[: len(some), :, s, t] = torch.stack(some)
    return pairs


def _passed(
    folder: Path, loader: Iterable[Any], measures: Sequence[Measure[Any]], seed: int, progress: bool | None,
    networks: Fresh, reading: Reading, few: int = 0,
) -> tuple[dict[str, Path], list[int], list[str]]:  # fmt: skip
    """Files of what passes keep of all examples, or of ``few``, made once; the blocks; and notes for the reader."""
    files, notes, blocks, read = dict[str, Path](), list[str](), list[int](), hashlib.sha256()
    sizes = [(batching.size(x), sum(t.nbytes for t in tensors_in(x))) for x in _read(loader, read, reading)]
    examples, room = (
        sum(n for n, _ in sizes),
        min(parse_memory(reading.memory) // SHARE, sum(size for _, size in sizes)),
    )
    wanted = Wanted.of(measures, [points for _, points, _ in networks.values()], examples, seed)
    own = replace(reading, max_examples=few) if few else reading
    what = f"Running {'untrained ' if few else ''}networks"
    for name, (make, points, _) in track(networks.items(), what, len(networks), progress):
        model = make()
        if isinstance(model, str):
            notes.append(model)
            continue
        layout = [(p.name, p.shape, p.channel_dim) for p in points]
        facts = repr((_KEPT, room, wanted, layout, own, read.hexdigest(), architecture(model)))
        path = (folder / f"{digest([facts, *_tensors_of(model)])[:24]}.safetensors").resolve()
        if not path.exists():
            again, running, said = hashlib.sha256(), Running({name: (model, points)}), list[str]()
            stream = mixed(_read(loader, again, reading), room, seed, said, examples, progress)
            found = gather(running, {name: Collector(name, points, wanted)}, stream, own)[name]
            if any(note.startswith("Interrupted") for note in (*said, *found.notes)):
                raise KeyboardInterrupt  # part of a pass does not count
            deque(stream, maxlen=0)  # the examples that untrained networks leave over
            if again.digest() != read.digest():
                raise ValueError(
                    f"loader must yield the same batches in every pass. Got others for {name}. Do not shuffle, or load "
                    "the data into a list of batches."
                )
            notes += said
            write_tensors(path, to_tensors(found))
        files[name], blocks = path, [*read_layer(path, points[0].name, name).blocks]
    return files, blocks, notes


def _tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Tensors of a network, with those that no state dict may have: other buffers, and attributes such as masks."""
    others = (x for x in (*model.buffers(), *Kept(model).tensors()) if x.layout == torch.strided and not x.is_meta)
    return chain(model.state_dict().values(), others)


def _read(loader: Iterable[Any], known: Any, reading: Reading) -> Iterator[Any]:
    """Batches of a loader, as many as are asked for, each added to a hash."""
    for batch in limited(batching.peek(loader)[1], reading.max_examples):
        digest(tensors_in(batching.example(batch, batching.size(batch))), known)
        yield batch


def _built(name: str, model: Built) -> nn.Module:
    built = model() if callable(model) and not isinstance(model, nn.Module) else model
    check_module(built, name)
    return built


@dataclass(frozen=True)
class Tile:
    """Pairs of some networks with others at one layer, as plain values: any process that sees the files scores them."""

    layer: str  # Its name
    rows: tuple[tuple[str, str], ...]  # Networks by name, each with the file of what its pass kept
    columns: tuple[tuple[str, str], ...]  # The others; identical to ``rows`` if all pairs of these are meant
    measures: tuple[str, ...]  # Their names
    seed: int  # Seed of the shuffles
    shuffled: bool  # Whether chance levels are wanted
    intervals: bool

    def scored(self) -> dict[str, Any]:
        """Scores and what judges them, by measure, as lists ``(6, rows, columns)``; ``notes``. Control-C ends it."""
        chosen, how = chosen_measures(self.measures), How(None, self.shuffled, self.intervals, self.seed)
        read = lambda some: [read_layer(Path(path), self.layer, name) for name, path in some]
        joined = lambda networks: Network([one.layers[0] for one in networks], networks[0].blocks)
        a, same = joined(read(self.rows)), self.rows == self.columns
        b = a if same else joined(read(self.columns))
        notes = [layer.silent for layer in (*a.layers, *b.layers) if layer.silent]
        unknown = torch.full((len(a.layers), len(b.layers)), nan, dtype=torch.float64)
        found = {m.name: unknown.repeat(len(_PARTS), 1, 1) for m in chosen}
        for k in range(0, len(a.layers), _STEP if same else _TILE):  # of a symmetric matrix, the upper triangle
            rows, columns = slice(k, k + (_STEP if same else _TILE)), slice(k if same else 0, None)
            some = score_all(chosen, Network(a.layers[rows], a.blocks), Network(b.layers[columns], b.blocks), how)
            for m in chosen:
                notes += some[m.name].notes
                known = some[m.name].columns(m, self.shuffled, self.intervals, exact=False)
                for part, matrix in zip(_PARTS, found[m.name]):
                    matrix[rows, columns] = nan if known[part] is None else known[part]
        if INTERRUPTED in notes:
            raise KeyboardInterrupt
        if same:
            found = {m: x.triu() + x.triu(1).mT for m, x in found.items()}
        return {"notes": list(dict.fromkeys(notes)), **{m: x.tolist() for m, x in found.items()}}


def _tiles(
    of: Sequence[int], networks: Sequence[tuple[str, str]], layers: Sequence[str], like: Tile
) -> dict[Tile, tuple[int, Tensor, Tensor]]:
    """Work on some networks, a few of them and one layer at a time, and the places where its scores belong."""
    parts = [of[k : k + _TILE] for k in range(0, len(of), _TILE)]
    some = lambda part: tuple(networks[k] for k in part)
    return {
        replace(like, layer=layer, rows=some(s), columns=some(t)): (k, torch.tensor(s), torch.tensor(t))
        for k, layer in enumerate(layers)
        for s, t in combinations_with_replacement(parts, 2)
    }


def _joined(
    results: Iterable[Mapping[str, Any]], places: Iterable[tuple[int, Tensor, Tensor]], shape: Sequence[int], own: int
) -> tuple[dict[str, Tensor], list[str]]:
    """All that is known, by measure, and notes on the first networks. Control-C ends it; what is scored counts."""
    found, notes, left = dict[str, Tensor](), list[str](), [*places]
    try:
        for one in results:
            k, s, t = left.pop(0)
            said = dict(one)
            new = said.pop("notes")
            notes += new if int(t[-1]) < own else []
            for m, values in said.items():
                matrix = found.setdefault(m, torch.full(shape, nan, dtype=torch.float64))
                part = torch.from_numpy(np.array(values, dtype=float))  # NaN for None
                matrix[:, k, s[:, None], t] = part
                matrix[:, k, t[:, None], s] = part.mT
    except KeyboardInterrupt:
        if not found:
            raise
        return found, [*dict.fromkeys(notes), INTERRUPTED]
    if left:
        raise ValueError(f"work must give the scores of all tiles. Got none of {len(left)}.")
    return found, list(dict.fromkeys(notes))
