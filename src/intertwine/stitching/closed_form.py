"""Direct matching: the best member of a family for two feature sets, from their second moments alone.

Every function returns the ``(C_out, C_in)`` matrix ``A`` with the least ``sum |y - A x|^2`` in its family. Directions
without energy (dead channels) never decide anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..features.moments import CrossMoments
from ..groups import GeneralLinear, Group, Monomial, Orthogonal, UnitRowSum, assign
from ..groups.dense import polar_factor

__all__ = [
    "diagonal", "group_procrustes", "identity", "intercept", "least_squares", "pseudo_inverse", "reduced_rank",
    "unit_row_sum",
]  # fmt: skip


@dataclass(frozen=True)
class Moments:
    """Sums over examples and over space (or tokens) of products of channels, in float64."""

    xx: Tensor  # ``(C_in, C_in)``, ``x.T @ x`` of network A's features
    xy: Tensor  # ``(C_in, C_out)``, ``x.T @ y``
    yy: Tensor  # ``(C_out, C_out)``, ``y.T @ y`` of network B's features
    sum_x: Tensor  # ``(C_in,)``
    sum_y: Tensor  # ``(C_out,)``
    count: int  # Number of positions summed: examples times spatial positions
    # ``xx, xy, yy`` about the means of the channels, if known more precisely than by differences: exactly 0 for
    # constant channels
    about_means: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def of(cls, sums: CrossMoments) -> Moments:
        """Moments of what was added up, A's features first, with products within each side; refused if not finite."""
        xy, xx, yy = sums.products()
        for side, square in (("A", xx), ("B", yy)):
            if not bool(torch.isfinite(square).all()):
                raise ValueError(
                    f"features must be finite. Got NaN or infinite ones of {side}. Check inputs and weights."
                )
        x, y, count = sums.a.mean, sums.b.mean, sums.a.count
        raw_xx, raw_xy, raw_yy = (
            part + count * torch.outer(m, n) for part, m, n in ((xx, x, x), (xy, x, y), (yy, y, y))
        )
        return cls(raw_xx, raw_xy, raw_yy, count * x, count * y, count, (xx, xy, yy))

    @property
    def c_in(self) -> int:
        """Channels of A."""
        return self.xx.shape[0]

    @property
    def c_out(self) -> int:
        """Channels of B."""
        return self.yy.shape[0]

    def centred(self) -> Moments:
        """The same moments with the mean of every channel subtracted: what a map with a bias is fitted to."""
        x, y = self.sum_x, self.sum_y
        xx, xy, yy = self.about_means or (
            full - torch.outer(a, b) / self.count for full, a, b in ((self.xx, x, x), (self.xy, x, y), (self.yy, y, y))
        )
        return Moments(xx, xy, yy, torch.zeros_like(x), torch.zeros_like(y), self.count)

    def residual(self, matrix: Tensor, bias: Tensor | None = None) -> float:
        """Share of B's features ``y`` that a map misses, ``sum |y - A x - b|^2 / sum |y|^2``: 0 where ``A x + b = y``.

        ``matrix`` is ``(C_out, C_in)``, ``bias`` ``(C_out,)``. Where rounding leaves -1e-15 for 0, the result is 0.
        """
        a = matrix.detach().to(self.xx)
        b = torch.zeros_like(self.sum_y) if bias is None else bias.detach().to(self.xx)
        ax = a @ self.sum_x
        square = (a @ self.xx * a).sum() + 2 * b @ ax + self.count * b @ b
        missed = self.yy.trace() - 2 * (a * self.xy.T).sum() - 2 * b @ self.sum_y + square
        return max(0.0, float(missed / self.yy.trace()))

    @property
    def live_x(self) -> Tensor:
        """``(C_in,)`` bool: channels of A that ever respond."""
        return self.xx.diagonal() > 0

    @property
    def live_y(self) -> Tensor:
        """``(C_out,)`` bool: channels of B that ever respond."""
        return self.yy.diagonal() > 0


_TINY = torch.finfo(torch.float64).tiny  # moments are in float64
FLOOR = 1e-6  # scale of a pair that would best have none, as group elements have no zero entries


def least_squares(moments: Moments) -> Tensor:
    """All matrices: linear regression ``A = Y^T X (X^T X)^+``, without directions in which A does not vary."""
    return moments.xy.T @ pseudo_inverse(moments.xx)


def reduced_rank(moments: Moments, rank: int) -> tuple[Tensor, Tensor]:
    """Matrices of rank ``<= r``: reduced-rank regression.

    The fit ``A X`` of ordinary least squares is projected on its ``r`` strongest directions ``V``: ``V V^T A``, as
    factors ``(C_out, r)`` with orthonormal columns and ``(r, C_in)``.

    Raises:
        ValueError: If ``rank`` is out of range.
    """
    most = min(moments.c_in, moments.c_out)
    if not 1 <= rank <= most:
        raise ValueError(f"rank must be from 1 to {most}, the smaller width. Got {rank}.")
    a = least_squares(moments)
    fitted = a @ moments.xy  # Y^T X (X^T X)^+ X^T Y, symmetric
    _, vectors = torch.linalg.eigh((fitted + fitted.T) / 2)
    left = vectors[:, -rank:].flip(1)
    return left, left.T @ a


def diagonal(moments: Moments) -> Tensor:
    """Diagonal matrices: ``a_i = <x_i, y_i> / |x_i|^2``, and 1 for channels of A that never respond."""
    k = min(moments.c_in, moments.c_out)
    energy = moments.xx.diagonal()[:k]
    scales = torch.where(energy > 0, moments.xy.diagonal()[:k] / energy.clamp_min(_TINY), 1.0)
    a = identity(moments)
    a.diagonal().copy_(scales)
    return a


def unit_row_sum(moments: Moments) -> Tensor:
    """Matrices whose rows sum to one: linear regression under ``A 1 = 1``, the solution of smallest norm.

    What rows lack costs nothing on channels of A that never respond: with one of them, the fit is that of all matrices.
    """
    energy = moments.xx.diagonal()
    live = energy[energy > 0]
    scale = torch.where(energy > 0, energy, live.min() if len(live) else 1.0).rsqrt()  # as in pseudo_inverse
    size, edge = scale.norm(), (scale / scale.norm())[:, None]
    # Of A' = A / scale and a multiplier for each row: the gradient is 0, and rows sum to one.
    system = torch.cat([torch.cat([moments.xx * scale[:, None] * scale, edge], 1), nn.functional.pad(edge.T, (0, 1))])
    goal = torch.cat([moments.xy * scale[:, None], (1 / size).expand(1, moments.c_out)])
    cut = len(system) * torch.finfo(system.dtype).eps * 1e3
    return ((torch.linalg.pinv(system, rtol=cut, hermitian=True) @ goal)[:-1] * scale[:, None]).T


def identity(moments: Moments) -> Tensor:
    """Ones on the diagonal; zero rows or columns where the widths differ."""
    return torch.eye(moments.c_out, moments.c_in, dtype=torch.float64, device=moments.xx.device)


def group_procrustes(group: Group, moments: Moments) -> Tensor:
    """The element ``g`` of a group with ``g x ~ y`` (see ``Group.procrustes``).

    Unequal widths: both sides are padded with zero channels to ``n = max(C_in, C_out)`` and the element's ``C_out x
    C_in`` block is returned (the papers are silent). If A is wider, some of its channels go unread, and without free
    scales it matters which: a pair then saves ``2 xy_ji - xx_jj`` (with signs ``2 |xy_ji| - xx_jj``). Dead channels
    match dead ones where there are as many; a scale that nothing determines is 1 behind a dead channel of A and
    ``1e-6`` elsewhere. For ``GeneralLinear`` the answer is ``least_squares``, which is singular if a channel is dead,
    and then only a limit of elements; so is ``unit_row_sum`` for ``UnitRowSum`` if two are. For ``Orthogonal`` with a
    wider A it is the polar factor, which is then not a least-squares solution: none is known in closed form.

    Raises:
        ValueError: If the group acts on another number of channels, or cannot be fitted.
    """
    n = max(moments.c_in, moments.c_out)
    if group.n != n:
        raise ValueError(f"group must act on {n} channels, the wider side. Got {group!r}.")
    if isinstance(group, GeneralLinear):
        return least_squares(moments)
    if isinstance(group, UnitRowSum) and moments.c_in == moments.c_out:
        return unit_row_sum(moments)
    xx, xy, yy = (_pad(m, n) for m in (moments.xx, moments.xy, moments.yy))
    if isinstance(group, Orthogonal) and moments.c_in != moments.c_out:
        return polar_factor(moments.xy.T)
    if moments.c_in > moments.c_out and isinstance(group, Monomial) and group.permutes and not group.scales:
        return _best_injection(moments, group.signs > 0)
    dead = ~(xx.diagonal() > 0)
    xx, yy = _with_energy(xx), _with_energy(yy)
    if isinstance(group, Monomial) and group.permutes:
        element = group.procrustes(xy, xx, yy, floor=FLOOR)
        scale = torch.where(dead[element.index], 1.0, element.scales()) if group.dim else element.scales()
        matrix = torch.zeros_like(xx)
        matrix[torch.arange(n, device=xx.device), element.index] = scale.to(xx)
    else:
        matrix = group.procrustes(xy, xx, yy).matrix(torch.float64)
    return matrix[: moments.c_out, : moments.c_in].clone()


def intercept(matrix: Tensor, moments: Moments) -> Tensor:
    """The bias ``b = mean(y) - A mean(x)`` ``(C_out,)`` of ``A``, best if ``A`` was fitted to centred moments."""
    return (moments.sum_y - matrix.to(moments.xx) @ moments.sum_x) / moments.count


def pseudo_inverse(xx: Tensor) -> Tensor:
    """``X^+`` of a symmetric positive semidefinite ``(C, C)`` without dead directions, with channels at unit energy."""
    scale = xx.diagonal().clamp_min(0).sqrt()
    weight = torch.where(scale > 0, 1 / scale.clamp_min(_TINY), 0.0)
    values, vectors = torch.linalg.eigh(xx * weight[:, None] * weight)
    cut = values.amax() * len(values) * torch.finfo(values.dtype).eps * 1e3
    inverse = torch.where(values > cut, 1 / values.clamp_min(_TINY), 0.0)
    return weight[:, None] * (vectors * inverse) @ vectors.T * weight


def _best_injection(moments: Moments, signed: bool) -> Tensor:
    """Best match in which each channel of B reads a different one of A's more numerous ones; unread ones are free."""
    c = moments.xy.T
    gain = c.new_zeros(moments.c_in, moments.c_in)
    gain[: moments.c_out] = 2 * (c.abs() if signed else c) - moments.xx.diagonal()
    index = assign(gain)[: moments.c_out]
    entries = torch.where(c.gather(1, index[:, None])[:, 0] < 0, -1.0, 1.0).to(c) if signed else c.new_ones(len(index))
    matrix = torch.zeros_like(c)
    matrix[torch.arange(len(index), device=c.device), index] = entries
    return matrix


def _pad(m: Tensor, n: int) -> Tensor:
    return nn.functional.pad(m, (0, n - m.shape[1], 0, n - m.shape[0]))


def _with_energy(m: Tensor) -> Tensor:
    """Adds the smallest energy of a live channel on the diagonal for dead ones: no division by 0, and no covariance."""
    d = m.diagonal()
    live = d[d > 0]
    fill = live.min() if len(live) else d.new_ones(())
    return m + torch.diag(torch.where(d > 0, 0.0, fill))
