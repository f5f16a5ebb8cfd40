"""Solvers of ``--method NAME[:option=value,...]``."""

import json
from dataclasses import fields, replace

from ..matching import METHODS, Solver


def options_of(solver: Solver) -> list[str]:
    """The options of a solver that are numbers or truths, not kinds of numbers."""
    plain = [f.name for f in fields(solver) if isinstance(getattr(solver, f.name), int | float | None)]
    return [name for name in plain if name != "dtype"]


def solver_of(spec: str) -> str | Solver:
    """The solver that a method names, with the options that follow a colon, such as ``sinkhorn:steps=300,rate=0.05``.

    Args:
        spec: A name of ``matching.METHODS`` with or without options, or any other that the command takes; the options
            of the command line have checked it.
    """
    name, colon, text = spec.partition(":")
    if not colon:
        return spec
    given = dict(part.split("=") for part in filter(None, text.split(",")))
    return replace(METHODS[name], **{key.strip(): json.loads(value) for key, value in given.items()})
