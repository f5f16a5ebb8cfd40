r"""Rotations of the channels: uniform on SO(n), and the shortest path from the identity to one of them.

Every rotation is block diagonal in some orthonormal basis, with plane rotations by angles in [-pi, pi] as blocks:

    Q = Z diag(R(theta_1), ..., R(theta_m), 1, ..., 1) Z^T,      log Q = Z diag(J theta_1, ..., J theta_m, 0) Z^T

with ``J = [[0, -1], [1, 0]]``. The path ``Q^alpha = exp(alpha log Q)`` multiplies every angle by ``alpha``; it is a
geodesic, and a shortest one because no angle exceeds pi.

Sources: Diaconis 2005 (Haar measure by orthonormalising Gaussian columns); paper 1, section 6 (``Q^alpha``).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..groups import Orthogonal
from ..groups.sampling import haar

_TOLERANCE = 1e-8  # how far from orthogonal a given matrix may be


@dataclass(frozen=True, eq=False)
class Rotation:
    """A rotation taken apart into planes and angles.

    ``Q = I + sum_k [(cos t_k - 1) (u_k u_k^T + v_k v_k^T) + sin t_k (v_k u_k^T - u_k v_k^T)]`` for the planes spanned
    by the orthonormal ``u_k, v_k``; powers only multiply the angles.

    Args:
        first: The vectors ``u_k`` as columns, ``(n, m)`` with ``m <= n / 2``, in float64.
        second: The vectors ``v_k`` as columns, ``(n, m)``.
        angles: The angles ``t_k`` in [-pi, pi], ``(m,)``.

    Examples:
        >>> quarter = Rotation.of(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
        >>> (quarter.angles.abs() / torch.pi).tolist()
        [0.5]
        >>> half_way = quarter.power(0.5)
        >>> torch.allclose(half_way @ half_way, quarter.matrix())
        True
    """

    first: Tensor
    second: Tensor
    angles: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> "Rotation":
        """Take a rotation matrix apart by its real Schur form.

        The Schur form of a rotation is block diagonal up to rounding. Its 2x2 blocks give angles; its 1x1 blocks are
        1 or -1, and the -1s, an even number of them, are paired into half turns: those planes are not unique, and any
        choice gives a shortest path.

        Raises:
            ValueError: If the matrix is not square, not orthogonal, or has determinant -1.
        """
        from scipy.linalg import schur

        q = matrix.detach().to("cpu", torch.float64)
        _check_orthogonal(q)
        t, z = (torch.from_numpy(a) for a in schur(q.numpy(), output="real"))
        planes, negative = _blocks(t)
        if len(negative) % 2:
            raise ValueError(
                "matrix must have determinant 1. Got an orthogonal matrix with determinant -1, a reflection, which no "
                "path of rotations reaches from the identity. Flip the sign of one column."
            )
        pairs = [(i, i + 1) for i in planes] + list(zip(negative[::2], negative[1::2]))
        i, j = (torch.tensor(side, dtype=torch.long) for side in ([p[0] for p in pairs], [p[1] for p in pairs]))
        angles = torch.atan2(t[j, i] - t[i, j], t[i, i] + t[j, j])
        angles[len(planes) :] = torch.pi
        return cls(z[:, i], z[:, j], angles)

    @property
    def n(self) -> int:
        """Number of dimensions."""
        return self.first.shape[0]

    def power(self, alpha: float) -> Tensor:
        """``Q^alpha`` as ``(n, n)`` in float64; exactly the identity at 0."""
        cosine, sine = torch.cos(alpha * self.angles) - 1, torch.sin(alpha * self.angles)
        u, v = self.first, self.second
        turned = (v * sine) @ u.T
        return torch.eye(self.n, dtype=torch.float64) + (u * cosine) @ u.T + (v * cosine) @ v.T + turned - turned.T

    def matrix(self) -> Tensor:
        """``Q`` as ``(n, n)`` in float64."""
        return self.power(1.0)


def random_rotation(n: int, generator: torch.Generator | None = None) -> Tensor:
    """A rotation drawn uniformly (Haar) from SO(n).

    Raises:
        ValueError: If ``n`` is not positive.

    Examples:
        >>> q = random_rotation(5, torch.Generator().manual_seed(0))
        >>> torch.allclose(q @ q.T, torch.eye(5, dtype=torch.float64)), round(float(torch.linalg.det(q)), 6)
        (True, 1.0)
    """
    if n < 1:
        raise ValueError(f"n must be at least 1. Got {n}.")
    return haar(n, generator, special=True).cpu()


def _blocks(t: Tensor) -> tuple[list[int], list[int]]:
    """Where the 2x2 blocks of a real Schur form start, and which 1x1 blocks are -1."""
    planes: list[int] = []
    negative: list[int] = []
    i, n = 0, t.shape[0]
    while i < n:
        if i + 1 < n and t[i + 1, i] != 0:
            planes.append(i)
            i += 2
        else:
            if t[i, i] < 0:
                negative.append(i)
            i += 1
    return planes, negative


def _check_orthogonal(q: Tensor) -> None:
    if q.ndim != 2 or q.shape[0] != q.shape[1] or not q.numel():
        raise ValueError(f"matrix must be square. Got shape {tuple(q.shape)}.")
    if not Orthogonal(len(q)).contains(q, _TOLERANCE):
        raise ValueError(f"matrix must be orthogonal to {_TOLERANCE:g}. Got one that is not: compute it in float64.")
