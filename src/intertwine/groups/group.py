"""The base classes of groups and of their elements.

A group here is a set of invertible ``n x n`` matrices, described by a value that holds no tensor: it hashes, compares,
prints as the expression that makes it, and is cheap to pass around. Its elements act on channel vectors from the left,
``(g x)_i = sum_j A_ij x_j``; ``g @ h`` is the matrix product (``h`` acts first) and ``~g`` the inverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from .capacity import log_count

__all__ = ["MatrixElement", "Generator", "Group", "Objective", "Unattained"]

Generator = torch.Generator | int | None
Objective = Literal["least_squares", "cosine"]


class Unattained(ValueError):
    """The best element of a group lies on its boundary, outside the group (a scale of zero, a singular matrix)."""


class MatrixElement(ABC):
    """One matrix of a group, held as compactly as its kind allows. Immutable: never write into its tensors.

    ``g @ h`` composes (in the smallest group of this library that contains both), ``~g`` inverts, ``==`` is exact.
    """

    group: Group

    @property
    def n(self) -> int:
        """Number of channels."""
        return self.group.n

    @abstractmethod
    def matrix(self, dtype: torch.dtype | None = None) -> Tensor:
        """The dense ``(n, n)`` matrix; costs ``n^2`` numbers, so prefer ``apply``."""

    @abstractmethod
    def _act(self, tensor: Tensor) -> Tensor:
        """Act along the first axis of ``tensor``."""

    @abstractmethod
    def __invert__(self) -> MatrixElement: ...

    def __matmul__(self, other: MatrixElement) -> MatrixElement:
        group, dtype = self.group.join(other.group), other.matrix().dtype
        return group.dense(self.apply(other.matrix(dtype), dim=0))

    @property
    @abstractmethod
    def _content(self) -> tuple[object, ...]:
        """What distinguishes the elements of one group."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return (self.group, self._content) == (other.group, other._content)

    def __hash__(self) -> int:
        return hash((self.group, self._content))

    @abstractmethod
    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same element with its numbers on another device or in another floating dtype."""

    def apply(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """Act along the channel axis: ``out[..., i, ...] = sum_j A_ij tensor[..., j, ...]``, a new tensor.

        ``dim`` is 1 for features ``(N, C, *S)``, -1 for tokens. A permutation only moves bits and never recomputes
        them.

        Raises:
            ValueError: If ``tensor`` has no axis ``dim`` of length ``n``.
        """
        if not -tensor.ndim <= dim < tensor.ndim or tensor.shape[dim] != self.n:
            raise ValueError(
                f"tensor must have {self.n} channels along dim {dim}. Got shape {tuple(tensor.shape)}. "
                "Pass dim= for another channel axis."
            )
        return self._act(tensor.movedim(dim, 0)).movedim(0, dim)

    def allclose(self, other: MatrixElement, rtol: float = 1e-9, atol: float = 1e-12) -> bool:
        """Whether both elements are the same matrix up to rounding."""
        if self.n != other.n:
            return False
        a, b = self.matrix(torch.float64), other.matrix(torch.float64)
        return torch.allclose(a, b.to(a.device), rtol=rtol, atol=atol)


@dataclass(frozen=True)
class Group(ABC):
    """A group of invertible ``n x n`` matrices."""

    n: int  # Number of channels it acts on

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"n must be a positive integer. Got {self.n!r}.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n})"

    @property
    @abstractmethod
    def words(self) -> str:
        """The group's matrices, in words."""

    @property
    @abstractmethod
    def above(self) -> tuple[Group, ...]:
        """Groups of this library just above: under them, an invariance that is exactly this group's must break."""

    def on(self, n: int) -> Self:
        """The same kind on another number of channels."""
        return replace(self, n=n)

    @abstractmethod
    def dense(self, matrix: Tensor) -> MatrixElement:
        """The element with this matrix, which is not checked."""

    def from_matrix(self, matrix: Tensor, tol: float = 1e-6) -> MatrixElement:
        """The element with this matrix, up to ``tol``; it keeps a copy.

        Raises:
            ValueError: If ``matrix`` does not belong to the group.
        """
        if not self.contains(matrix, tol):
            raise ValueError(f"matrix must belong to {self!r} ({self.words}). Got one that does not; use project().")
        return self.dense(matrix.detach().clone())

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension as a Lie group; 0 for finite groups."""

    @property
    @abstractmethod
    def log_components(self) -> float:
        """Logarithm of the number of pieces on which the count of v2 E.7 lays grids (permutations, sign patterns)."""

    def log_size(self, eps: float, bound: float) -> float:
        """Logarithm of the number of grid points on the group, ``log #components + dim log M``, ``M = 2 bound / eps``.

        The paper's count by discretisation (v2 E.29; for positive monomial ``log n! + n log M``): each coordinate runs
        over ``[-bound, bound]`` in steps of ``eps``. A positive scale keeps all ``M`` points, as in the paper; counting
        only its positive half would subtract ``log 2`` per unit.
        """
        return log_count(self.log_components, self.dim, eps, bound)

    @abstractmethod
    def identity(self, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> MatrixElement:
        """The element that changes nothing."""

    def random(
        self, generator: Generator = None, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> MatrixElement:
        """A random element; ``generator`` is a torch generator or a seed, the numbers are drawn on its device.

        Permutations are uniform, signs fair coins, positive scales lognormal with mean one (so ``E[D] = I``), rotations
        Haar distributed, other matrices well conditioned.
        """
        source = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator
        return self._random(source).to(device, dtype)

    @abstractmethod
    def _random(self, source: torch.Generator | None) -> MatrixElement:
        """A random element in float64, on the device of its source."""

    @abstractmethod
    def contains(self, matrix: Tensor, tol: float = 1e-6) -> bool:
        """Whether a ``(n, n)`` matrix belongs to the group, up to a relative tolerance."""

    @abstractmethod
    def project(self, matrix: Tensor) -> MatrixElement:
        """The element nearest to a ``(n, n)`` matrix in Frobenius norm."""

    @abstractmethod
    def procrustes(
        self, xy: Tensor, xx: Tensor | None = None, yy: Tensor | None = None, *, objective: Objective = "least_squares"
    ) -> MatrixElement:
        """The element ``g`` with ``g x ~ y`` for two feature sets, from their second moments.

        Args:
            xy: ``(n, n)``, ``xy[i, j] = sum over examples (and space) of x_i y_j``: ``x.T @ y`` for ``(N, n)``
                features.
            xx: ``x.T @ x``, or its diagonal ``(n,)`` where the group needs only that.
            yy: ``y.T @ y``, or its diagonal ``(n,)``.
            objective: ``"least_squares"`` minimises ``sum |y - g x|^2``; ``"cosine"`` (permutation kinds) maximises
                the sum of cosines between matched channels, which is the paper's G_ReLU-Procrustes.
        """

    def is_subgroup_of(self, other: Group) -> bool:
        """Whether every element belongs to ``other``, decided from the kinds of both groups, never from numbers.

        Examples:
            >>> from intertwine.groups import Orthogonal, Permutation, PositiveMonomial
            >>> Permutation(3).is_subgroup_of(Orthogonal(3)), PositiveMonomial(3).is_subgroup_of(Orthogonal(3))
            (True, False)
        """
        if self.n != other.n:
            return False
        if self == other or other._holds(self):
            return True
        if self.n == 1:
            return all(a <= b for a, b in zip(self._on_one_channel, other._on_one_channel, strict=True))
        return any(group.is_subgroup_of(other) for group in self.above)

    def join(self, other: Group) -> Group:
        """Smallest group of this library that contains both; ``GeneralLinear`` at worst.

        Raises:
            ValueError: If they act on different numbers of channels.

        Examples:
            >>> from intertwine.groups import PositiveMonomial, SignedPermutation
            >>> SignedPermutation(2).join(PositiveMonomial(2))
            Monomial(2)
        """
        if self.n != other.n:
            raise ValueError(f"both groups must act on the same number of channels. Got {self!r} and {other!r}.")
        candidates: list[Group] = [self, other]
        for group in candidates:  # breadth first: grows as it is read
            if self.is_subgroup_of(group) and other.is_subgroup_of(group):
                return group
            candidates += group.above
        raise ValueError(f"groups must lie in a common one. Got {self!r} and {other!r}.")

    def _holds(self, inner: Group) -> bool:
        """Whether this group contains ``inner`` for a reason specific to its kind."""
        return False

    @property
    @abstractmethod
    def _on_one_channel(self) -> tuple[bool, bool]:
        """Whether positive scales and signs belong to the group for ``n = 1``, where these determine it."""

    def _check(self, matrix: Tensor, name: str = "matrix") -> Tensor:
        """``matrix`` in float64 after checking its shape."""
        if matrix.is_complex():
            raise TypeError(f"{name} must be real. Got {matrix.dtype}. Groups here act on real channels.")
        if tuple(matrix.shape) != (self.n, self.n):
            raise ValueError(f"{name} must have shape {(self.n, self.n)}. Got {tuple(matrix.shape)}.")
        return matrix.detach().to(torch.float64)

    def _check_finite(self, matrix: Tensor, name: str = "matrix") -> Tensor:
        matrix = self._check(matrix, name)
        if not torch.isfinite(matrix).all():
            raise ValueError(f"{name} must be finite. Got NaN or infinite entries.")
        return matrix
