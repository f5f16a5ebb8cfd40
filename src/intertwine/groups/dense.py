"""Groups of full matrices: rotations, all invertible matrices, and those that fix the vector of ones."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import log
from typing import Self

import torch
from torch import Tensor

from .group import Group, MatrixElement, Objective, Unattained
from .sampling import haar, well_conditioned

__all__ = ["DenseElement", "GeneralLinear", "Orthogonal", "UnitRowSum", "polar_factor"]


class DenseElement(MatrixElement):
    """An element held as its ``(n, n)`` matrix."""

    __slots__ = ("_matrix", "group")

    def __init__(self, group: Group, matrix: Tensor) -> None:
        self.group = group
        self._matrix = matrix

    def matrix(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix; never write into it."""
        return self._matrix if dtype is None else self._matrix.to(dtype)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same element on another device or in another floating dtype."""
        return type(self)(self.group, self._matrix.to(device=device, dtype=dtype))

    def _act(self, tensor: Tensor) -> Tensor:
        a = self._matrix.to(tensor.device, tensor.dtype)
        return (a @ tensor.reshape(self.n, -1)).reshape(tensor.shape)

    def __invert__(self) -> DenseElement:
        orthogonal = isinstance(self.group, Orthogonal)
        inverse = self._matrix.T if orthogonal else torch.linalg.inv(self._matrix)
        return DenseElement(self.group, inverse)

    @property
    def _content(self) -> tuple[object, ...]:
        return tuple(self._matrix.flatten().tolist())

    def __repr__(self) -> str:
        return f"{self.group!r}.element({self._matrix.tolist()})" if self.n <= 3 else f"<element of {self.group!r}>"


class DenseGroup(Group):
    """Base of the groups whose elements are dense matrices."""

    def element(self, matrix: Tensor | list[list[float]]) -> MatrixElement:
        """The element with this matrix; see ``from_matrix``."""
        return self.from_matrix(torch.tensor(matrix, dtype=torch.float64) if isinstance(matrix, list) else matrix)

    def dense(self, matrix: Tensor) -> DenseElement:
        """The element with this matrix, which is not checked."""
        return DenseElement(self, matrix)

    def identity(self, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> DenseElement:
        """The element that changes nothing."""
        return DenseElement(self, torch.eye(self.n, dtype=dtype, device=device))

    def project(self, matrix: Tensor) -> DenseElement:
        """The nearest matrix of the group in Frobenius norm.

        Raises:
            Unattained: If that matrix is singular: invertible ones come arbitrarily near, so none is nearest.
        """  # noqa: DOC502 - raised by a check
        return DenseElement(self, self._nearest(self._check_finite(matrix)))

    def procrustes(
        self, xy: Tensor, xx: Tensor | None = None, yy: Tensor | None = None, *, objective: Objective = "least_squares"
    ) -> DenseElement:
        """The matrix ``g`` that minimises ``sum |y - g x|^2``; needs ``xx`` as a full matrix, except for rotations.

        For the variant on cosines, divide channels by their norms beforehand.

        Raises:
            ValueError: If ``xx`` is missing or singular, or ``objective`` is not ``"least_squares"``.
            Unattained: If the best matrix is singular.
        """  # noqa: DOC502 - raised by a check
        if objective != "least_squares":
            raise ValueError(
                f"objective must be 'least_squares' for {self!r}. Got {objective!r}; divide channels by their norms "
                "first."
            )
        return DenseElement(self, self._best(self._check_finite(xy, "xy"), xx))

    def _random(self, source: torch.Generator | None) -> DenseElement:
        return DenseElement(self, self._draw(source))

    @abstractmethod
    def _draw(self, generator: torch.Generator | None) -> Tensor: ...

    @abstractmethod
    def _nearest(self, m: Tensor) -> Tensor:
        """The matrix of the group that is nearest to ``m``."""

    @abstractmethod
    def _best(self, xy: Tensor, xx: Tensor | None) -> Tensor:
        """The matrix with the least ``sum |y - g x|^2``."""

    def _second_moments(self, xx: Tensor | None) -> Tensor:
        if xx is None or xx.ndim != 2:
            raise ValueError(f"xx must be the whole x.T @ x for {self!r}. Got {'None' if xx is None else 'a vector'}.")
        xx = self._check_finite(xx, "xx")
        if _singular(xx):
            raise ValueError(
                "xx must be invertible for a least-squares map to be unique. Got a singular one: use more examples "
                "than channels, drop dead or duplicate channels, or add a small multiple of the identity."
            )
        return xx


@dataclass(frozen=True, repr=False)
class Orthogonal(DenseGroup):
    """Orthogonal matrices ``A A^T = 1``; rotations only (determinant 1) where ``special``.

    Examples:
        >>> q = Orthogonal(4).random(generator=0)
        >>> (q @ ~q).allclose(Orthogonal(4).identity())
        True
    """

    special: bool = False

    def __repr__(self) -> str:
        return f"Orthogonal({self.n}, special=True)" if self.special else f"Orthogonal({self.n})"

    @property
    def words(self) -> str:
        """The group's matrices, in words."""
        return "orthogonal matrices" + (" of determinant 1" if self.special else "")

    @property
    def above(self) -> tuple[Group, ...]:
        """``O(n)``, then all invertible matrices."""
        return (Orthogonal(self.n),) if self.special else (GeneralLinear(self.n),)

    @property
    def _on_one_channel(self) -> tuple[bool, bool]:
        return False, not self.special

    @property
    def dim(self) -> int:
        """``n (n - 1) / 2``."""
        return self.n * (self.n - 1) // 2

    @property
    def log_components(self) -> float:
        """``log 2`` for determinants -1 and 1, 0 for rotations."""
        return 0.0 if self.special else log(2)

    def _draw(self, generator: torch.Generator | None) -> Tensor:
        return haar(self.n, generator, self.special)

    def contains(self, matrix: Tensor, tol: float = 1e-6) -> bool:
        """Whether ``|A A^T - 1| <= tol`` in every entry (and the determinant is positive where ``special``)."""
        a = self._check(matrix)
        gap = a @ a.T - torch.eye(self.n, dtype=a.dtype, device=a.device)
        if not bool((gap.abs() <= tol).all()):
            return False
        return not self.special or bool(torch.linalg.slogdet(a).sign > 0)

    def _best(self, xy: Tensor, xx: Tensor | None) -> Tensor:
        return self._nearest(xy.T)  # orthogonal Procrustes: sum |g x|^2 does not depend on g

    def _nearest(self, m: Tensor) -> Tensor:
        return polar_factor(m, self.special)


class GeneralLinear(DenseGroup):
    """All invertible matrices: the group of the identity."""

    words = "all invertible matrices"
    log_components = 0.0
    above = ()
    _on_one_channel = (True, True)

    @property
    def dim(self) -> int:
        """``n^2``."""
        return self.n**2

    def _draw(self, generator: torch.Generator | None) -> Tensor:
        return well_conditioned(self.n, generator)

    def contains(self, matrix: Tensor, tol: float = 1e-6) -> bool:
        """Whether the smallest singular value exceeds rounding; there is no equation for ``tol``."""
        a = self._check(matrix)
        return bool(torch.isfinite(a).all()) and not _singular(a)

    def _nearest(self, m: Tensor) -> Tensor:
        return _invertible(m, self)

    def _best(self, xy: Tensor, xx: Tensor | None) -> Tensor:
        """Linear regression: ``g = (x.T @ y).T (x.T @ x)^-1``."""
        return _invertible(torch.linalg.solve(self._second_moments(xx), xy).T, self)


class UnitRowSum(DenseGroup):
    """Invertible matrices whose rows sum to one, ``A 1 = 1``: the group of ``sigma(x) = a x + b`` with ``a, b != 0``.

    Theorem E.14 leaves affine activations out, and its proof does not cover them: for ``sigma(x) = x + 1`` the group
    holds full matrices. ``sigma(A x) = a A x + b 1 = A sigma(x)`` exactly when ``A 1 = 1``.
    """

    words = "invertible matrices whose rows sum to one"
    log_components = 0.0
    _on_one_channel = (False, False)

    @property
    def above(self) -> tuple[Group, ...]:
        """All invertible matrices."""
        return (GeneralLinear(self.n),)

    @property
    def dim(self) -> int:
        """``n (n - 1)``."""
        return self.n * (self.n - 1)

    def _draw(self, generator: torch.Generator | None) -> Tensor:
        basis = _ones_first(self.n)  # first column along 1, the rest orthogonal to it
        basis = basis.to(generator.device) if generator is not None else basis
        block = torch.eye(self.n, dtype=torch.float64, device=basis.device)
        if self.n > 1:
            block[1:, 1:] = well_conditioned(self.n - 1, generator)
            noise = torch.randn(self.n - 1, generator=generator, dtype=torch.float64, device=basis.device)
            block[0, 1:] = 0.3 * noise / (self.n**0.5)
        return basis @ block @ basis.T

    def contains(self, matrix: Tensor, tol: float = 1e-6) -> bool:
        """Whether ``|A 1 - 1| <= tol`` (relative to the row's magnitude) and ``A`` is invertible."""
        a = self._check(matrix)
        if not bool(torch.isfinite(a).all()):
            return False
        return bool(((a.sum(1) - 1).abs() <= tol * a.abs().sum(1).clamp_min(1)).all()) and not _singular(a)

    def _nearest(self, m: Tensor) -> Tensor:
        """The nearest matrix of the group: what each row lacks, shared equally."""
        return _invertible(m - (m.sum(1, keepdim=True) - 1) / self.n, self)

    def _best(self, xy: Tensor, xx: Tensor | None) -> Tensor:
        """Regression under ``A 1 = 1``: rows of the free solution move along ``(x.T x)^-1 1`` until they sum to one."""
        moments = self._second_moments(xx)
        free = torch.linalg.solve(moments, xy).T
        w = torch.linalg.solve(moments, torch.ones_like(moments[:, :1]))[:, 0]
        return _invertible(free - torch.outer(free.sum(1) - 1, w / w.sum()), self)


def polar_factor(matrix: Tensor, special: bool = False) -> Tensor:
    """The nearest matrices with orthonormal rows or columns: ``U V^T`` of ``(..., m, n)``, in float64.

    They have the largest inner products with ``matrix`` (Kabsch, Schönemann). If ``special``, the weakest singular
    direction is flipped where the determinant would be -1.
    """
    u, _, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    if special:
        u[..., -1] *= torch.linalg.slogdet(u @ vh).sign[..., None]
    return u @ vh


def _singular(a: Tensor) -> bool:
    s = torch.linalg.svdvals(a)
    return bool(s[-1] <= a.shape[0] * torch.finfo(a.dtype).eps * s[0])


def _invertible(a: Tensor, group: Group) -> Tensor:
    if _singular(a):
        raise Unattained(f"the best matrix must be invertible to lie in {group!r}. Got a singular one.")
    return a


def _ones_first(n: int) -> Tensor:
    """An orthonormal basis whose first column is ``1 / sqrt(n)``."""
    m = torch.eye(n, dtype=torch.float64)
    m[:, 0] = 1
    q, r = torch.linalg.qr(m)
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0)
