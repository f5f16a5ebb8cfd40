"""Many networks on the same data: one pass each, all pairs from what the passes kept."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ...._evaluation import check_module
from ...._io import read_json, versions, write_json, write_tensors
from ...._nested import tensors_in
from ...._progress import track
from ....features import Point, Reading, Tapped
from ....features import batches as batching
from ...base import Measure
from ...registry import measure as find
from .comparison_set import ComparisonSet
from .procrustes import SHUFFLES
from .run import Statistics, estimate, gather, has_estimator, kernels_of, needs_rows
from .statistics import LayerStatistics, Wanted, read_layer, to_tensors

MANY = ("linear_cka", "orthogonal_procrustes_centered")
"""What ``compare_many`` measures unless told otherwise."""
_TILE = 16  # networks whose statistics of one layer are in memory, on either side
READING = Reading()
Network = nn.Module | Callable[[], nn.Module]


def compare_many(
    models: Mapping[str, Network] | Sequence[nn.Module],
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    measures: str | Measure[Any] | Sequence[str | Measure[Any]] = MANY,
    *,
    folder: str | Path | None = None,
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
    several = [measures] if isinstance(measures, str | Measure) else measures
    chosen = list({m.name: m for m in map(find, several)}.values())
    if unknown := [m.name for m in chosen if not has_estimator(m)]:
        raise ValueError(f"measures must have an estimator. Got {', '.join(unknown)}. Compare two networks by them.")
    batching.check_repeatable(loader)
    if folder is None:
        with TemporaryDirectory(prefix="intertwine-") as scratch:
            return _compare(named, loader, layers, chosen, Path(scratch), seed, reading, progress)
    return _compare(named, loader, layers, chosen, Path(folder), seed, reading, progress)


def _compare(
    named: Mapping[str, Network],
    loader: Iterable[Any],
    layers: str | Sequence[str] | None,
    chosen: Sequence[Measure[Any]],
    folder: Path,
    seed: int,
    reading: Reading,
    progress: bool | None,
) -> ComparisonSet:
    folder.mkdir(parents=True, exist_ok=True)
    first, _ = batching.peek(loader)
    expected = reading.max_examples or sum(map(batching.size, loader))
    points = {name: _points(_built(name, m), layers, reading, first) for name, m in named.items()}
    shared = [
        p.name for p in next(iter(points.values())) if all(p.name in {q.name for q in o} for o in points.values())
    ]
    if not shared:
        raise ValueError("layers must name one that all networks have. Got none. Name layers, or compare two by two.")
    points = {name: [p for p in some if p.name in shared] for name, some in points.items()}
    every = [p for some in points.values() for p in some]
    wanted = Wanted.of(kernels_of(chosen), every, needs_rows(chosen), expected, seed)
    files = {}
    for name, model in track(named.items(), "Running networks", len(named), progress):
        files[name] = _kept(folder, name, _built(name, model), points[name], loader, first, wanted, reading)
    blocks = {name: tuple(read_json(path.with_suffix(".json"))["blocks"]) for name, path in files.items()}
    if len(set(blocks.values())) > 1:
        raise ValueError(
            f"loader must yield the same batches every time. Got {sorted(map(sum, set(blocks.values())))}."
        )
    return _result(files, shared, chosen, list(next(iter(blocks.values()))), seed, progress)


def _built(name: str, model: Network) -> nn.Module:
    built = model if isinstance(model, nn.Module) else model()
    check_module(built, name)
    return built


def _points(model: nn.Module, layers: Any, reading: Reading, first: Any) -> list[Point]:
    with Tapped(model, layers, outputs=reading.outputs) as tap:
        return list(tap.prepare(first))


def _kept(
    folder: Path,
    name: str,
    model: nn.Module,
    points: Sequence[Point],
    loader: Iterable[Any],
    first: Any,
    wanted: Wanted,
    reading: Reading,
) -> Path:
    """The file with a network's statistics, written by a pass where there is none of these weights and this data."""
    known = sha256(repr((wanted, [(p.name, p.shape, p.channel_dim) for p in points], reading)).encode())
    for tensor in (*model.state_dict().values(), *tensors_in(first)):
        known.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    digest = known.hexdigest()
    path = folder / f"{digest[:24]}.safetensors"
    facts = path.with_suffix(".json")
    if facts.exists():
        return path
    _, stream = batching.peek(loader)
    found = gather({name: model}, {name: points}, stream, wanted, reading, None, False)[name]
    write_tensors(path, to_tensors(found.layers))
    write_json(facts, {"name": name, "blocks": found.blocks, "layers": [p.name for p in points]})  # last: it says done
    return path


def _result(
    files: Mapping[str, Path],
    layers: Sequence[str],
    chosen: Sequence[Measure[Any]],
    blocks: list[int],
    seed: int,
    progress: bool | None,
) -> ComparisonSet:
    names, n = list(files), len(files)
    parts = ("scores", "error", "chance", "p")
    found = {
        part: {m.name: torch.full((len(layers), n, n), torch.nan, dtype=torch.float64) for m in chosen}
        for part in parts
    }
    notes: list[str] = []
    tiles = [range(k, min(n, k + _TILE)) for k in range(0, n, _TILE)]
    work = [(k, s, t) for k in range(len(layers)) for i, s in enumerate(tiles) for t in tiles[i:]]
    for k, s, t in track(work, "Comparing layers of all pairs", len(work), progress):
        a = Statistics([_layer(files, names[i], layers[k]) for i in s], blocks)
        b = a if s == t else Statistics([_layer(files, names[i], layers[k]) for i in t], blocks)
        notes += [layer.silent for layer in (*a.layers, *b.layers) if layer.silent]
        for m, one in estimate(chosen, a, b, SHUFFLES > 0, False, seed, False).items():
            for part in parts:
                values = getattr(one, part)
                found[part][m][k, s.start : s.stop, t.start : t.stop] = values
                found[part][m][k, t.start : t.stop, s.start : s.stop] = _symmetric(values) if s == t else values.T
    return ComparisonSet(
        names=tuple(names),
        layers=tuple(layers),
        measures=tuple(m.name for m in chosen),
        groups={m.name: m.group for m in chosen},
        examples=sum(blocks),
        settings={"seed": seed, "blocks": len(blocks)},
        notes=tuple(dict.fromkeys(notes)),
        versions=versions(),
        scores=found["scores"],
        error=found["error"],
        chance=found["chance"],
        p=found["p"],
    )


def _symmetric(values: Tensor) -> Tensor:
    return (values + values.T) / 2


def _layer(files: Mapping[str, Path], name: str, layer: str) -> LayerStatistics:
    names = read_json(files[name].with_suffix(".json"))["layers"]
    return read_layer(files[name], names.index(layer), layer, name)
