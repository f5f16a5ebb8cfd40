"""Random matrices and scales: Haar rotations, well-conditioned matrices, lognormal scales of mean one."""

import torch
from torch import Tensor

__all__ = ["haar", "lognormal", "well_conditioned"]


def haar(n: int, generator: torch.Generator | None = None, special: bool = False) -> Tensor:
    """A rotation drawn from the Haar measure of ``O(n)``, or of ``SO(n)``.

    The Q of a QR decomposition of Gaussians is not Haar: LAPACK's convention for the signs of diag R biases it.
    Multiplying column ``j`` by ``sign(R_jj)`` makes the decomposition unique and Q Haar; flipping one column where
    det = -1 maps the other component of ``O(n)`` onto ``SO(n)`` and keeps the measure.

    Args:
        n: Size.
        generator: Where randomness comes from.
        special: Whether the determinant shall be +1.

    Returns:
        ``(n, n)`` in float64 on the generator's device.
    """
    device = generator.device if generator is not None else None
    q, r = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64, device=device))
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    if special and torch.linalg.slogdet(q).sign < 0:
        q[:, 0] = -q[:, 0]
    return q


def well_conditioned(n: int, generator: torch.Generator | None = None, condition: float = 10.0) -> Tensor:
    """``U diag(s) V^T`` with Haar ``U``, ``V`` and uniform ``log s``: condition number at most ``condition``.

    Args:
        n: Size.
        generator: Where randomness comes from.
        condition: Bound of the condition number; singular values lie in ``[condition^-1/2, condition^1/2]``.

    Returns:
        ``(n, n)`` in float64 on the generator's device.
    """
    device = generator.device if generator is not None else None
    u, v = haar(n, generator), haar(n, generator)
    t = torch.rand(n, generator=generator, dtype=torch.float64, device=device) - 0.5
    return (u * condition**t) @ v.T


def lognormal(n: int, generator: torch.Generator | None = None, sigma: float = 1.0) -> Tensor:
    """``exp(sigma z - sigma^2 / 2)`` with standard normal ``z``: positive, with mean exactly one.

    Args:
        n: How many.
        generator: Where randomness comes from.
        sigma: Standard deviation of the logarithm.

    Returns:
        ``(n,)`` in float64 on the generator's device.
    """
    device = generator.device if generator is not None else None
    z = torch.randn(n, generator=generator, dtype=torch.float64, device=device)
    return torch.exp(sigma * z - sigma**2 / 2)
