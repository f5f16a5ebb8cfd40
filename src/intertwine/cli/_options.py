"""Options of commands as fields of dataclasses; those that several commands have stand here once, by name."""

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
        names: What it is called, where that is not the name of the field; a truth that is false has no ``--no-``.
        settings: Of ``typer.Option``, such as ``min``.
    """
    return _field(default, partial(typer.Option, *names, help=help, **settings))


def advanced(help: str, default: Any = None, *names: str, **settings: Any) -> Any:
    """An option that most people never need: help lists it under a heading of its own."""
    return option(help, default, *names, rich_help_panel=ADVANCED, **settings)


def argument(help: str, default: Any = None, **settings: Any) -> Any:
    """A word without an option's name."""
    return _field(default, partial(typer.Argument, help=help, **settings))


def _field(default: Any, declared: Declared) -> Any:
    return field(default=MISSING if default is ... else default, metadata={"declared": declared})


def declared(f: Field[Any]) -> Declared:
    """What a field declares itself, or what all commands mean by its name."""
    found: Declared = (f if "declared" in f.metadata else _SHARED[f.name]).metadata["declared"]
    return found


_SHARED: dict[str, Field[Any]] = {
    "a": argument(f"Checkpoint A: {_CHECKPOINT}", ..., metavar="A"),
    "b": argument("Checkpoint B, likewise.", ..., metavar="B"),
    "checkpoints": argument(f"Checkpoints, each of them {_CHECKPOINT}", ..., metavar="A B [C ...]"),
    "model": option(
        "Built-in name (resnet20, myrtle_cnn:width=512), package.module:factory or path/to/file.py:factory "
        "(with arguments: module:factory:width=3,bias=false), or hf:DIRECTORY. A factory is code, and is run: "
        "name only files and packages that you trust. Of a directory no code is run.",
        metavar="MODEL",
    ),
    "model_b": option("Model of B, where it is not that of A.", metavar="MODEL"),
    "layers_b": advanced("Layers of B, where they are not those of A."),
    "interpolation": advanced("linear or spherical."),
    "sharded": advanced("Read tensors when they are needed (safetensors); the networks are not run."),
    "split": option("Which split: train, validation, test or all."),
    "examples": advanced("Use so many examples of each split at most.", min=4),
    "batch_size": advanced("Examples that run at once.", min=2),
    "seed": option("Seed of everything random.", min=0),
    "device": option("auto, cpu, cuda or another torch device."),
    "out": option("Folder for results.json, results.parquet, report.html.", metavar="DIR"),
    "as_json": option("Print JSON, and nothing else, on standard output.", None, "--json"),
}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, advanced, argument))
@dataclass(frozen=True, kw_only=True)
class Options(ABC):
    """Base of all commands: its fields are the arguments and options, its docstring is the help, a call runs it.

    What cannot be right is refused when it is made, before torch is imported. Subclasses are dataclasses by themselves.
    """

    line: str = ""  # The command line as text, for results to remember
    as_json: bool = False

    python: ClassVar[str] = ""  # the same in Python, for the help
    suffixes: ClassVar[tuple[str, ...]] = ()  # of the file of --out; an empty one for a folder
    methods: ClassVar[tuple[str, ...] | None] = None  # of --method beside the solvers; None where it means no solver
    unlike: ClassVar[tuple[str, ...]] = ()  # fields that mean something else than in other commands

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
        """The checkpoints that are named."""
        given = [getattr(self, name, None) or [] for name in ("a", "b", "like", "weights", "checkpoints", "paths")]
        return [path for one in given for path in (one if isinstance(one, list) else [one])]


class DeviceOptions(Options):
    """Base of the options of a command that draws random numbers, and computes on a device."""

    seed: int = 0
    device: str = "auto"


class ImageOptions(Options):
    """Base of the options of a command that may read images."""

    mean: str | None = advanced(
        "Images: mean of each channel, on the scale 0 to 1, to subtract; what card or preprocessor says otherwise."
    )
    std: str | None = advanced("Images: deviation of each channel to divide by, likewise.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mean is None) != (self.std is None):
            raise ValueError("--mean and --std must be given together. Got one of them.")
        if self.statistics is not None and [*map(len, self.statistics)] not in ([1, 1], [3, 3]):
            raise ValueError(
                f"--mean and --std must be as many numbers, 1 or 3 of each. Got {self.mean!r} and {self.std!r}."
            )
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
    """Base of the options of a command that opens networks, and maybe reads data."""

    model: str | None = None
    data: str | None = option(
        "digits, cifar10[:PATH], cifar100[:PATH], parquet:PATH, npz:PATH, images:DIR, imagenet:DIR, dataset:DIR (as "
        "save_to_disk of the datasets library writes it) or text:FILE (by the model's tokenizer).",
        metavar="DATA",
    )
    size: str | None = advanced(
        "Images: the shorter side resized to this and a square cut out, or height and width; what the model's own "
        "preprocessing says otherwise.",
        metavar="PIXELS|HxW",
    )
    tokenizer: str | None = advanced(
        "Text: how to read it where the model's directory has no tokenizer.json: bytes, chars (the characters of the "
        "text in order), or a directory or tokenizer.json.",
        metavar="bytes|chars|PATH",
    )
    max_length: int | None = advanced("Text: tokens of each block; 128, or the model's most, otherwise.", min=2)


class ExampleOptions(DataOptions):
    """Base of the options of a command that needs one example, and maybe data."""

    input_shape: str | None = option("Shape of a random example, batch first.", metavar="N,C,H,W")
    tokens: int | None = option("The example holds token numbers below this, not real numbers.", min=1)


class TrainingOptions(DataOptions):
    """Base of the options of a command that trains by a recipe."""

    recipe: str | None = advanced(
        "Named settings: paper, digits, cct, or the second paper's c4gap, cnn_gap, c1gap, c1gap_long and vgg_resnet. "
        "By the size of the inputs otherwise."
    )
    epochs: int | None = option("Passes over the training data.", min=1)
    train_examples: int | None = advanced("Training examples, at most; all by default.", min=1)
    batch_size: int | None = advanced("Examples of each step.", min=1)
    learning_rate: float | None = advanced("Initial learning rate.", min=0)
    resume: bool = option(
        "Go on after an interruption, or begin anew and replace what is there.", True, "--resume/--restart"
    )


class NetworkOptions(ExampleOptions):
    """Base of the options of a command about one architecture."""

    network: str | None = argument(
        "A model as --model takes it, or a checkpoint that names its own.", metavar="[MODEL]"
    )
    meta: bool = option("Build the model without weights: any size fits.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.network is None) == (self.model is None):
            given = "none" if self.model is None else f"{self.network!r} and {self.model!r}"
            raise ValueError(f"MODEL must be given once. Got {given}. Say resnet20, for example, or hf:DIRECTORY.")
