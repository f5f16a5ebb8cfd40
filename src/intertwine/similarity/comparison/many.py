"""Many networks on the same data: one pass each, all pairs from what the passes kept."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..._evaluation import check_module
from ..._examples import both_given
from ..._io import digest, read_json, versions, write_json, write_tensors
from ..._nested import tensors_in
from ..._progress import track
from ...features import Reading
from ...features import batches as batching
from ..base import Measure
from ..distances import ComparisonSet
from .all_pairs import has_estimator, score_all
from .compare import chosen_measures, points_of
from .estimates import How
from .layers import Network, Running, gather
from .statistics import Collector, Wanted, read_layer, to_tensors

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
    with TemporaryDirectory(prefix="intertwine-") as scratch:
        kept = Path(scratch if folder is None else folder)
        kept.mkdir(parents=True, exist_ok=True)
        files, layers, blocks = _kept(kept, named, loader, layers, chosen, seed, reading, progress)
        return _all_pairs(files, layers, blocks, chosen, seed, progress)


def _kept(
    folder: Path,
    named: Mapping[str, Built],
    loader: Iterable[Any],
    layers: str | Sequence[str] | None,
    chosen: Sequence[Measure[Any]],
    seed: int,
    reading: Reading,
    progress: bool | None,
) -> tuple[dict[str, tuple[Path, list[str]]], list[str], list[int]]:
    """The file of every network with its layers, made where there is none, layers that all have, and blocks."""
    first, _ = batching.peek(loader)
    examples, most, inputs = 0, reading.max_examples, hashlib.sha256()
    for batch in loader:
        digest(tensors_in(batching.example(batch, batching.size(batch))), inputs)
        examples += batching.size(batch)
        if most is not None and examples >= most:
            examples = most
            break
    data = inputs.digest()
    points = {}
    for name, m in named.items():
        with both_given(name):
            points[name] = points_of(_built(name, m), layers, reading, first)
    every = [[p.name for p in some] for some in points.values()]
    shared = [name for name in every[0] if all(name in names for names in every)]
    if not shared:
        raise ValueError("layers must name one that all networks have. Got none. Name layers, or compare two by two.")
    points = {name: [p for p in some if p.name in shared] for name, some in points.items()}
    wanted = Wanted.of(chosen, [p for some in points.values() for p in some], examples, seed)
    files, blocks = {}, []
    for name, model in track(named.items(), "Running networks", len(named), progress):
        running: Running = {name: (_built(name, model), points[name])}
        facts = (wanted, [(p.name, p.shape, p.channel_dim) for p in points[name]], reading, data)
        known = digest([repr(facts), *running[name][0].state_dict().values()])
        path = folder / f"{known[:24]}.safetensors"
        done = path.with_suffix(".json")
        if not done.exists():
            keepers = {name: Collector(name, points[name], wanted)}
            found = gather(running, keepers, batching.peek(loader)[1], reading)[name]
            if found.notes:
                raise KeyboardInterrupt  # part of a pass is no pass
            write_tensors(path, to_tensors(found.layers))
            write_json(done, {"name": name, "blocks": [*found.blocks], "layers": [p.name for p in points[name]]})
        files[name] = path, read_json(done)["layers"]
        blocks.append(read_json(done)["blocks"])
    if any(one != blocks[0] for one in blocks):
        counts = sorted(map(sum, {tuple(one) for one in blocks}))
        raise ValueError(f"loader must yield the same batches every time. Got {counts} examples.")
    return files, shared, blocks[0]


def _built(name: str, model: Built) -> nn.Module:
    built = model if isinstance(model, nn.Module) else model()
    check_module(built, name)
    return built


def _all_pairs(
    files: Mapping[str, tuple[Path, list[str]]],
    layers: Sequence[str],
    blocks: list[int],
    chosen: Sequence[Measure[Any]],
    seed: int,
    progress: bool | None,
) -> ComparisonSet:
    """Scores of all pairs, layer by layer, a few networks at a time."""
    names, n, parts = list(files), len(files), ("scores", "error", "chance", "p")
    nothing = torch.full((len(layers), n, n), torch.nan, dtype=torch.float64)
    found: dict[str, Any] = {part: {m.name: nothing.clone() for m in chosen} for part in parts}
    notes: list[str] = []
    tiles = [range(k, min(n, k + _TILE)) for k in range(0, n, _TILE)]
    work = [(k, s, t) for k in range(len(layers)) for s, t in combinations_with_replacement(tiles, 2)]
    read = lambda tile, layer: Network(
        [read_layer(files[names[i]][0], files[names[i]][1].index(layer), layer, names[i]) for i in tile], blocks
    )
    how = How(intervals=False, seed=seed)
    for k, s, t in track(work, "Comparing layers of all pairs", len(work), progress):
        a = read(s, layers[k])
        b = a if s == t else read(t, layers[k])
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
        **found,
    )
