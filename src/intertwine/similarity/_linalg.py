"""Decompositions that do not give up: another LAPACK driver where the fast one does not converge."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ROUNDING = 10 * torch.finfo(torch.float64).eps  # of the largest eigenvalue, in the others


def singular(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin singular value decomposition ``U, S, V^T``."""
    return _robust(torch.linalg.svd, _svd, matrix, full_matrices=False)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values, the largest first."""
    return _robust(torch.linalg.svdvals, lambda m: _svd(m, full_matrices=False)[1], matrix)


def quick_nuclear_norm(matrix: Tensor) -> tuple[float, float]:
    """Sum of the singular values as roots of eigenvalues, a quarter of the work, and a bound on its rounding error.

    An eigenvalue of the product is right to some ``eps`` of the largest one, so that small singular values lose digits.
    """
    short = matrix if len(matrix) <= matrix.shape[1] else matrix.mT
    values = eigen_values(short @ short.mT).clamp(min=0)
    rounding, sizes = _ROUNDING * values[-1], values.sqrt()
    return float(sizes.sum()), float(torch.minimum(rounding.sqrt(), rounding / sizes.clamp(min=1e-300)).sum())


def eigen_values(matrix: Tensor) -> Tensor:
    """Eigenvalues of a symmetric matrix, the smallest first."""
    return _robust(torch.linalg.eigvalsh, lambda m: _eigh(m)[0], matrix)


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of a symmetric matrix, the largest first, and its eigenvectors as columns."""
    values, vectors = _robust(torch.linalg.eigh, _eigh, matrix)
    return values.flip(0), vectors.flip(1)


def _robust(fast: Callable[..., Any], sure: Callable[..., Any], matrix: Tensor, **options: Any) -> Any:
    try:
        return fast(matrix, **options)
    except torch.linalg.LinAlgError:  # divide and conquer fails on some matrices that QR iteration can do
        return sure(matrix, **options)


def _svd(matrix: Tensor, full_matrices: bool) -> tuple[Tensor, ...]:
    from scipy.linalg import svd

    found = svd(matrix.cpu().numpy(), full_matrices=full_matrices, lapack_driver="gesvd")
    return tuple(torch.from_numpy(part).to(matrix) for part in found)


def _eigh(matrix: Tensor) -> tuple[Tensor, ...]:
    from scipy.linalg import eigh

    return tuple(torch.from_numpy(part).to(matrix) for part in eigh(matrix.cpu().numpy(), driver="ev"))
