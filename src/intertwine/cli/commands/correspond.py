"""``intertwine correspond``: which parameter entries of one network are which of another."""

from dataclasses import dataclass
from pathlib import Path

from .._options import ExampleOptions, option


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

    a: Path
    b: Path
    model: str | None = None
    model_b: str | None = option(None, "Model of B, where it is another than A's.", metavar="MODEL")
    device: str = "cpu"
    out: Path | None = option(None, "Write a page (.html) or the table (.json, .parquet).", metavar="FILE")
    as_json: bool = False

    suffixes = (".html", ".json", ".parquet")
