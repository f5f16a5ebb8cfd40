"""Decompositions that do not give up: another LAPACK driver where the fast one does not converge."""

from typing import Any

import torch
from torch import Tensor

_ROUNDING = 10 * torch.finfo(torch.float64).eps  # of the largest eigenvalue, in the others
_SURE = {"svd": {"lapack_driver": "gesvd"}, "eigh": {"driver": "ev"}, "eigvalsh": {"driver": "ev"}}


def singular(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin singular value decomposition ``U, S, V^T``."""
    return _robust("svd", matrix, full_matrices=False)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values, the largest first."""
    try:
        return torch.linalg.svdvals(matrix)
    except torch.linalg.LinAlgError:
        return singular(matrix)[1]


def quick_nuclear_norm(matrix: Tensor) -> tuple[float, float]:
    """Sum of the singular values as roots of eigenvalues, a quarter of the work, and a bound on its rounding error.

    An eigenvalue of the product is right to some ``eps`` of the largest one, so that small singular values lose digits.
    """
    short = matrix if len(matrix) <= matrix.shape[1] else matrix.mT
    values = _robust("eigvalsh", short @ short.mT).clamp(min=0)
    rounding, sizes = _ROUNDING * values[-1], values.sqrt()
    return float(sizes.sum()), float(torch.minimum(rounding.sqrt(), rounding / sizes.clamp(min=1e-300)).sum())


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of a symmetric matrix, the largest first, and its eigenvectors as columns."""
    values, vectors = _robust("eigh", matrix)
    return values.flip(0), vectors.flip(1)


def _robust(name: str, matrix: Tensor, **options: Any) -> Any:
    try:
        return getattr(torch.linalg, name)(matrix, **options)
    except torch.linalg.LinAlgError:  # divide and conquer fails on some matrices that QR iteration can do
        import scipy.linalg

        found = getattr(scipy.linalg, name)(matrix.cpu().numpy(), **options, **_SURE[name])
        back = lambda part: torch.from_numpy(part).to(matrix)
        return tuple(map(back, found)) if isinstance(found, tuple) else back(found)
