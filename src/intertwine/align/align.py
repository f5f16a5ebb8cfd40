"""Bring one network into the basis of another."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from .alignment import Alignment

if TYPE_CHECKING:
    from ..symmetry import Symmetry

__all__ = ["METHODS", "align"]

# name of a method -> the module that solves it
METHODS: dict[str, str] = {
    "weights": "coordinate_descent",
    "frank-wolfe": "frank_wolfe",
    "sinkhorn": "sinkhorn",
    "straight-through": "straight_through",
}


def align(
    a: nn.Module,
    b: nn.Module,
    example_inputs: Any,
    method: str = "weights",
    loader: Iterable[Any] | None = None,
    seed: int = 0,
    kinds: Collection[str] | None = None,
    sym: Symmetry | None = None,
    **options: Any,
) -> Alignment:
    """Find the element of the symmetry group that moves ``b`` as close to ``a`` as the method can.

    Args:
        a: The network whose basis is kept. Both are left as they are.
        b: The network that is to move; of the same architecture.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        method: Name of a solver, one of ``METHODS``.
        loader: Batches of inputs (or of inputs and targets), for methods that look at data.
        seed: Same seed, same alignment.
        kinds: Kinds of elements to search, among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``; ``None``
            searches all that the spaces allow.
        sym: The symmetry of both where it is known already.
        **options: Further options of the solver.

    Returns:
        The alignment; ``alignment.apply(b)`` is the moved network.

    Raises:
        ValueError: If the method is unknown, the architectures differ, or weights hold NaN.
    """
    raise NotImplementedError
