"""Decompositions with a fallback: another LAPACK driver where the fast one does not converge."""

from typing import Any

import torch
from torch import Tensor

_ROUNDING = 10  # error of any eigenvalue, in units of the precision of the largest
_SURE = {"svd": {"lapack_driver": "gesvd"}, "eigh": {"driver": "ev"}, "eigvalsh": {"driver": "ev"}}


def multiplies_half(device: torch.device) -> bool:
    """Whether the device is a CPU that multiplies bfloat16 twice as fast as float32; other devices stay precise."""
    return device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def singular(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin singular value decomposition ``U, S, V^T``."""
    return _robust("svd", matrix, full_matrices=False)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values, the largest first."""
    try:
        return torch.linalg.svdvals(matrix)
    except torch.linalg.LinAlgError:
        return singular(matrix)[1]


def quick_nuclear_norm(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the singular values of ``(..., c, d)``, as roots of eigenvalues, and bounds on their rounding errors."""
    short = matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
    sizes = _robust("eigvalsh", short @ short.mT).clamp(min=0).sqrt()
    return sizes.sum(-1), rounding(sizes)


def rounding(sizes: Tensor) -> Tensor:
    """Bounds on the rounding of sums of roots of eigenvalues ``(..., c)``, exact to a few ``eps`` of the largest."""
    error = _ROUNDING * torch.finfo(sizes.dtype).eps * sizes.amax(-1, keepdim=True) ** 2
    return torch.minimum(error.sqrt(), error / sizes.clamp(min=1e-30)).sum(-1)


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of symmetric matrices ``(..., n, n)``, the largest first, and their eigenvectors as columns."""
    values, vectors = _robust("eigh", matrix)
    return values.flip(-1), vectors.flip(-1)


def _robust(name: str, matrix: Tensor, **options: Any) -> Any:
    try:
        return getattr(torch.linalg, name)(matrix, **options)
    except torch.linalg.LinAlgError:  # divide and conquer fails on some matrices that QR iteration can handle
        import scipy.linalg

        if matrix.ndim > 2:
            several = [_robust(name, one, **options) for one in matrix]
            tensors = isinstance(several[0], Tensor)
            return torch.stack(several) if tensors else tuple(map(torch.stack, zip(*several)))
        found = getattr(scipy.linalg, name)(matrix.cpu().numpy(), **options, **_SURE[name])
        back = lambda part: torch.from_numpy(part).to(matrix)
        return tuple(map(back, found)) if isinstance(found, tuple) else back(found)
