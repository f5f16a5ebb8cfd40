"""Bases in which a layer is dissected: powers of a random rotation of the channels, and random elements of G_ReLU.

Every rotation is block diagonal in some orthonormal basis, with plane rotations by angles in [-pi, pi] as blocks:

    Q = Z diag(R(theta_1), ..., R(theta_m), 1, ..., 1) Z^T,      log Q = Z diag(J theta_1, ..., J theta_m, 0) Z^T

with ``J = [[0, -1], [1, 0]]``. The path ``Q^alpha = exp(alpha log Q)`` multiplies every angle by ``alpha``; it is a
geodesic, and a shortest one because no angle exceeds pi.

Sources: Diaconis 2005 (Haar measure by orthonormalising Gaussian columns); paper 1, section 6 (``Q^alpha``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..groups import Orthogonal, PositiveMonomial
from ..groups.sampling import haar


@dataclass(frozen=True, eq=False)
class Rotation:
    """A rotation decomposed into planes and angles.

    ``Q = I + sum_k [(cos t_k - 1) (u_k u_k^T + v_k v_k^T) + sin t_k (v_k u_k^T - u_k v_k^T)]`` for the planes spanned
    by the orthonormal ``u_k, v_k``; powers only multiply the angles.

    Examples:
        >>> quarter = Rotation.of(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
        >>> (quarter.angles.abs() / torch.pi).tolist()
        [0.5]
        >>> half_way = quarter.power(0.5)
        >>> torch.allclose(half_way @ half_way, quarter.matrix())
        True
    """

    first: Tensor  # The vectors ``u_k`` as columns, ``(n, m)`` with ``m <= n / 2``, in float64
    second: Tensor  # The vectors ``v_k`` as columns, ``(n, m)``
    angles: Tensor  # The angles ``t_k`` in [-pi, pi], ``(m,)``

    @classmethod
    def of(cls, matrix: Tensor) -> "Rotation":
        """Decompose a rotation matrix by its real Schur form.

        The Schur form of a rotation is block diagonal up to rounding. Its 2x2 blocks give angles; its 1x1 blocks are
        1 or -1, and the -1s, an even number of them, are paired into half turns: those planes are not unique, and any
        choice gives a shortest path.

        Raises:
            ValueError: If the matrix is not square, not orthogonal, or has determinant -1.
        """
        from scipy.linalg import schur

        q = matrix.detach().to("cpu", torch.float64)
        if q.ndim != 2 or q.shape[0] != q.shape[1] or not q.numel():
            raise ValueError(f"matrix must be square. Got shape {tuple(q.shape)}.")
        if not Orthogonal(len(q)).contains(q, 1e-8):
            raise ValueError("matrix must be orthogonal to 1e-08. Got one that is not: compute it in float64.")
        t, z = (torch.from_numpy(a) for a in schur(q.numpy(), output="real"))
        alone, planes = torch.ones(len(t), dtype=torch.bool), (t.diagonal(-1) != 0).nonzero().flatten()  # 2x2 blocks
        alone[planes] = alone[planes + 1] = False
        negative = (alone & (t.diagonal() < 0)).nonzero().flatten()  # 1x1 blocks
        if len(negative) % 2:
            raise ValueError(
                "matrix must have determinant 1. Got an orthogonal matrix with determinant -1, a reflection, which no "
                "path of rotations reaches from the identity. Flip the sign of one column."
            )
        i, j = torch.cat([planes, negative[::2]]), torch.cat([planes + 1, negative[1::2]])
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


@dataclass(frozen=True)
class Arm:
    """One basis: what is done to the channels before they are dissected."""

    # ``"rotation"`` for ``Q^alpha``, ``"g_relu"`` for a permutation with positive scales
    kind: Literal["rotation", "g_relu"]
    alpha: float  # Power of the rotation; 0 is the basis of the network itself. 1 for ``"g_relu"``.
    seed: int  # Which random rotation or element

    @property
    def name(self) -> str:
        """A short name that is also a valid file name."""
        return f"{self.kind}-{self.alpha:g}-{self.seed}"

    def action(self, units: int, scale: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """The map on channel axis 1 of maps ``(B, U, h', w')``; changed maps are in float64."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.kind == "g_relu":
            element = PositiveMonomial(units).random(generator=generator)
            return lambda maps: element.apply(maps.double(), dim=1)
        if self.alpha == 0:
            return lambda maps: maps
        power = Rotation.of(random_rotation(units, generator)).power(self.alpha)
        power = power if scale is None else power / scale
        return lambda maps: (power.to(maps.device) @ maps.double().flatten(2)).view_as(maps)


@dataclass(frozen=True)
class Bases:
    """The bases in which a layer is dissected.

    Attributes:
        rotations: Powers ``alpha`` in [0, 1] of random rotations; 0, the network's own basis, is always included.
        seeds: Random rotations for each power: their number, or their seeds.
        g_relu: Number of random elements of G_ReLU.

    Raises:
        ValueError: If one is out of range.
    """

    rotations: Sequence[float] = (0, 0.25, 0.5, 0.75, 1)
    seeds: int | Sequence[int] = 5
    g_relu: int = 1

    def __post_init__(self) -> None:
        wrong = [a for a in self.rotations if not 0 <= a <= 1]
        if wrong or not self.rotations:
            raise ValueError(f"rotations must be powers in [0, 1]. Got {list(self.rotations)}.")
        seeds = self._seeds
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds must be different and at least one. Got {list(seeds)}.")
        if self.g_relu < 0:
            raise ValueError(f"g_relu must be a number of elements, at least 0. Got {self.g_relu}.")

    @property
    def _seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Each power for each seed (power 0 once, as it is the same for all), then elements of G_ReLU."""
        seeds, powers = self._seeds, sorted({float(a) for a in self.rotations} - {0.0})
        return (
            Arm("rotation", 0.0, seeds[0]),
            *(Arm("rotation", alpha, seed) for alpha in powers for seed in seeds),
            *(Arm("g_relu", 1.0, seed) for seed in range(self.g_relu)),
        )


BASES = Bases()
