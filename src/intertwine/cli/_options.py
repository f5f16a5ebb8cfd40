"""Options that several commands share."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ._checks import check

__all__ = [
    "ADVANCED", "Data", "Device", "InputShape", "Json", "Model", "Options", "OutFolder", "Seed", "Tokens", "advanced",
    "split_commas",
]  # fmt: skip

ADVANCED = "Advanced options"

MODEL_HELP = (
    "Built-in name (resnet20, myrtle_cnn:width=512), package.module:factory or path/to/file.py:factory "
    "(with arguments: module:factory:width=3,bias=false), or hf:DIRECTORY. A factory is code, and is run: name only "
    "files and packages that you trust. Of a directory no code is run."
)
DATA_HELP = "digits, cifar10[:PATH], cifar100[:PATH], parquet:PATH, npz:PATH or images:DIR."

Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)]
Data = Annotated[str | None, typer.Option("--data", metavar="DATA", help=DATA_HELP)]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or another torch device.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
OutFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for results.json, results.parquet, report.html.")
]
InputShape = Annotated[
    str | None, typer.Option("--input-shape", metavar="N,C,H,W", help="Shape of a random example, batch first.")
]
Tokens = Annotated[
    int | None, typer.Option("--tokens", min=1, help="The example holds token numbers below this, not real numbers.")
]


@dataclass(frozen=True)
class Options:
    """Base of the options of one command: its fields are the arguments and options, its docstring is the help.

    Attributes:
        line: The command line as text, for results to remember.
    """

    line: str = field(default="", kw_only=True)

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported."""
        for f in fields(self):
            check(f.name, getattr(self, f.name))


def advanced(*names: str, **settings: Any) -> Any:
    """An option that most people never need: help lists it under a heading of its own."""
    return typer.Option(*names, rich_help_panel=ADVANCED, **settings)


def split_commas(values: list[str] | None, option: str) -> list[str] | None:
    """Words of an option that may be repeated and may hold several, joined by commas.

    Raises:
        ValueError: If it was given without any word, as an unset shell variable does.
    """
    if not values:
        return None
    words = [word.strip() for value in values for word in value.split(",") if word.strip()]
    if not words:
        raise ValueError(f"{option} must hold names joined by commas. Got {','.join(values)!r}, without any.")
    return words
