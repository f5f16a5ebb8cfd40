"""``intertwine symmetries``: the group that an architecture has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import ExampleOptions, Json, Model


@dataclass(frozen=True)
class SymmetriesOptions(ExampleOptions):
    """Find the weight-space symmetries of an architecture, and say what restricts them.

    Prints one line for every hidden space: its size, its group, the generators of scales and signs, and which operation
    takes away the rest. The page draws where in the network each space lives. No weights are needed.

    Example:
      intertwine symmetries resnet20 --out resnet20.html
      intertwine symmetries mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --meta
      intertwine symmetries resnet20 --explain layer1.0.conv1.weight
    """

    suffixes = (".html", ".htm", ".json", ".parquet")

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If no model is named, or two are.
        """
        super().check()
        if (self.network is None) == (self.model is None):
            given = "none" if self.model is None else f"{self.network!r} and {self.model!r}"
            raise ValueError(f"MODEL must be given once. Got {given}. Say 'intertwine symmetries resnet20'.")

    network: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A model as --model takes it, or a checkpoint that names its own."),
    ] = None
    model: Model = None
    meta: Annotated[bool, typer.Option("--meta", help="Build the model without weights: any size fits.")] = False
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="NAME", help="Say of one parameter why each axis moves or stays.")
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the page (.html) or data (.json).")
    ] = None
    as_json: Json = False
