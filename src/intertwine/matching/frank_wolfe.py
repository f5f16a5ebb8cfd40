"""Frank-Wolfe over all spaces at once (Crisostomi et al. 2024, "C²M³", algorithm 1, for two networks).

All permutations are relaxed to doubly stochastic matrices. Each step goes towards the element that is best for the
linearised objective, so that all spaces move together, by the length that is best along the way; the objective is a
polynomial there, and is maximised exactly. At the end the soft element is rounded, and coordinate descent polishes it.

Differs from the paper: starts besides the identity (the mean of all permutations, and similar weight profiles), signs
and rotations are relaxed too, and the result is polished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..symmetry.transformation import identity
from .coordinate_descent import descend
from .problem import problem
from .soft import Soft, barycentre, gradient, hard, mixed, objective, of_element, vertex
from .starts import profiles
from .task import Found, Task, refuse_unknown

if TYPE_CHECKING:
    from .problem import Problem

__all__ = ["climb", "solve"]


def solve(task: Task) -> Found:
    """Maximise ``Σ <a, g b>`` in balanced coordinates.

    Options:
        restarts: Number of starts (3): the mean of all elements, similar weight profiles, the identity.
        steps: Largest number of steps (100).
        tolerance: Relative gain of a step below which the climb ends (1e-7).
        polish: Whether coordinate descent follows (True).
        fast: Use the assignment of the extra ``[fast]``.
        dtype: Precision of the matrices; that of the weights by default.

    Raises:
        ValueError: If there is no such number of starts.
    """
    known = {"restarts": 3, "steps": 100, "tolerance": 1e-7, "polish": True, "fast": False, "dtype": None}
    refuse_unknown(task.options, known)
    options = {**known, **task.options}
    if not 1 <= options["restarts"] <= 3:
        raise ValueError(f"restarts must be 1, 2 or 3. Got {options['restarts']}.")
    stated = problem(task, options["dtype"])
    makers = [
        lambda: barycentre(stated),
        lambda: of_element(stated, profiles(stated, options["fast"])),
        lambda: of_element(stated, identity(stated.sym)),
    ]
    best, histories, reached = None, [], []
    for make in makers[: options["restarts"]]:
        soft, history = climb(stated, make(), options["steps"], options["tolerance"], options["fast"])
        g = hard(stated, soft, options["fast"])
        if options["polish"]:
            order = torch.Generator().manual_seed(task.seed)
            g = descend(stated, g, order, fast=options["fast"]).g
        reached.append(stated.objective(g))
        histories.append((*history, reached[-1]))
        best = g if best is None or reached[-1] > max(reached[:-1]) else best
    assert best is not None
    top = max(range(len(reached)), key=lambda k: reached[k])
    return Found(stated.lift(best), reached[top], histories[top], tuple(reached))


def climb(
    stated: Problem, soft: Soft, steps: int = 100, tolerance: float = 1e-7, fast: bool = False
) -> tuple[Soft, tuple[float, ...]]:
    """Go up from a soft element until the objective hardly rises.

    Args:
        stated: The problem.
        soft: Where to start.
        steps: Largest number of steps.
        tolerance: Relative gain of a step below which the climb ends.
        fast: As in ``assign``.

    Returns:
        The soft element that was reached and the objective at every step.
    """
    history: list[float] = []
    degree = max((len(m.block.leaves) for members in stated.members.values() for m in members), default=1)
    for _ in range(steps):
        value, slopes = gradient(stated, soft)
        history.append(value)
        towards = of_element(stated, vertex(stated, slopes, fast))
        ratio, gain = _line_search(stated, soft, towards, value, min(degree, 4))
        if ratio == 0 or gain <= tolerance * abs(value):
            break
        soft = mixed(soft, towards, ratio)
    return soft, tuple(history)


def _line_search(stated: Problem, x: Soft, y: Soft, start: float, degree: int) -> tuple[float, float]:
    """The ratio in [0, 1] at which the objective is largest between two soft elements, and the gain there.

    Along the way the objective is a polynomial whose degree is the number of moved dimensions of a tensor, at most
    ``degree``; it is interpolated at that many points and maximised on a grid, which holds both ends.
    """
    points = torch.linspace(0, 1, degree + 1, dtype=torch.float64)
    with torch.no_grad():
        values = [start, *(float(objective(stated, mixed(x, y, float(r)))) for r in points[1:])]
    powers = points[:, None] ** torch.arange(degree + 1)
    coefficients = torch.linalg.solve(powers, torch.tensor(values, dtype=torch.float64) - start)
    grid = torch.linspace(0, 1, 201, dtype=torch.float64)
    heights = (grid[:, None] ** torch.arange(degree + 1)) @ coefficients
    best = int(heights.argmax())
    return float(grid[best]), float(heights[best])
