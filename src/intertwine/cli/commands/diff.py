"""``intertwine diff``: what changed between two checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from .._options import OF_PAGES, ExampleOptions, page_or_data


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
    as_json: bool = False
