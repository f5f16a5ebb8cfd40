"""Commands: each a dataclass with its options, its help, its call to the library and its printed text.

Modules that load torch are imported on first use: help and the refusal of wrong words need no torch.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from ..._words import named_values
from .._catalogue import catalogue
from .._options import Options, option
from .._outputs import claim_file, claim_folder, print_json, say, tell_written

if TYPE_CHECKING:
    import torch

    import intertwine as iw

    from .. import inputs
else:

    class _Later(ModuleType):
        """A module that is imported when one of its attributes is first used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name__), name)

    torch, iw, inputs = map(_Later, ("torch", "intertwine", "intertwine.cli.inputs"))

__all__ = ["Finding", "Study", "inputs", "iw", "looks_at_data", "solver_of", "torch"]


class Finding(Options):
    """Base of a command that prints its result, and writes the page or the data to ``--out`` if given."""

    suffixes: ClassVar[tuple[str, ...]] = (".html", ".htm", ".json", ".parquet")

    out: Path | None = option("Write the page (.html) or data (.json, .parquet).", metavar="FILE")

    @abstractmethod
    def find(self) -> Any:
        """The result."""

    def plain(self, found: Any) -> Any:
        """The result as it is printed with ``--json``."""
        return found.to_dict()

    def words(self, found: Any) -> str:
        """The result as it is printed for people."""
        summary: str = found.summary()
        return summary

    def code(self, found: Any) -> int:
        """The exit code."""
        return 0

    def write(self, found: Any) -> dict[str, Path]:
        """Written files by name; a result's own ``write`` method is for the formats of other tools."""
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


def solver_of(spec: str) -> str | iw.matching.Solver:
    """The solver that a method names, with the options that follow a colon, such as ``sinkhorn:steps=300,rate=0.05``.

    Args:
        spec: A name of ``matching.METHODS`` with or without options, or another method that the command takes;
            already checked.
    """
    name, colon, text = spec.partition(":")
    if not colon:
        return spec
    kinds: dict[str, str] = catalogue()["methods"][name]
    given = {k: value if kinds[k] == "text" else _number(value) for k, value in named_values(text, spec)}
    return replace(iw.matching.METHODS[name], **given)


def _number(text: str) -> Any:
    """A boolean, ``None`` or a number, which is an integer if it has no point: ``1e+3`` means 1000 steps."""
    if text in ("true", "false", "null"):
        return json.loads(text)
    return int(float(text)) if "." not in text and float(text).is_integer() else float(text)


def looks_at_data(method: str) -> bool:
    """Whether an alignment method runs the networks on data."""
    return method.partition(":")[0] in ("activations", "mixed", "straight-through", "learned")
