"""Frank-Wolfe over all spaces at once (Crisostomi et al. 2024, "C²M³", algorithm 1, for two networks).

All permutations are relaxed to doubly stochastic matrices. Each step goes towards the element that is best for the
linearised objective, so that all spaces move together, by the length that is best along the way; the objective is a
polynomial there, and is maximised exactly. At the end the soft element is rounded, and coordinate descent polishes it.

Differs from the paper: starts besides the identity (the mean of all permutations, and similar weight profiles), signs
and rotations are relaxed too, and the result is polished.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...symmetry.transformation import Transformation, identity
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem
from .coordinate_descent import CoordinateDescent, default, descend
from .soft_elements import Soft, barycentre, gradient, mixed, objective, of_element, vertex
from .solver import Findings, Solver
from .starts import profiles


@dataclass(frozen=True)
class FrankWolfe(Solver):
    """Maximises ``Σ <a, g b>`` in balanced coordinates, all spaces at once.

    Attributes:
        restarts: Number of starts, up to three: the mean of all elements, similar weight profiles, the identity.
        steps: Largest number of steps.
        tolerance: Relative gain of a step below which the climb ends.
        polish: Whether coordinate descent follows.
        fast: Whether to use the assignment of the extra ``[fast]``.
        dtype: Precision of the matrices; that of the weights by default.
    """

    name: ClassVar[str] = "frank-wolfe"

    restarts: int = 3
    steps: int = 100
    tolerance: float = 1e-7
    polish: bool = True
    fast: bool = False
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        if not 1 <= self.restarts <= 3:
            raise ValueError(f"restarts must be 1, 2 or 3. Got {self.restarts}.")

    def search(self, networks: Networks) -> Findings:
        """The best end of all starts."""
        stated = networks.problem(self.dtype)
        makers = [
            lambda: barycentre(stated),
            lambda: of_element(stated, profiles(stated, self.fast)),
            lambda: of_element(stated, identity(stated.sym)),
        ]
        found = [self._from(stated, make(), networks.seed) for make in makers[: self.restarts]]
        best, history = max(found, key=lambda one: one[1][-1])
        start = default(stated, networks.seed, self.fast)
        reached = tuple(h[-1] for _, h in found)
        return Findings(stated.sym, stated.objective, (best, start), stated.lift, history, reached)

    def _from(self, stated: Problem, start: Soft, seed: int) -> tuple[Transformation, tuple[float, ...]]:
        """The element that one start leads to, and the objective along the way."""
        soft, history = climb(stated, start, self.steps, self.tolerance, self.fast)
        g = vertex(stated, soft, self.fast)
        if self.polish:
            g = descend(stated, g, torch.Generator().manual_seed(seed), CoordinateDescent(fast=self.fast)).g
        return g, (*history, stated.objective(g))


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
