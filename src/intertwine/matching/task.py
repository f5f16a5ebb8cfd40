"""What every solver gets and gives back: the contract between ``align`` and the algorithms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

from .balanced import Balanced, balance

if TYPE_CHECKING:
    from torch import Tensor

    from ..symmetry import Symmetry, Transformation
    from .problem import Problem

__all__ = ["Found", "Task", "refuse_unknown"]


@dataclass(frozen=True, eq=False)
class Task:
    """Two networks of one architecture, checked, and how to align them.

    Attributes:
        a: The network whose basis is kept.
        b: The network that is to move.
        sym: The symmetry of ``a``.
        sym_b: The symmetry of ``b``; that of ``a`` unless the widths differ.
        kinds: Kinds of elements to search, among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``.
        loader: Batches, for solvers that look at data.
        seed: Seed of everything that is random.
        options: What else the caller said, by name; a solver refuses what it does not know.
        example_inputs: The example that the symmetry was found on.
    """

    a: nn.Module
    b: nn.Module
    sym: Symmetry
    sym_b: Symmetry
    kinds: Collection[str]
    loader: Iterable[Any] | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    example_inputs: Any = None

    @cached_property
    def balanced(self) -> tuple[Balanced, Balanced]:
        """Both networks in the coordinates in which the searched kinds are compared, batch norms folded."""
        scales, linear = "scale" in self.kinds, "linear" in self.kinds
        return balance(self.a, self.sym, scales, linear), balance(self.b, self.sym_b, scales, linear)

    @cached_property
    def stated(self) -> Problem:
        """Aligning by weights, in the precision of the weights."""
        from .problem import problem

        return problem(self)


@dataclass(frozen=True, eq=False)
class Found:
    """What a solver found.

    Attributes:
        transformation: The element that moves ``b`` into the basis of ``a``; ``None`` where the widths differ.
        objective: What the solver maximised, at ``transformation``; its unit is the solver's.
        history: The objective along the way of the best start.
        starts: The objective that every start reached, where there are several.
        notes: What a reader must know.
        maps: By space, a matrix ``(n_a, n_b)`` from units of ``b`` to units of ``a``, where the widths differ.
    """

    transformation: Transformation | None
    objective: float
    history: tuple[float, ...]
    starts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    maps: Mapping[str, Tensor] = field(default_factory=dict)


def refuse_unknown(options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse options that a solver does not know.

    Raises:
        TypeError: If there is one.
    """
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"options must be among {sorted(known)} for this method. Got {unknown}.")
