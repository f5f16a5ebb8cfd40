"""Solvers of ``--method NAME[:option=value,...]``."""

import json
from dataclasses import fields, replace
from typing import Any

from .._words import near
from ..matching import Solver


def solver_of(spec: str, others: tuple[str, ...] = ()) -> str | Solver:
    """The solver that a method names, with the options that follow a colon, such as ``sinkhorn:steps=300,rate=0.05``.

    Args:
        spec: A name of ``matching.METHODS`` with or without options, or one of ``others``.
        others: Further names that the command takes.

    Raises:
        ValueError: If there is no such method, or no such option.
    """
    from ..matching import METHODS

    name, _, text = spec.partition(":")
    if spec in others or spec in METHODS:
        return spec
    if name not in METHODS:
        allowed = ", ".join([*METHODS, *others])
        raise ValueError(f"--method must be one of {allowed}. Got {spec!r}.{near(name, [*METHODS, *others])}")
    solver = METHODS[name]
    known = [f.name for f in fields(solver) if isinstance(getattr(solver, f.name), int | float | None)]
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise ValueError(f"options of {name} must be among {', '.join(known)}. Got {part!r}.")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(f"options must be numbers, true or false. Got {part!r}.") from None
    return replace(solver, **options)
