"""Relaxed solvers: permutations become doubly stochastic matrices, so that the objective can be differentiated.

A space with signs has one matrix for every pattern of parities in which its signs reach a tensor: ``P`` where no sign
does, and ``diag(s) P`` where one does. They are relaxed together: the entries of ``diag(s) P`` may shrink below those
of ``P``. Orthogonal matrices are relaxed to contractions. Since all cost matrices are gradients, the linear problem at
a point is one assignment (or one singular value decomposition) for each space. The result is rounded at the end and
polished by coordinate descent.

Frank-Wolfe (Crisostomi et al. 2024, "C²M³", algorithm 1, for two networks) moves towards the element that is best for
the linearised objective, so that all spaces move together. Along the way the objective is a polynomial, and the step
has its best length. Differs from the paper: there are other starts besides the identity (the mean of all permutations,
and similar weight profiles), signs and rotations are relaxed too, and the result is polished.

Sinkhorn re-basin (Guerrero Peña et al. 2023): every space has a matrix of scores ``X``; ``P = Sinkhorn(X / τ)`` is
doubly stochastic, and ``Σ <a, P b>`` is maximised by Adam. The backward pass does not unroll the iterations: it solves
the linear system of the fixed point (implicit differentiation; Luise et al. 2018; Eisenberger et al. 2022). Differs
from the paper: the iteration runs in float64 in the log domain with a stopping rule instead of a fixed count, the
temperature falls during the ascent, signs and rotations are learned too, and coordinate descent polishes the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..._nested import by_key
from ...groups import Representation
from ...groups.assignment import stochastic
from ...symmetry.action import multiply
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem, Row
from .coordinate_descent import CoordinateDescent, default, descend
from .solver import Findings, Solver
from .steps import best_parts, profiles

Soft = dict[tuple[str, Row], Tensor]  # space and parities -> (p..., n, n)
_ITERATIONS = 200


def of_element(stated: Problem, g: Transformation) -> Soft:
    """The matrices of a hard element, with the device and precision of the problem."""
    like = {(name, m.row): stated.a[m.tensor] for name, members in stated.members.items() for m in members}
    return {
        (name, row): g[name].matrix(Representation(sign=row, variance=1)).to(x.new_zeros(()))
        for (name, row), x in like.items()
    }


def barycentre(stated: Problem) -> Soft:
    """The mean of all elements; spaces that are not permuted start at the identity."""
    found = of_element(stated, identity(stated.sym))
    for (name, row), matrix in found.items():
        group = stated.sym.space(name).group
        if group.permutes and not group.mixes:
            found[name, row] = torch.full_like(matrix, (not any(row)) / matrix.shape[-1])
    return found


def mixed(x: Soft, y: Soft, ratio: float) -> Soft:
    """``(1 - ratio) x + ratio y``."""
    return {key: torch.lerp(matrix, y[key], ratio) for key, matrix in x.items()}


def moved_softly(stated: Problem, soft: Mapping[tuple[str, Row], Tensor]) -> dict[str, Tensor]:
    """The tensors of ``b`` moved by a soft element; differentiable in its matrices."""
    outer_first = sorted(stated.sym.spaces, key=lambda s: len(s.parents))
    members = by_key(((m.tensor, m.block), m) for space in outer_first for m in stated.members[space.name])
    found = dict(stated.b)
    for (name, block), moving in members.items():
        piece = block.read(stated.b[name])
        for m in moving:
            piece = multiply(piece, soft[m.space.name, m.row], list(m.dims))
        partial = any(rows is not None for rows in block.rows)
        found[name] = block.write(found[name].clone() if partial else found[name], piece)
    return found


def objective(stated: Problem, soft: Soft) -> Tensor:
    """``Σ <a, soft b>``, differentiable."""
    near = moved_softly(stated, soft)
    terms = ((x * near[name]).sum(dtype=torch.float64) for name, x in stated.a.items())
    return sum(terms, start=torch.zeros((), dtype=torch.float64))


def gradient(stated: Problem, soft: Soft) -> tuple[float, Soft]:
    """The objective and its gradient: the cost matrices at a soft element."""
    leaves = {key: matrix.detach().requires_grad_() for key, matrix in soft.items()}
    with torch.enable_grad():
        value = objective(stated, leaves)
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    found = {k: torch.zeros_like(x) if slope is None else slope for (k, x), slope in zip(leaves.items(), slopes)}
    return float(value.detach()), found


def vertex(stated: Problem, costs: Soft, fast: bool = False) -> Transformation:
    """The hard element with the largest inner product with the given matrices: the closest one to a soft element."""
    g = identity(stated.sym)
    for space in stated.sym.spaces:
        here = {row: matrix.detach() for (name, row), matrix in costs.items() if name == space.name}
        if here:
            g = with_parts(g, space.name, **best_parts(here, space.group, fast))
    return g


@dataclass(frozen=True)
class FrankWolfe(Solver):
    """Frank-Wolfe: maximises ``Σ <a, g b>`` in balanced coordinates, all spaces at once.

    Attributes:
        restarts: Number of starts, up to three: the mean of all elements, similar weight profiles, the identity.
        steps: Largest number of steps.
        tolerance: Relative gain of a step below which the climb ends.
        polish: Whether coordinate descent follows.
        fast: Whether to use the assignment of the extra ``[fast]``.
    """

    name: ClassVar[str] = "frank-wolfe"

    restarts: int = 3
    steps: int = 100
    tolerance: float = 1e-7
    polish: bool = True
    fast: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.restarts <= 3:
            raise ValueError(f"restarts must be 1, 2 or 3. Got {self.restarts}.")

    def search(self, networks: Networks) -> Findings:
        """The best end of all starts."""
        stated = networks.stated
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

    def _from(self, stated: Problem, soft: Soft, seed: int) -> tuple[Transformation, tuple[float, ...]]:
        """The element at which the objective stops rising from one start, and the objective along the way."""
        history: list[float] = []
        degree = max((len(m.block.leaves) for members in stated.members.values() for m in members), default=1)
        for _ in range(self.steps):
            value, slopes = gradient(stated, soft)
            history.append(value)
            towards = of_element(stated, vertex(stated, slopes, self.fast))
            ratio, gain = _line_search(stated, soft, towards, value, min(degree, 4))
            if ratio == 0 or gain <= self.tolerance * abs(value):
                break
            soft = mixed(soft, towards, ratio)
        g = _rounded(self, stated, soft, torch.Generator().manual_seed(seed))
        return g, (*history, stated.objective(g))


def _line_search(stated: Problem, x: Soft, y: Soft, start: float, degree: int) -> tuple[float, float]:
    """The ratio in [0, 1] with the largest objective (a polynomial) between two soft elements, and the gain there."""
    points = torch.linspace(0, 1, degree + 1, dtype=torch.float64)
    with torch.no_grad():
        values = [start, *(float(objective(stated, mixed(x, y, float(r)))) for r in points[1:])]
    powers = points[:, None] ** torch.arange(degree + 1)
    coefficients = torch.linalg.solve(powers, torch.tensor(values, dtype=torch.float64) - start)
    grid = torch.linspace(0, 1, 201, dtype=torch.float64)
    heights = (grid[:, None] ** torch.arange(degree + 1)) @ coefficients
    best = int(heights.argmax())
    return float(grid[best]), float(heights[best])


@dataclass(frozen=True)
class Sinkhorn(Solver):
    """Sinkhorn: maximises ``Σ <a, g b>`` in balanced coordinates by gradient ascent through doubly stochastic matrices.

    Attributes:
        steps: Steps of Adam.
        rate: Learning rate of the scores.
        temperature: Temperature of the last step; it falls geometrically.
        first_temperature: Temperature of the first step.
        polish: Whether coordinate descent follows.
        fast: Whether to use the assignment of the extra ``[fast]`` when scores are rounded.
    """

    name: ClassVar[str] = "sinkhorn"

    steps: int = 150
    rate: float = 0.1
    temperature: float = 0.1
    first_temperature: float = 1.0
    polish: bool = True
    fast: bool = False

    def __post_init__(self) -> None:
        heats = (self.first_temperature, self.temperature)
        if self.steps < 1 or not min(heats) > 0:
            raise ValueError(f"steps and temperatures must be positive. Got {self.steps} and {heats}.")

    def search(self, networks: Networks) -> Findings:
        """The rounded element at the end of the ascent, polished."""
        stated = networks.stated
        generator = torch.Generator().manual_seed(networks.seed)
        soft, history = self._ascended(stated, generator)
        g = _rounded(self, stated, soft, generator)
        start = default(stated, networks.seed, self.fast)
        return Findings(stated.sym, stated.objective, (g, start), stated.lift, (*history, stated.objective(g)))

    def _ascended(self, stated: Problem, generator: torch.Generator) -> tuple[Soft, list[float]]:
        """The soft element reached by ascent from near the mean of all elements, and the objective at every step."""
        scores = _first_scores(stated, generator)
        size = sum(float(x.double().square().sum()) for x in stated.a.values())
        history, soft = list[float](), of_element(stated, identity(stated.sym))
        if not scores:  # no space has an element of the searched kinds
            return soft, history
        adam = torch.optim.Adam(list(scores.values()), lr=self.rate)
        for step in range(self.steps):
            fallen = (self.temperature / self.first_temperature) ** (step / max(self.steps - 1, 1))
            with torch.enable_grad():
                soft = _softened(stated, scores, self.first_temperature * fallen, soft)
                value = objective(stated, soft)
                adam.zero_grad()
                (-value / max(size, 1e-300)).backward()
            adam.step()
            history.append(float(value.detach()))
        return {key: matrix.detach() for key, matrix in soft.items()}, history


def _rounded(solver: FrankWolfe | Sinkhorn, stated: Problem, soft: Soft, generator: torch.Generator) -> Transformation:
    """The hard element closest to a soft one, polished by coordinate descent if the solver asks for it."""
    g = vertex(stated, soft, solver.fast)
    return descend(stated, g, generator, CoordinateDescent(fast=solver.fast)).g if solver.polish else g


def sinkhorn(scores: Tensor) -> Tensor:
    """The doubly stochastic matrix ``P = diag(u) exp(X) diag(v)``, ``(..., n, n)``, of float64 scores; differentiable.

    Rows and columns are normalised in turn in the log domain until all sums are 1 to 1e-6. The gradient is that of the
    fixed point: for an incoming gradient ``G``, ``P ∘ (G - α 1^T - 1 β^T)`` where ``α`` and ``β`` solve
    ``α + P β = (P ∘ G) 1`` and ``P^T α + β = (P ∘ G)^T 1``.
    """
    return _FixedPoint.apply(scores)


class _FixedPoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        p = stochastic(scores, _ITERATIONS)[0].exp()
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
    found: dict[tuple[str, Row | str], Tensor] = {}
    for (name, row), matrix in of_element(stated, identity(stated.sym)).items():
        group = stated.sym.space(name).group
        plain: list[Row | str] = [*(["assignment"] if group.permutes else []), *([row] if any(row) else [])]
        for kind in ["rotation"] if group.mixes else plain:
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
