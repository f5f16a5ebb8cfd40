"""Options that several commands share."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from ._checks import check, check_method, check_suffix
from ._values import words

ADVANCED = "Advanced options"

MODEL_HELP = (
    "Built-in name (resnet20, myrtle_cnn:width=512), package.module:factory or path/to/file.py:factory "
    "(with arguments: module:factory:width=3,bias=false), or hf:DIRECTORY. A factory is code, and is run: name only "
    "files and packages that you trust. Of a directory no code is run."
)
DATA_HELP = (
    "digits, cifar10[:PATH], cifar100[:PATH], parquet:PATH, npz:PATH, images:DIR, imagenet:DIR, dataset:DIR (as "
    "save_to_disk of the datasets library writes it) or text:FILE (by the model's tokenizer)."
)

Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or another torch device.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
OutFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for results.json, results.parquet, report.html.")
]


def advanced(*names: str, **settings: Any) -> Any:
    """An option that most people never need: help lists it under a heading of its own."""
    return typer.Option(*names, rich_help_panel=ADVANCED, **settings)


@dataclass(frozen=True)
class Options:
    """Base of the options of one command: its fields are the arguments and options, its docstring is the help."""

    line: str = field(default="", kw_only=True)  # The command line as text, for results to remember

    suffixes: ClassVar[tuple[str, ...]] = ()  # of the file of --out; an empty one for a folder
    methods: ClassVar[tuple[str, ...]] = ()  # of --method, beside the solvers
    unlike: ClassVar[tuple[str, ...]] = ()  # fields that mean something else than in other commands

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported."""
        for f in fields(self):
            if f.name not in self.unlike:
                check(f.name, getattr(self, f.name))
        if self.suffixes:
            check_suffix(getattr(self, "out", None), self.suffixes)
        if self.methods:
            check_method(getattr(self, "method", ""), self.methods)


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Base of the options of a command that reads data."""

    data: Annotated[str | None, typer.Option("--data", metavar="DATA", help=DATA_HELP)] = None
    size: Annotated[
        str | None,
        advanced(
            "--size",
            metavar="PIXELS|HxW",
            help="Images: the shorter side resized to this and a square cut out, or height and width; what the model's "
            "own preprocessing says otherwise.",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        advanced("--max-length", min=2, help="Text: tokens of each block; 128, or the model's most, otherwise."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExampleOptions(DataOptions):
    """Base of the options of a command that needs one example, and maybe data."""

    input_shape: Annotated[
        str | None, typer.Option("--input-shape", metavar="N,C,H,W", help="Shape of a random example, batch first.")
    ] = None
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=1, help="The example holds token numbers below this, not real numbers."),
    ] = None


def split_commas(values: list[str] | None, option: str) -> list[str] | None:
    """Words of an option that may be repeated and may hold several, joined by commas; ``None`` without."""
    return words(values, option) or None
