"""``intertwine diff``: what changed between two checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import ExampleOptions, Json, Model


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

    suffixes = (".html", ".htm", ".json", ".parquet")

    a: Annotated[
        Path,
        typer.Argument(metavar="A", help="The checkpoint before: safetensors, a torch file of tensors, or hf:DIR."),
    ]
    b: Annotated[Path, typer.Argument(metavar="B", help="The one after.")]
    model: Model = None
    sharded: Annotated[
        bool,
        typer.Option("--sharded", help="Read tensors from disk when they are needed (safetensors); nothing is run."),
    ] = False
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the page (.html) or data (.json, .parquet).")
    ] = None
    as_json: Json = False
