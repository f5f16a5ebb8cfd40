"""One file a command: its options, its call of the library, its words.

What loads torch is loaded when a command first uses it: help and the refusal of wrong words need no torch.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

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

__all__ = ["inputs", "iw", "solver_of", "torch"]


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
