"""Work of ``intertwine diff``."""

from collections.abc import Mapping
from pathlib import Path

import typer
from torch import Tensor, nn

from ...errors import CheckpointError
from ...provenance.diff import diff, with_configurations
from ...provenance.difference import Diff
from ...symmetry import ShardedState
from .._command import FAILED
from .._running import threads_for
from ..commands.diff import DiffOptions
from ..inputs.example import example_input, for_all
from ..inputs.hugging_face import configuration
from ..inputs.networks import model_named_by, open_alone, read_checkpoint, symmetry_of
from ..outputs.files import claim_file
from ..outputs.results import show, write_one
from ..outputs.show import tell


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


def _opened(asked: DiffOptions, *paths: Path) -> Diff:
    """Both checkpoints in their models; tensors alone where names are those of other code."""
    left, right = (read_checkpoint(path) for path in paths)
    specs = [asked.model or _named(side, other) for side, other in (paths, paths[::-1])]
    example = example_input(specs[1], asked)
    sides: list[nn.Module | Mapping[str, Tensor]] = []
    refusals = []
    for spec, checkpoint in zip(specs, (left, right)):
        try:
            sides.append(open_alone(spec, checkpoint))
        except CheckpointError as refusal:
            if checkpoint.tensors is None:
                raise
            sides.append(checkpoint.tensors)
            refusals.append(refusal)
    if len(refusals) == 2:
        raise refusals[1]
    threads_for(weights=sum(p.numel() for side in sides for p in _tensors(side)))
    models = [side for side in sides if isinstance(side, nn.Module)]
    return diff(sides[0], sides[1], for_all(models, example))


def _named(path: Path, other: Path) -> str:
    """The model that a checkpoint names, or else the one of the other."""
    try:
        return model_named_by(path)
    except CheckpointError:
        return model_named_by(other)


def _sharded(asked: DiffOptions, *paths: Path) -> Diff:
    """Both checkpoints read from disk when tensors are needed; the model is built without weights."""
    sym = symmetry_of(asked.model or _named(*paths), asked)
    a, b = map(ShardedState, paths)
    found = diff(a, b, None, sym)
    if not all((path / "config.json").is_file() for path in paths):
        return found
    return with_configurations(found, *map(configuration, paths))


def _tensors(side: nn.Module | Mapping[str, Tensor]) -> list[Tensor]:
    return list(side.parameters()) if isinstance(side, nn.Module) else list(side.values())
