"""Theorem 3.3: G_ReLU is the stabiliser of the activation basis, and rays off its axes have infinite orbits."""

import torch
from torch import Tensor

from intertwine.groups import MonomialElement, PositiveMonomial

__all__ = ["has_finite_orbit", "moving_element", "stabilises_rays"]


def stabilises_rays(matrix: Tensor, rays: Tensor | None = None, tol: float = 1e-9) -> bool:
    """Whether ``A`` maps a finite set of rays ``R_{>0} v_i`` onto itself.

    With the default rays, those of the standard basis, this holds exactly for ``A`` in G_ReLU (first half of Theorem
    3.3).

    Args:
        matrix: ``(n, n)``, invertible.
        rays: ``(k, n)``, one direction per row, nonzero and pairwise different; the standard basis without.
        tol: Largest distance of unit vectors that count as equal.

    Returns:
        The answer.

    Raises:
        ValueError: If a ray is zero.

    Examples:
        >>> swap_and_scale = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
        >>> stabilises_rays(swap_and_scale), stabilises_rays(-swap_and_scale)
        (True, False)
    """
    a = matrix.to(torch.float64)
    v = torch.eye(a.shape[0], dtype=torch.float64, device=a.device) if rays is None else rays.to(torch.float64)
    if bool((v.norm(dim=1) == 0).any()):
        raise ValueError("rays must be nonzero. Got a zero row.")
    moved = v @ a.T
    if bool((moved.norm(dim=1) == 0).any()):
        return False
    distance = torch.cdist(moved / moved.norm(dim=1, keepdim=True), v / v.norm(dim=1, keepdim=True))
    return sorted(distance.argmin(1).tolist()) == list(range(len(v))) and bool((distance.amin(1) <= tol).all())


def has_finite_orbit(vector: Tensor) -> bool:
    """Whether G_ReLU moves the ray of ``vector`` to finitely many rays only: exactly when one entry is nonzero.

    Second half of Theorem 3.3: a finite set of rays that G_ReLU stabilises holds nothing but ``+e_j`` and ``-e_j``.
    """
    return int((vector != 0).sum()) == 1


def moving_element(vector: Tensor, t: float) -> MonomialElement | None:
    """The proof's witness ``D = diag(1, .., t, .., 1)``, which turns ``vector`` into another ray for every ``t != 1``.

    Two nonzero entries ``v_i``, ``v_j`` give ``(v | D v)`` a minor of determinant ``(1 - t) v_i v_j`` (v2 E.24, v1
    E.20), so different ``t`` give different rays and the orbit is infinite.

    Args:
        vector: ``(n,)``.
        t: A positive number.

    Returns:
        The element, or ``None`` where ``vector`` has a finite orbit.
    """
    support = (vector != 0).nonzero().flatten()
    if len(support) < 2:
        return None
    scale = torch.ones(len(vector), dtype=torch.float64)
    scale[support[0]] = t
    return PositiveMonomial(len(vector)).element(list(range(len(vector))), scale)
