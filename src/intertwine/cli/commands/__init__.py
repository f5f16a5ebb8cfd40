"""Commands: each a dataclass with its options, its help, its call of the library and its words.

What loads torch is loaded when a command first uses it: help and the refusal of wrong words need no torch.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from .._options import ExampleOptions, Options, option
from .._outputs import claim, claim_file, claim_folder, print_json, say, tell_written, write_network

if TYPE_CHECKING:
    import torch

    import intertwine as iw

    from .. import inputs
else:

    class _Later(ModuleType):
        """A module that is imported when something of it is used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name__), name)

    torch, iw, inputs = map(_Later, ("torch", "intertwine", "intertwine.cli.inputs"))

__all__ = ["Finding", "Rewriting", "Rewritten", "Study", "inputs", "iw", "looks_at_data", "solver_of", "torch"]


class Finding(Options):
    """Base of a command that prints what it finds, and writes its page or its data where ``--out`` says so."""

    suffixes: ClassVar[tuple[str, ...]] = (".html", ".htm", ".json", ".parquet")

    out: Path | None = option("Write the page (.html) or data (.json, .parquet).", metavar="FILE")

    @abstractmethod
    def find(self) -> Any:
        """The result."""

    def plain(self, found: Any) -> Any:
        """What is printed as JSON."""
        return found.to_dict()

    def words(self, found: Any) -> str:
        """What is printed for people."""
        summary: str = found.summary()
        return summary

    def code(self, found: Any) -> int:
        """The exit code."""
        return 0

    def write(self, found: Any) -> dict[str, Path]:
        """Files by name; ``write`` of a result is for other tools."""
        if self.out is None:
            return {}
        write = found.to_html if self.out.suffix in (".html", ".htm") else getattr(found, "write", found.save)
        return {"out": write(self.out)}

    def __call__(self) -> None:
        claim_file(self.out, self.reads)
        found = self.find()
        tell_written(self.write(found))
        print_json(self.plain(found)) if self.as_json else say(self.words(found))
        if code := self.code(found):
            raise typer.Exit(code)


class Study(Finding):
    """Base of a command that writes results.json, results.parquet and report.html into the folder ``--out``."""

    suffixes = ()
    results: ClassVar[tuple[str, ...]] = ("results.json", "results.parquet")
    writes: ClassVar[tuple[str, ...]] = ()  # beside them

    out: Path

    def write(self, found: Any) -> dict[str, Path]:
        files = {name: found.save(self.out / name) for name in self.results}
        return {**files, "report.html": found.to_html(self.out / "report.html")}

    def __call__(self) -> None:
        claim_folder(self.out, [*self.results, "report.html", *self.writes], self.reads)
        found = self.find()
        files = self.write(found)
        if self.as_json:
            return print_json({"kind": type(found).__name__, **self.plain(found), "files": files})
        say(self.words(found))
        return tell_written(files)


@dataclass(frozen=True)
class Rewritten:
    """A network that was written anew."""

    model: torch.nn.Module
    text: str  # what is said of it
    data: dict[str, Any]  # the same as JSON
    recipe: dict[str, Any]  # how its card says that it was made
    sizes: str = ""  # what its card says of sizes that its architecture does not have


class Rewriting(ExampleOptions):
    """Base of a command that writes the last network that it reads with other weights, for the code of the first."""

    suffixes = (".safetensors", "")

    a: Path
    out: Path = option("FILE.safetensors, or a folder for a model of transformers.", ..., metavar="PATH")

    @abstractmethod
    def rewrite(self, group: inputs.Group) -> Rewritten: ...

    def check_added(self, added: Sequence[str]) -> None:
        biases = [name for name in added if name.endswith(".bias")]
        if biases and self.out.suffix != ".safetensors":
            raise ValueError(
                "--out must end in .safetensors for this model: folding adds biases that its class does not have, such "
                f"as {', '.join(biases[:3])}. Got the folder {str(self.out)!r}. Or say --no-extend, which adds none."
            )

    def __call__(self) -> None:
        claim(self.out, self.reads)
        group = inputs.open_group(self.reads, self, "if given")
        made = self.rewrite(group)
        card = group.card({**made.recipe, "command": self.line})
        card["architecture"] = f"{made.sizes}{card['architecture']}"
        written = write_network(made.model, self.out, card, self.reads[-1])
        print_json({**made.data, "written": written}) if self.as_json else say(made.text)
        tell_written({"written": written})


def solver_of(spec: str) -> str | iw.matching.Solver:
    """The solver that a method names, with the options that follow a colon, such as ``sinkhorn:steps=300,rate=0.05``.

    Args:
        spec: A name of ``matching.METHODS`` with or without options, or any other that the command takes; the options
            of the command line have checked it.
    """
    name, colon, text = spec.partition(":")
    if not colon:
        return spec
    given = dict(part.split("=") for part in filter(None, text.split(",")))
    return replace(iw.matching.METHODS[name], **{key.strip(): json.loads(value) for key, value in given.items()})


def looks_at_data(method: str) -> bool:
    """Whether a way to align runs the networks on data."""
    return method.partition(":")[0] in ("activations", "mixed", "straight-through", "learned")
