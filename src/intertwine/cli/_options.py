"""Options of commands as dataclass fields; options that several commands share are declared here once, by name."""

from abc import ABC, abstractmethod
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, dataclass_transform

import typer

from .._words import read
from ._checks import check, check_method, check_suffix

ADVANCED = "Advanced options"
Declared: TypeAlias = partial[Any]  # of typer.Option or typer.Argument

_CHECKPOINT = "safetensors or their index, a torch file of tensors, or a Hugging Face directory."


def option(help: str, default: Any = None, *names: str, **settings: Any) -> Any:
    """An option.

    Args:
        help: What it is for.
        default: Its value where it is left out; ``...`` where it must be given.
        names: Its names, if not the field's name; a boolean that is false by default has no ``--no-`` form.
        settings: Of ``typer.Option``, such as ``min``.
    """
    return _field(default, partial(typer.Option, *names, help=help, **settings))


def advanced(help: str, default: Any = None, *names: str, **settings: Any) -> Any:
    """An option that most people never need; the help lists it under a separate heading."""
    return option(help, default, *names, rich_help_panel=ADVANCED, **settings)


def argument(help: str, default: Any = None, **settings: Any) -> Any:
    """A positional argument."""
    return _field(default, partial(typer.Argument, help=help, **settings))


def _field(default: Any, declared: Declared) -> Any:
    return field(default=MISSING if default is ... else default, metadata={"declared": declared})


def declared(f: Field[Any]) -> Declared:
    """Declaration of a field: its own, or the one that all commands share for its name."""
    found: Declared = (f if "declared" in f.metadata else _SHARED[f.name]).metadata["declared"]
    return found


_SHARED: dict[str, Field[Any]] = {
    "a": argument(f"Checkpoint A: {_CHECKPOINT}", ..., metavar="A"),
    "b": argument("Checkpoint B, likewise.", ..., metavar="B"),
    "checkpoints": argument(f"Checkpoints, each of them {_CHECKPOINT}", ..., metavar="A B [C ...]"),
    "model": option(
        "Built-in name (resnet20, myrtle_cnn:width=512), package.module:factory or path/to/file.py:factory "
        "(with arguments: module:factory:width=3,bias=false), or hf:DIRECTORY. A factory is code, and is run: "
        "name only files and packages that you trust. No code of a directory is run.",
        metavar="MODEL",
    ),
    "model_b": option("Model of B, if it differs from A's.", metavar="MODEL"),
    "layers_b": advanced("Layers of B, if they differ from A's."),
    "interpolation": advanced("linear or spherical."),
    "sharded": advanced("Read each tensor only when it is needed (safetensors); the networks are not run."),
    "split": option("Split of the data to use: train, validation, test or all."),
    "examples": advanced("Use at most this many examples of each split.", min=4),
    "batch_size": advanced("Examples run at once.", min=2),
    "seed": option("Seed of all random numbers.", min=0),
    "device": option("auto, cpu, cuda or another torch device."),
    "out": option("Folder for results.json, results.parquet, report.html.", metavar="DIR"),
    "as_json": option("Print JSON, and nothing else, on standard output.", None, "--json"),
}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, advanced, argument))
@dataclass(frozen=True, kw_only=True)
class Options(ABC):
    """Base of all commands: its fields are the arguments and options, its docstring is the help, a call runs it.

    Wrong values are refused on construction, before torch is imported. Subclasses become dataclasses automatically.
    """

    line: str = ""  # The command line as text, for results to record
    as_json: bool = False

    python: ClassVar[str] = ""  # the same in Python, for the help
    suffixes: ClassVar[tuple[str, ...]] = ()  # of the file of --out; an empty one for a folder
    methods: ClassVar[tuple[str, ...] | None] = None  # of --method besides the solvers; None if it names no solver
    unlike: ClassVar[tuple[str, ...]] = ()  # fields whose meaning differs from other commands

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.name not in self.unlike:
                check(f.name, getattr(self, f.name))
        if self.suffixes:
            check_suffix(getattr(self, "out", None), self.suffixes)
        if self.methods is not None:
            check_method(getattr(self, "method", ""), self.methods)

    @abstractmethod
    def __call__(self) -> None: ...

    @property
    def reads(self) -> list[Path]:
        """The checkpoints that the command line names."""
        given = [getattr(self, name, None) or [] for name in ("a", "b", "like", "weights", "checkpoints", "paths")]
        return [path for one in given for path in (one if isinstance(one, list) else [one])]


class DeviceOptions(Options):
    """Base of the options of a command that draws random numbers and computes on a device."""

    seed: int = 0
    device: str = "auto"


class ImageOptions(Options):
    """Base of the options of a command that may read images."""

    mean: str | None = advanced(
        "Images: mean of each channel to subtract, on a scale of 0 to 1. Default: from the card or preprocessor."
    )
    std: str | None = advanced("Images: standard deviation of each channel to divide by, likewise.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mean is None) != (self.std is None):
            raise ValueError("--mean and --std must be given together. Got one of them.")
        if self.statistics is not None and len(self.statistics[0]) != len(self.statistics[1]):
            raise ValueError(f"--mean and --std must be equally many numbers. Got {self.mean!r} and {self.std!r}.")
        if self.statistics is not None and not (
            all(map(isfinite, self.statistics[0])) and all(0 < value < inf for value in self.statistics[1])
        ):
            raise ValueError(f"--mean must be finite, and --std positive. Got {self.mean!r} and {self.std!r}.")

    @property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Means and deviations that were asked for."""
        if self.mean is None or self.std is None:
            return None
        return tuple(read("numbers", "--mean", self.mean)), tuple(read("numbers", "--std", self.std))


class DataOptions(ImageOptions):
    """Base of the options of a command that opens networks and may read data."""

    model: str | None = None
    data: str | None = option(
        "digits, cifar10[:PATH], cifar100[:PATH], parquet:PATH, npz:PATH, images:DIR, imagenet:DIR, dataset:DIR (as "
        "save_to_disk of the datasets library writes it) or text:FILE (by the model's tokenizer).",
        metavar="DATA",
    )
    size: str | None = advanced(
        "Images: length to resize the shorter side to before a square crop, or height and width. Default: as the "
        "model's own preprocessing says.",
        metavar="PIXELS|HxW",
    )
    tokenizer: str | None = advanced(
        "Text: how to tokenise it if the model's directory has no tokenizer.json: bytes, chars (one token for each "
        "character), or a directory or tokenizer.json.",
        metavar="bytes|chars|PATH",
    )
    max_length: int | None = advanced("Text: tokens in a block. Default: 128, or the model's maximum if less.", min=2)


class ExampleOptions(DataOptions):
    """Base of the options of a command that needs one example and may read data."""

    input_shape: str | None = option("Shape of a random example, batch first.", metavar="N,C,H,W")
    tokens: int | None = option("Make the example of token ids below this number, not of real numbers.", min=1)


class TrainingOptions(DataOptions):
    """Base of the options of a command that trains by a recipe."""

    recipe: str | None = advanced(
        "Named settings: paper, digits, cct, or the second paper's c4gap, cnn_gap, c1gap, c1gap_long and vgg_resnet. "
        "Default: chosen by the size of the inputs."
    )
    epochs: int | None = option("Passes over the training data.", min=1)
    train_examples: int | None = advanced("Use at most this many training examples. Default: all.", min=1)
    batch_size: int | None = advanced("Examples in each training step.", min=1)
    learning_rate: float | None = advanced("Initial learning rate.", min=0)
    resume: bool = option(
        "Resume an interrupted run, or start again and replace what is there.", True, "--resume/--restart"
    )


class NetworkOptions(ExampleOptions):
    """Base of the options of a command about one architecture."""

    network: str | None = argument(
        "A model in the form that --model takes, or a checkpoint that names its own.", metavar="[MODEL]"
    )
    meta: bool = option("Build the model without weights: any size fits.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.network is None) == (self.model is None):
            given = "none" if self.model is None else f"{self.network!r} and {self.model!r}"
            raise ValueError(f"MODEL must be given once. Got {given}. Say resnet20, for example, or hf:DIRECTORY.")
