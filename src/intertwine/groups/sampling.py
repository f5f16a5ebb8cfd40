"""Random matrices, scales and signs: Haar rotations, well-conditioned matrices, lognormal scales of mean one."""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

__all__ = ["haar", "keeping_ones", "lognormal", "random_signs", "well_conditioned"]

_KEPT = 1e-12  # distance below which the vector of ones counts as unmoved


def haar(n: int, generator: torch.Generator | None = None, special: bool = False, shape: Sequence[int] = ()) -> Tensor:
    """Rotations from the Haar measure of ``O(n)`` or ``SO(n)``, ``(*shape, n, n)``, float64, on the generator's device.

    The Q of a QR decomposition of Gaussians is not Haar: LAPACK's convention for the signs of diag R biases it.
    Multiplying column ``j`` by ``sign(R_jj)`` makes the decomposition unique and Q Haar; flipping one column where
    det = -1 maps the other component of ``O(n)`` onto ``SO(n)`` and keeps the measure.
    """
    device = generator.device if generator is not None else None
    q, r = torch.linalg.qr(torch.randn(*shape, n, n, generator=generator, dtype=torch.float64, device=device))
    q = q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[..., None, :]
    if special:
        q[..., 0] *= torch.linalg.slogdet(q).sign[..., None]
    return q


def keeping_ones(matrix: Tensor) -> Tensor:
    """A rotation ``(n, n)`` followed by the reflection that maps its image of the vector of ones back to the ones.

    A Haar rotation becomes a Haar element of the subgroup that keeps the ones: multiplying from the left by an element
    of that subgroup changes the rotation and its product with the reflection alike.
    """
    u = torch.full_like(matrix[0], len(matrix) ** -0.5)
    away = matrix @ u - u
    if float(away.norm()) < _KEPT:
        return matrix
    away = away / away.norm()
    return matrix - 2 * torch.outer(away, away @ matrix)


def well_conditioned(
    n: int, generator: torch.Generator | None = None, spread: float = log(10) / 2, shape: Sequence[int] = ()
) -> Tensor:
    """``U diag(exp(t)) V``, ``(*shape, n, n)``, with Haar ``U``, ``V`` and ``t`` uniform in ``[-spread, spread]``.

    ``spread`` is half the logarithm of the largest condition number, which is 10 by default.
    """
    u = haar(n, generator, shape=shape)
    t = 2 * torch.rand(*shape, n, generator=generator, dtype=torch.float64, device=u.device) - 1
    return (u * torch.exp(spread * t)[..., None, :]) @ haar(n, generator, shape=shape)


def lognormal(n: int, generator: torch.Generator | None = None, sigma: float = 1.0) -> Tensor:
    """``exp(sigma z - sigma^2 / 2)``, ``(n,)`` in float64, with ``z`` standard normal: positive, of mean exactly 1."""
    device = generator.device if generator is not None else None
    z = torch.randn(n, generator=generator, dtype=torch.float64, device=device)
    return torch.exp(sigma * z - sigma**2 / 2)


def random_signs(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Fair coins with the values -1 and 1, in float64 on the generator's device."""
    device = generator.device if generator is not None else None
    return 1.0 - 2.0 * torch.randint(0, 2, tuple(shape), generator=generator, device=device).to(torch.float64)
