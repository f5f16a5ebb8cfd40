"""Decompositions that do not give up: another LAPACK driver where the fast one does not converge."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def singular(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin singular value decomposition ``U, S, V^T``."""
    return _robust(torch.linalg.svd, _svd, matrix, full_matrices=False)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values, the largest first."""
    return _robust(torch.linalg.svdvals, lambda m: _svd(m, full_matrices=False)[1], matrix)


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
