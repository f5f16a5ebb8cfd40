"""Solvers of the matching problem, by name."""

from ..._words import near
from .coordinate_descent import CoordinateDescent
from .learned import Learned
from .relaxed import FrankWolfe, Sinkhorn
from .responses import Activations, Gates
from .solver import Solution, Solver
from .straight_through import StraightThrough

__all__ = [
    "METHODS", "Activations", "CoordinateDescent", "FrankWolfe", "Gates", "Learned", "Sinkhorn", "Solution", "Solver",
    "StraightThrough", "solver_named",
]  # fmt: skip

# name of a method -> the solver with its default options
METHODS: dict[str, Solver] = {
    "weights": CoordinateDescent(),
    "activations": Activations(),
    "mixed": Activations(share=0.5),
    "frank-wolfe": FrankWolfe(),
    "sinkhorn": Sinkhorn(),
    "straight-through": StraightThrough(),
    "learned": Learned(),
}


def solver_named(method: str | Solver) -> Solver:
    """The solver of a name, or a ``ValueError`` if there is none; a solver is returned as it is."""
    if not isinstance(method, str):
        return method
    if method not in METHODS:
        raise ValueError(f"method must be a solver or one of {list(METHODS)}. Got {method!r}.{near(method, METHODS)}")
    return METHODS[method]
