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

from .._options import OF_PAGES, ExampleOptions, Options, option, page_or_data
from .._outputs import claim, claim_file, print_json, say, show, tell, write_network, write_one

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

__all__ = ["Finding", "Rewriting", "Rewritten", "inputs", "iw", "solver_of", "torch"]


@dataclass(frozen=True, kw_only=True)
class Finding(Options):
    """Base of a command that prints what it finds, and writes its page or its data where ``--out`` says so."""

    suffixes: ClassVar[tuple[str, ...]] = OF_PAGES

    out: Path | None = page_or_data()

    @abstractmethod
    def find(self) -> Any:
        """The result."""

    def tell(self, found: Any) -> None:
        """Print the result."""
        show(found, self.as_json)

    def __call__(self) -> None:
        claim_file(self.out, self.reads)
        found = self.find()
        write_one(found, self.out)
        self.tell(found)


@dataclass(frozen=True)
class Rewritten:
    """A network that was written anew."""

    model: torch.nn.Module
    text: str  # what is said of it
    data: dict[str, Any]  # the same as JSON
    recipe: dict[str, Any]  # how its card says that it was made
    sizes: str = ""  # what its card says of sizes that its architecture does not have


@dataclass(frozen=True, kw_only=True)
class Rewriting(ExampleOptions):
    """Base of a command that writes the last network that it reads with other weights, for the code of the first."""

    suffixes = (".safetensors", "")

    a: Path
    out: Path = option(..., "FILE.safetensors, or a folder for a model of transformers.", metavar="PATH")

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
        tell(f"wrote {written}")


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
