"""Many networks on the same data: one pass each, all pairs from what the passes kept."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import check_module
from ..._io import read_json, versions, write_json, write_tensors
from ..._nested import tensors_in
from ..._progress import track
from ...features import Point, Reading
from ...features import batches as batching
from ..base import Measure
from ..distances import ComparisonSet
from .all_pairs import How, has_estimator, score_all
from .compare import chosen_measures, points_of, wanted_of
from .gather import gather
from .layers import Network
from .statistics import Collector, SampledLayer, Wanted, read_layer, to_tensors

MANY = ("linear_cka", "orthogonal_procrustes_centered")
"""What ``compare_many`` measures unless told otherwise."""
_TILE = 16  # networks whose statistics of one layer are in memory, on either side
READING = Reading()
Built = nn.Module | Callable[[], nn.Module]


def compare_many(
    models: Mapping[str, Built] | Sequence[nn.Module],
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
    chosen = chosen_measures(measures)
    if unknown := [m.name for m in chosen if not has_estimator(m)]:
        raise ValueError(f"measures must have an estimator. Got {', '.join(unknown)}. Compare two networks by them.")
    batching.check_repeatable(loader)
    if folder is None:
        with TemporaryDirectory(prefix="intertwine-") as scratch:
            return _compare(named, loader, layers, chosen, Path(scratch), seed, reading, progress)
    return _compare(named, loader, layers, chosen, Path(folder), seed, reading, progress)


def _compare(
    named: Mapping[str, Built],
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
    examples, data = _digest(loader, reading.max_examples)
    points = {name: points_of(_built(name, m), layers, reading, first) for name, m in named.items()}
    shared = [
        p.name for p in next(iter(points.values())) if all(p.name in {q.name for q in o} for o in points.values())
    ]
    if not shared:
        raise ValueError("layers must name one that all networks have. Got none. Name layers, or compare two by two.")
    points = {name: [p for p in some if p.name in shared] for name, some in points.items()}
    wanted = wanted_of(chosen, [p for some in points.values() for p in some], examples, seed)
    files: dict[str, Path] = {}
    for name, model in track(named.items(), "Running networks", len(named), progress):
        files[name] = _kept(folder, name, _built(name, model), points[name], loader, data, wanted, reading)
    facts = {name: read_json(path.with_suffix(".json")) for name, path in files.items()}
    blocks = {tuple(one["blocks"]) for one in facts.values()}
    if len(blocks) > 1:
        raise ValueError(f"loader must yield the same batches every time. Got {sorted(map(sum, blocks))} examples.")
    read = lambda name, layer: read_layer(files[name], facts[name]["layers"].index(layer), layer, name)
    return _result(list(files), read, shared, chosen, list(blocks.pop()), seed, progress)


def _digest(loader: Iterable[Any], most: int | None) -> tuple[int, bytes]:
    """How many examples there are, and what they are."""
    known, count = sha256(), 0
    for batch in loader:
        for tensor in tensors_in(batching.example(batch, batching.size(batch))):
            known.update(_bytes(tensor))
        count += batching.size(batch)
        if most is not None and count >= most:
            return most, known.digest()
    return count, known.digest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _built(name: str, model: Built) -> nn.Module:
    built = model if isinstance(model, nn.Module) else model()
    check_module(built, name)
    return built


def _kept(
    folder: Path,
    name: str,
    model: nn.Module,
    points: Sequence[Point],
    loader: Iterable[Any],
    data: bytes,
    wanted: Wanted,
    reading: Reading,
) -> Path:
    """The file with a network's statistics, written by a pass where there is none of these weights and this data."""
    known = sha256(repr((wanted, [(p.name, p.shape, p.channel_dim) for p in points], reading, data)).encode())
    for tensor in model.state_dict().values():
        known.update(_bytes(tensor))
    path = folder / f"{known.hexdigest()[:24]}.safetensors"
    facts = path.with_suffix(".json")
    if not facts.exists():
        keeper = {name: Collector(name, points, wanted)}
        found = gather({name: (model, points)}, keeper, batching.peek(loader)[1], reading)[name]
        if found.notes:
            raise KeyboardInterrupt  # part of a pass is no pass
        write_tensors(path, to_tensors(found.layers))
        write_json(
            facts, {"name": name, "blocks": list(found.blocks), "layers": [p.name for p in points]}
        )  # it is done
    return path


def _result(
    names: list[str],
    read: Callable[[str, str], SampledLayer],
    layers: Sequence[str],
    chosen: Sequence[Measure[Any]],
    blocks: list[int],
    seed: int,
    progress: bool | None,
) -> ComparisonSet:
    n, parts = len(names), ("scores", "error", "chance", "p")
    shape = len(layers), n, n
    found = {part: {m.name: torch.full(shape, torch.nan, dtype=torch.float64) for m in chosen} for part in parts}
    notes: list[str] = []
    tiles = [range(k, min(n, k + _TILE)) for k in range(0, n, _TILE)]
    work = [(k, s, t) for k in range(len(layers)) for i, s in enumerate(tiles) for t in tiles[i:]]
    how = How(intervals=False, seed=seed)
    for k, s, t in track(work, "Comparing layers of all pairs", len(work), progress):
        a = Network([read(names[i], layers[k]) for i in s], blocks)
        b = a if s == t else Network([read(names[i], layers[k]) for i in t], blocks)
        notes += [layer.silent for layer in (*a.layers, *b.layers) if layer.silent]
        for m, one in score_all(chosen, a, b, how).items():
            for part in parts:
                values = getattr(one, part)
                found[part][m][k, s.start : s.stop, t.start : t.stop] = values
                both = (values + values.T) / 2 if s == t else values.T
                found[part][m][k, t.start : t.stop, s.start : s.stop] = both
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
