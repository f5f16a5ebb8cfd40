"""Work of ``intertwine diff``."""

from collections.abc import Mapping
from pathlib import Path

import torch
import typer
from torch import Tensor, nn

from ... import symmetry
from ...errors import CheckpointError
from ...provenance.diff import diff
from ...provenance.difference import Diff
from .._command import FAILED
from .._models import build_model
from .._networks import model_named_by, open_alone, read_checkpoint
from .._outputs import claim_file
from .._running import threads_for
from .._show import print_json, say, tell
from ..commands.diff import DiffOptions
from ..inputs.example import example_input


def run(asked: DiffOptions) -> None:
    """Say what was done to checkpoint A to make B."""
    paths = [asked.a, asked.b]
    if asked.out is not None:
        claim_file(asked.out, paths)
    if paths[0].resolve() == paths[1].resolve():
        tell(f"A and B are the same file, {str(paths[0])!r}")
    found = _sharded(asked, *paths) if asked.sharded else _opened(asked, *paths)
    if asked.out is not None:
        written = found.to_html(asked.out) if asked.out.suffix in (".html", ".htm") else found.save(asked.out)
        tell(f"wrote {written}")
    if asked.as_json:
        print_json({**found.to_dict(), "blocks": dict(found.blocks)})
    else:
        say(found.summary())
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
    return diff(sides[0], sides[1], example)


def _named(path: Path, other: Path) -> str:
    """The model that a checkpoint names, or else the one of the other."""
    try:
        return model_named_by(path)
    except CheckpointError:
        return model_named_by(other)


def _sharded(asked: DiffOptions, *paths: Path) -> Diff:
    """Both checkpoints read from disk when tensors are needed; the model is built without weights."""
    spec = asked.model or _named(*paths)
    with torch.device("meta"):
        network = build_model(spec).eval()
    sym = symmetry.symmetries(network, example_input(spec, asked, meta=True))
    threads_for(weights=sum(p.numel() for p in network.parameters()))
    a, b = (symmetry.ShardedState(path) for path in paths)
    return diff(a, b, None, sym)


def _tensors(side: nn.Module | Mapping[str, Tensor]) -> list[Tensor]:
    return list(side.parameters()) if isinstance(side, nn.Module) else list(side.values())
