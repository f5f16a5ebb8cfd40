"""``intertwine mappings``: what quantisers, pruners and mergers need of a model's symmetry."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import ExampleOptions, Json, Model


@dataclass(frozen=True)
class MappingsOptions(ExampleOptions):
    """Write the symmetries of a model as another tool takes them, each entry proved on numbers.

    Prints every mapping as patterns of module names with its proof, and for what is not listed the reason. A model
    without weights, or too large, is proved on a small one of its class.

    Example:
      intertwine mappings hf:DIRECTORY --format llm-compressor --meta --out recipe.yaml
      intertwine mappings mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out page.html
    """

    suffixes = (".yaml", ".yml", ".py", ".json", ".html", ".htm")

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If no model is named, or two are.
        """
        super().check()
        if (self.network is None) == (self.model is None):
            given = "none" if self.model is None else f"{self.network!r} and {self.model!r}"
            raise ValueError(f"MODEL must be given once. Got {given}. Say 'intertwine mappings hf:DIRECTORY'.")

    network: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A model as --model takes it, or a checkpoint that names its own."),
    ] = None
    model: Model = None
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="The tool: llm-compressor, model-optimizer, spinquant, quarot, torch-pruning, perm-spec or graph.",
        ),
    ] = "llm-compressor"
    meta: Annotated[bool, typer.Option("--meta", help="Build the model without weights: any size fits.")] = False
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write for the tool (.yaml, .py, .json), or the page (.html)."),
    ] = None
    as_json: Json = False
