"""Many networks on the same data: one pass each, all pairs from what the passes kept."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._evaluation import check_module
from ..._examples import both_given
from ..._io import check_writable, digest, read_json, versions, write_json, write_tensors
from ..._nested import tensors_in
from ..._progress import track
from ...features import Reading
from ...features import batches as batching
from ..base import Measure
from ..distances import ComparisonSet
from .all_pairs import INTERRUPTED, has_estimator, score_all
from .compare import READING, chosen_measures, points_of
from .estimates import How
from .keepers import Collector, Wanted, read_layer, to_tensors
from .layers import Network, Running, gather, limited
from .untrained import architecture

MANY = ("linear_cka", "orthogonal_procrustes_centered")
"""What ``compare_many`` measures unless told otherwise."""
_TILE = 16  # networks whose statistics of one layer are in memory, on either side
_STEP = 4  # networks whose pairs with all that follow are scored together
_PARTS = ("scores", "error", "chance", "p")
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
    seed: int = 0,
    reading: Reading = READING,
    progress: bool | None = None,
) -> ComparisonSet:
    """Compare many networks at each layer on the same examples.

    Every network runs once, and what its pass kept goes to a file: Gram matrices of blocks of examples, and channels at
    sampled positions. All pairs follow from the files, layer by layer, a few networks at a time, so that memory depends
    neither on the number of networks nor on that of examples. With a ``folder`` the files stay: a run that was stopped
    goes on where it was, and networks that are added later run alone.

    Args:
        models: By name, networks or functions that build one: these are called when their turn comes, and forgotten.
        loader: Batches; read once for each network, so it must not be an iterator.
        layers: Names or patterns of layers; ``None`` as in :func:`intertwine.compare`. Those that all networks have.
        measures: Measures with an estimator: CKA (unbiased; linear, max, gates) and Procrustes.
        folder: Where the statistics are kept; a temporary folder unless given.
        work: What scores the pairs, tiles of them to what :meth:`Tile.scored` gives, in order; one after the other in
            this process unless given. ``intertwine.lab.tiles.by_jobs`` has them scored by workers of this machine or a
            Ray cluster, of which any may die.
        seed: Of the positions and shuffles.
        reading: Which tensors and axes are features, and how many examples are read.
        progress: Whether to show progress.

    Raises:
        TypeError: If the loader is an iterator, or something is no network.
        ValueError: If there are fewer than two networks, no layer that all of them have, or a measure without an
            estimator.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> build = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        >>> found = compare_many({"a": build, "b": build, "c": build}, torch.randn(300, 5).split(100), progress=False)
        >>> found.layers, tuple(found.matrix("linear_cka", "1").shape)
        (('1', '3'), (3, 3))
    """  # noqa: DOC502 - raised by a check
    named = dict(models) if isinstance(models, Mapping) else {f"network {k + 1}": m for k, m in enumerate(models)}
    if len(named) < 2:
        raise ValueError(f"models must be at least two. Got {len(named)}.")
    chosen = chosen_measures(measures)
    if unknown := [m.name for m in chosen if not has_estimator(m)]:
        raise ValueError(f"measures must have an estimator. Got {', '.join(unknown)}. Compare two networks by them.")
    batching.check_repeatable(loader)
    with TemporaryDirectory(prefix="intertwine-") as scratch:
        kept = Path(scratch if folder is None else folder)
        check_writable(kept / "probe", "folder")
        files, layers, blocks = _kept(kept, named, loader, layers, chosen, seed, reading, progress)
        tiles = _tiles(files, layers, chosen, seed)
        in_turn = map(Tile.scored, track([*tiles], "Comparing layers of all pairs", None, progress))
        results = in_turn if work is None else work([*tiles])
        parts, notes = _joined(results, tiles.values(), (len(layers), len(files), len(files)))
    return ComparisonSet(
        names=tuple(files),
        layers=tuple(layers),
        measures=tuple(m.name for m in chosen),
        groups={m.name: m.group for m in chosen},
        examples=sum(blocks),
        settings={"seed": seed, "blocks": len(blocks)},
        notes=tuple(notes),
        versions=versions(),
        **parts,
    )


def _kept(
    folder: Path,
    named: Mapping[str, Built],
    loader: Iterable[Any],
    layers: str | Sequence[str] | None,
    chosen: Sequence[Measure[Any]],
    seed: int,
    reading: Reading,
    progress: bool | None,
) -> tuple[dict[str, Path], list[str], list[int]]:
    """The file of every network, made where there is none; the layers that all have; examples of the blocks."""
    first, _ = batching.peek(loader)
    data, points = _Read(loader), {}
    examples = sum(map(batching.size, limited(data, reading.max_examples)))
    for name, m in named.items():
        built = _built(name, m)
        with both_given(name):
            points[name] = points_of(built, layers, reading, first)
    every = [[p.name for p in some] for some in points.values()]
    shared = [name for name in every[0] if all(name in names for names in every)]
    if not shared:
        raise ValueError("layers must name one that all networks have. Got none. Name layers, or compare two by two.")
    points = {name: [p for p in some if p.name in shared] for name, some in points.items()}
    wanted = Wanted.of(chosen, [p for some in points.values() for p in some], examples, seed)
    files, blocks = {}, list[int]()
    for name, model in track(named.items(), "Running networks", len(named), progress):
        running: Running = {name: (_built(name, model), points[name])}
        layout = [(p.name, p.shape, p.channel_dim) for p in points[name]]
        facts = (wanted, layout, reading, data.known.hexdigest(), architecture(running[name][0]))
        known = digest([repr(facts), *running[name][0].state_dict().values()])
        files[name] = path = (folder / f"{known[:24]}.safetensors").resolve()
        if not _beside(path).exists():
            keepers = {name: Collector(name, points[name], wanted)}
            again = _Read(loader)
            found = gather(running, keepers, again, reading)[name]
            if found.notes:
                raise KeyboardInterrupt  # part of a pass is no pass
            if again.known.digest() != data.known.digest():
                raise ValueError(
                    f"loader must yield the same batches in every pass. Got others for {name}. Do not shuffle, or load "
                    "the data into a list of batches."
                )
            write_tensors(path, to_tensors(found.layers))
            write_json(_beside(path), {"blocks": [*found.blocks], "layers": [p.name for p in points[name]]})
        blocks = read_json(_beside(path))["blocks"]
    return files, shared, blocks


class _Read:
    """A pass over a loader that knows what it has read."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.known, self._batches = hashlib.sha256(), batching.peek(loader)[1]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            digest(tensors_in(batching.example(batch, batching.size(batch))), self.known)
            yield batch


def _built(name: str, model: Built) -> nn.Module:
    built = model() if callable(model) and not isinstance(model, nn.Module) else model
    check_module(built, name)
    return built


def _beside(path: Path) -> Path:
    """What is known of a file of statistics; written last, so that it is there once the file is whole."""
    return path.with_suffix(".json")


@dataclass(frozen=True)
class Tile:
    """Pairs of some networks with others at one layer, as plain values: any process that sees the files scores them."""

    layer: str  # Its name
    rows: tuple[tuple[str, str], ...]  # Networks by name, each with the file of what its pass kept
    columns: tuple[tuple[str, str], ...]  # The others; the very same where all pairs of the rows are meant
    measures: tuple[str, ...]  # Their names
    seed: int  # Of the shuffles

    def scored(self) -> dict[str, Any]:
        """By measure scores, ``error``, ``chance`` and ``p`` as nested lists ``(rows, columns)``; and the ``notes``.

        Raises:
            KeyboardInterrupt: If that came while pairs were scored: part of a tile is no tile.
        """
        chosen, how = chosen_measures(self.measures), How(intervals=False, seed=self.seed)
        a, same = self._read(self.rows), self.rows == self.columns
        b = a if same else self._read(self.columns)
        notes = [layer.silent for layer in (*a.layers, *b.layers) if layer.silent]
        found = {m.name: torch.full((4, len(a.layers), len(b.layers)), nan, dtype=torch.float64) for m in chosen}
        for k in range(0, len(a.layers), _STEP if same else _TILE):  # of a symmetric matrix the upper triangle
            rows, columns = slice(k, k + (_STEP if same else _TILE)), slice(k if same else 0, None)
            some = score_all(chosen, Network(a.layers[rows], a.blocks), Network(b.layers[columns], b.blocks), how)
            for m, one in some.items():
                notes += one.notes
                found[m][:, rows, columns] = torch.stack([getattr(one, part) for part in _PARTS])
        if INTERRUPTED in notes:
            raise KeyboardInterrupt
        if same:
            found = {m: x.triu() + x.triu(1).mT for m, x in found.items()}
        parts = {m: dict(zip(_PARTS, x.tolist())) for m, x in found.items()}
        return {"notes": list(dict.fromkeys(notes)), **parts}

    def _read(self, networks: Sequence[tuple[str, str]]) -> Network:
        layers, blocks = [], []
        for name, path in networks:
            known = read_json(_beside(Path(path)))
            layers.append(read_layer(Path(path), known["layers"].index(self.layer), self.layer, name))
            blocks = known["blocks"]
        return Network(layers, blocks)


def _tiles(
    files: Mapping[str, Path], layers: Sequence[str], chosen: Sequence[Measure[Any]], seed: int
) -> dict[Tile, tuple[int, range, range]]:
    """The work, a few networks and one layer at a time, and where its scores belong."""
    parts = [range(k, min(len(files), k + _TILE)) for k in range(0, len(files), _TILE)]
    measures = tuple(m.name for m in chosen)
    networks = [(name, str(path)) for name, path in files.items()]
    some = lambda part: tuple(networks[k] for k in part)
    return {
        Tile(layer, some(s), some(t), measures, seed): (k, s, t)
        for k, layer in enumerate(layers)
        for s, t in combinations_with_replacement(parts, 2)
    }


def _joined(
    results: Iterable[Mapping[str, Any]], places: Iterable[tuple[int, range, range]], shape: tuple[int, int, int]
) -> tuple[dict[str, Any], list[str]]:
    """Matrices ``(L, n, n)`` by part and measure, and notes. Control-C ends the work: what has been scored counts."""
    found: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
    notes, left = list[str](), list(places)
    try:
        for one in results:
            k, s, t = left.pop(0)
            said = dict(one)
            notes += said.pop("notes")
            for m, part in product(said, _PARTS):
                matrix = found[part].setdefault(m, torch.full(shape, torch.nan, dtype=torch.float64))
                values = torch.from_numpy(np.array(said[m][part], dtype=float))  # NaN for None
                matrix[k, s.start : s.stop, t.start : t.stop] = values
                matrix[k, t.start : t.stop, s.start : s.stop] = values.T
    except KeyboardInterrupt:
        if not found["scores"]:
            raise
        return found, [*dict.fromkeys(notes), INTERRUPTED]
    if left:
        raise ValueError(f"work must give the scores of all tiles. Got none of {len(left)}.")
    return found, list(dict.fromkeys(notes))
