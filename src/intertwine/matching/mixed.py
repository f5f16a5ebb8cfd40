"""Aligning by weights and activations together, each with half of the say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import activations

if TYPE_CHECKING:
    from .task import Found, Task

__all__ = ["solve"]


def solve(task: Task) -> Found:
    """``activations.solve`` with ``share=0.5`` unless the options say otherwise."""
    return activations.solve(replace(task, options={"share": 0.5, **task.options}))
