"""Sinkhorn re-basin (Guerrero Peña et al. 2023): gradient ascent through doubly stochastic matrices.

Every space has a matrix of scores ``X``; ``P = Sinkhorn(X / τ)`` is doubly stochastic, and ``Σ <a, P b>`` is maximised
by Adam. The backward pass does not unroll the iterations: it solves the linear system of the fixed point (implicit
differentiation; Luise et al. 2018; Eisenberger et al. 2022). At the end scores are rounded to permutations.

Differs from the paper: float64 in the log domain with a stopping rule instead of a fixed number of iterations, the
temperature falls during the ascent, signs and rotations are learned too, and coordinate descent polishes the result.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...symmetry.transformation import identity
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem
from .coordinate_descent import CoordinateDescent, default, descend
from .soft_elements import Row, Soft, objective, of_element, vertex
from .solver import Findings, Solver

_ITERATIONS = 200
_STOCHASTIC = 1e-6  # largest error of a row sum


@dataclass(frozen=True)
class Sinkhorn(Solver):
    """Maximises ``Σ <a, g b>`` in balanced coordinates by gradient ascent through doubly stochastic matrices.

    Attributes:
        steps: Steps of Adam.
        rate: Learning rate of the scores.
        temperature: Temperature of the last step; it falls geometrically.
        first_temperature: Temperature of the first step.
        polish: Whether coordinate descent follows.
        fast: Whether to use the assignment of the extra ``[fast]`` where scores are rounded.
        dtype: Precision of the weights; their own by default. Sinkhorn's iteration itself runs in float64.
    """

    name: ClassVar[str] = "sinkhorn"

    steps: int = 150
    rate: float = 0.1
    temperature: float = 0.1
    first_temperature: float = 1.0
    polish: bool = True
    fast: bool = False
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        heats = (self.first_temperature, self.temperature)
        if self.steps < 1 or not min(heats) > 0:
            raise ValueError(f"steps and temperatures must be positive. Got {self.steps} and {heats}.")

    def search(self, networks: Networks) -> Findings:
        """The rounded element at the end of the ascent, polished."""
        stated = networks.problem(self.dtype)
        generator = torch.Generator().manual_seed(networks.seed)
        heats = (self.first_temperature, self.temperature)
        soft, history = ascend(stated, generator, self.steps, self.rate, heats)
        g = vertex(stated, soft, self.fast)
        if self.polish:
            g = descend(stated, g, generator, CoordinateDescent(fast=self.fast)).g
        start = default(stated, networks.seed, self.fast)
        history = (*history, stated.objective(g))
        return Findings(stated.sym, stated.objective, (g, start), stated.lift, history)


def ascend(
    stated: Problem,
    generator: torch.Generator,
    steps: int = 150,
    rate: float = 0.1,
    temperature: tuple[float, float] = (1.0, 0.1),
) -> tuple[Soft, tuple[float, ...]]:
    """Gradient ascent over the scores of all spaces.

    Args:
        stated: The problem.
        generator: Draws the first scores, near zero: the mean of all permutations.
        steps: Steps of Adam.
        rate: Learning rate.
        temperature: First and last temperature; it falls geometrically.

    Returns:
        The soft element that was reached and the objective at every step.
    """
    scores = _first_scores(stated, generator)
    size = sum(float(x.double().square().sum()) for x in stated.a.values())
    history, soft = [], of_element(stated, identity(stated.sym))
    if not scores:  # no space has an element of the searched kinds
        return soft, ()
    adam = torch.optim.Adam(list(scores.values()), lr=rate)
    for step in range(steps):
        heat = temperature[0] * (temperature[1] / temperature[0]) ** (step / max(steps - 1, 1))
        with torch.enable_grad():
            soft = _softened(stated, scores, heat, soft)
            value = objective(stated, soft)
            adam.zero_grad()
            (-value / max(size, 1e-300)).backward()
        adam.step()
        history.append(float(value.detach()))
    return {key: matrix.detach() for key, matrix in soft.items()}, tuple(history)


def sinkhorn(scores: Tensor) -> Tensor:
    """The doubly stochastic matrix ``diag(u) exp(X) diag(v)``, ``(..., n, n)``; differentiable.

    Rows and columns are normalised in turn in the log domain until all sums are 1 to 1e-6. The gradient is that of the
    fixed point: with ``G`` the incoming one, ``P ∘ (G - α 1^T - 1 β^T)`` where ``α`` and ``β`` solve
    ``α + P β = (P ∘ G) 1`` and ``P^T α + β = (P ∘ G)^T 1``.

    Args:
        scores: ``X``, float64.

    Returns:
        ``P``.

    Examples:
        >>> sinkhorn(torch.zeros(2, 2, dtype=torch.float64)).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    return _FixedPoint.apply(scores)


class _FixedPoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        logs = scores
        for _ in range(_ITERATIONS):
            logs = logs - logs.logsumexp(-1, keepdim=True)
            logs = logs - logs.logsumexp(-2, keepdim=True)
            if bool(((logs.logsumexp(-1)).abs() < _STOCHASTIC).all()):
                break
        p = logs.exp()
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        weighted = p * slopes[0]
        rows, columns = weighted.sum(-1), weighted.sum(-2)
        n = p.shape[-1]
        # (I - P^T P) beta = columns - P^T rows is singular along the ones; adding them fixes the free constant
        system = torch.eye(n, dtype=p.dtype, device=p.device) - p.mT @ p + 1.0 / n
        system = system + 1e-9 * torch.eye(n, dtype=p.dtype, device=p.device)  # p may be a permutation already
        beta = torch.linalg.solve(system, columns - (p.mT @ rows[..., None])[..., 0])
        alpha = rows - (p @ beta[..., None])[..., 0]
        return weighted - p * (alpha[..., :, None] + beta[..., None, :])


def _first_scores(stated: Problem, generator: torch.Generator) -> dict[tuple[str, Row | str], Tensor]:
    """Scores of assignments, of the signs of every pattern of parities, and of rotations."""
    spaces = {s.name: s for s in stated.sym.spaces}
    found: dict[tuple[str, Row | str], Tensor] = {}
    for (name, row), matrix in of_element(stated, identity(stated.sym)).items():
        kinds: list[Row | str] = []
        if spaces[name].group.mixes:
            kinds = ["rotation"]
        else:
            kinds = (["assignment"] if spaces[name].group.permutes else []) + ([row] if any(row) else [])
        for kind in kinds:
            noise = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
            found[name, kind] = (1e-2 * noise).to(matrix.device).requires_grad_()
    return found


def _softened(stated: Problem, scores: dict[tuple[str, Row | str], Tensor], heat: float, like: Soft) -> Soft:
    """The soft element of some scores."""
    plans = {name: sinkhorn(x / heat) for (name, kind), x in scores.items() if kind == "assignment"}
    found = {}
    for (name, row), matrix in like.items():
        if (name, "rotation") in scores:
            x = scores[name, "rotation"]
            found[name, row] = torch.matrix_exp(x - x.mT).to(matrix.dtype)
            continue
        base = plans.get(name, torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device))
        flips = torch.tanh(scores[name, row] / heat) if (name, row) in scores else 1.0
        found[name, row] = (base * flips).expand(matrix.shape).to(matrix.dtype)
    return found
