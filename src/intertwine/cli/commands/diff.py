"""``intertwine diff``: what changed between two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from ...errors import CheckpointError
from .._command import FAILED, threads_for
from .._options import OF_PAGES, ExampleOptions, page_or_data
from .._outputs import claim_file, show, tell, write_one
from . import inputs, iw, torch


@dataclass(frozen=True)
class DiffOptions(ExampleOptions):
    """Say what was done to checkpoint A to make B: by symmetry, by conversion and casts, by training.

    First what keeps the function (heads swapped, units permuted or rescaled, gains folded, names and layouts
    converted), then what remains, tensor by tensor: casts, integer grids, pruning, the rank of updates, blocks that
    were frozen or replaced. One of both may have other names and layouts than the model. The exit code is 0 where both
    compute the same function, up to rounding, 1 where something changed, and 2 for bad usage or input.

    Example:
      intertwine diff a.safetensors b.safetensors --model resnet20
      intertwine diff hf:base hf:finetuned --out changes.html
      intertwine diff base/ finetuned/ --model hf:base --sharded --json
    """

    suffixes = OF_PAGES

    a: Path
    b: Path
    model: str | None = None
    sharded: bool = False
    out: Path | None = page_or_data()


def run(asked: DiffOptions) -> None:
    """Say what was done to checkpoint A to make B."""
    paths = [asked.a, asked.b]
    claim_file(asked.out, paths)
    if paths[0].resolve() == paths[1].resolve():
        tell(f"A and B are the same file, {str(paths[0])!r}")
    found = _sharded(asked, *paths) if asked.sharded else _opened(asked, *paths)
    write_one(found, asked.out)
    show(found, asked.as_json, blocks=dict(found.blocks))
    if not found.same_function:
        raise typer.Exit(FAILED)


def _opened(asked: DiffOptions, *paths: Path) -> iw.Diff:
    """Both checkpoints in their models; tensors alone where names are those of other code."""
    checkpoints = [inputs.read_checkpoint(path) for path in paths]
    specs = [asked.model or _named(side, other) for side, other in (paths, paths[::-1])]
    example = inputs.example_input(specs[1], asked)
    sides: list[torch.nn.Module | Mapping[str, torch.Tensor]] = []
    refusals = []
    for spec, checkpoint in zip(specs, checkpoints):
        try:
            sides.append(inputs.open_alone(spec, checkpoint))
        except CheckpointError as refusal:
            if checkpoint.tensors is None:
                raise
            sides.append(checkpoint.tensors)
            refusals.append(refusal)
    if len(refusals) == 2:
        raise refusals[1]
    threads_for(weights=sum(p.numel() for side in sides for p in _tensors(side)))
    models = [side for side in sides if isinstance(side, torch.nn.Module)]
    return iw.diff(sides[0], sides[1], inputs.for_all(models, example))


def _named(path: Path, other: Path) -> str:
    """The model that a checkpoint names, or else the one of the other."""
    try:
        return inputs.model_named_by(path)
    except CheckpointError:
        return inputs.model_named_by(other)


def _sharded(asked: DiffOptions, *paths: Path) -> iw.Diff:
    """Both checkpoints read from disk when tensors are needed; the model is built without weights."""
    from ...provenance.diff import with_configurations
    from ...symmetry import ShardedState

    sym = inputs.symmetry_of(asked.model or _named(*paths), asked)
    a, b = map(ShardedState, paths)
    found = iw.diff(a, b, None, sym)
    if not all((path / "config.json").is_file() for path in paths):
        return found
    return with_configurations(found, *map(inputs.configuration, paths))


def _tensors(side: torch.nn.Module | Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return list(side.parameters()) if isinstance(side, torch.nn.Module) else list(side.values())
