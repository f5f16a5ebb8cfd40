"""``intertwine correspond``: which parameter entries of one network are which of another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._options import OF_PAGES, ExampleOptions, page_or_data
from .._outputs import claim_file, show, write_one
from . import inputs, iw


@dataclass(frozen=True)
class CorrespondOptions(ExampleOptions):
    """Find which parameter entries of B are which of A, whatever the code of each calls and packs them.

    The programs are compared, not names: packed projections, transposed weights and wrappers are seen through, and one
    network may be part of the other. What is found is proved: A with B's weights computes B's function, in float64.
    Where nothing corresponds, the first place where the programs part is named; the exit code is 0.

    Example:
      intertwine correspond hf:one_directory b.safetensors --model-b mypackage.nets:decoder
      intertwine correspond a.safetensors b.safetensors --model resnet20 --model-b mypackage.nets:resnet --out page.html
    """

    suffixes = OF_PAGES

    a: Path
    b: Path
    model: str | None = None
    model_b: str | None = None
    device: str = "cpu"
    out: Path | None = page_or_data()


def run(asked: CorrespondOptions) -> None:
    """Find which parameter entries of B are which of A, and print the table."""
    paths = [asked.a, asked.b]
    claim_file(asked.out, paths)
    group = inputs.open_group(paths, asked, "if given")
    a, b = group.models
    found = iw.correspond(a, b, group.example)
    write_one(found, asked.out)
    show(found, asked.as_json)
