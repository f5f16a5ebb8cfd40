"""Hadamard matrices: entries +1 and -1, orthogonal rows."""

import torch
from torch import Tensor

__all__ = ["hadamard"]


def hadamard(n: int) -> Tensor:
    """A Hadamard matrix ``H H^T = n 1`` of order ``n``.

    Sylvester's doubling of a matrix of order 1, or of one of Paley's: order ``q + 1`` for primes ``q = 3 mod 4``, and
    ``2 (q + 1)`` for primes ``q = 1 mod 4``.

    Returns:
        ``(n, n)``, float64.

    Raises:
        ValueError: If these constructions have none.

    Examples:
        >>> h = hadamard(12)
        >>> bool((h @ h.T == 12 * torch.eye(12)).all())
        True

    References:
        - R. Paley. On orthogonal matrices. Journal of Mathematics and Physics, 1933.
    """
    core, order = None, n
    while core is None and order >= 1:
        core = _paley(order)
        if core is None:
            if order % 2:
                raise ValueError(f'n must have a known Hadamard matrix. Got {n}: give a matrix, or "random".')
            order //= 2
    assert core is not None
    while len(core) < n:
        core = torch.cat([torch.cat([core, core], 1), torch.cat([core, -core], 1)])
    return core


def _paley(n: int) -> Tensor | None:
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if n % 4 == 0 and _is_prime(n - 1):
        s = _jacobsthal(n - 1)
        return torch.eye(n).double() + _bordered(s, -1)
    q = n // 2 - 1
    if n % 4 == 0 and q % 4 == 1 and _is_prime(q):
        plus = torch.tensor([[1.0, 1], [1, -1]]).double()
        minus = torch.tensor([[1.0, -1], [-1, -1]]).double()
        return torch.kron(_bordered(_jacobsthal(q), 1), plus) + torch.kron(torch.eye(q + 1).double(), minus)
    return None


def _jacobsthal(q: int) -> Tensor:
    """``Q_ij`` is 1 where ``i - j`` is a square modulo ``q``, -1 where it is not, 0 where ``i = j``."""
    squares = {x * x % q for x in range(1, q)}
    places = torch.arange(q)
    character = torch.tensor([0] + [1 if x in squares else -1 for x in range(1, q)]).double()
    return character[(places[:, None] - places[None]) % q]


def _bordered(core: Tensor, corner: int) -> Tensor:
    """The core with a row of ones above it, and a column of ``corner`` beside it."""
    q = len(core)
    full = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    full[0, 1:], full[1:, 0], full[1:, 1:] = 1, corner, core
    return full


def _is_prime(n: int) -> bool:
    return n > 2 and all(n % d for d in range(2, int(n**0.5) + 1))
