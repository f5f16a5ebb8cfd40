"""Stitching layers without a permutation to find: full, low-rank, sparse, diagonal, orthogonal, and of any group."""

from math import log
from typing import Unpack

import torch
from torch import Tensor, nn

from .. import groups
from ..groups import Group, Unattained
from ..groups.dense import polar_factor
from .closed_form import FLOOR, Moments, diagonal, group_procrustes, least_squares, reduced_rank
from .layer import Common, StitchingLayer

__all__ = ["Diagonal", "Full", "Identity", "Lasso", "Orthogonal", "Projected", "Rank", "sparsity"]


class WeightLayer(StitchingLayer):
    """Base of layers whose only parameter besides a bias is the map itself."""

    weight: nn.Parameter  # ``(C_out, C_in)``

    def matrix(self) -> Tensor:
        """The weight."""
        return self.weight


class Full(WeightLayer):
    """A full 1x1 convolution (paper 1, section 4): any ``(C_out, C_in)`` matrix, so widths may differ."""

    family = "full"

    def create(self, generator: torch.Generator | None) -> None:
        """Uniform in ``+-1 / sqrt(C_in)``, of dimension ``C_out C_in``."""
        self.weight, self.dim = nn.Parameter(uniform(self.c_out, self.c_in, generator)), self.c_in * self.c_out

    def fit(self, moments: Moments) -> None:
        """Least squares: ``min sum |y - A x|^2``, the solution of smallest norm."""
        self.weight.copy_(least_squares(moments))


def uniform(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """Entries uniform in ``+-1 / sqrt(columns)``, as torch initialises a convolution."""
    return (2 * torch.rand(rows, columns, generator=generator) - 1) / columns**0.5


class Rank(StitchingLayer):
    """Maps of rank at most ``r``: two 1x1 convolutions, ``V`` ``(r, C_in)`` and ``U`` ``(C_out, r)`` (paper 1, v2 D.2).

    Their dimension is ``r (C_in + C_out) - r^2``, less than the count of stored numbers, since ``U G`` and ``G^-1 V``
    make the same map (v2 E.30). Widths may differ.

    Raises:
        ValueError: If the rank is not between 1 and the smaller width.
    """

    def __init__(self, c_in: int, c_out: int, rank: int, **common: Unpack[Common]) -> None:
        super().__init__(c_in, c_out, **common)
        generator = common.get("generator")
        if not 1 <= rank <= min(c_in, c_out):
            raise ValueError(f"rank must be from 1 to {min(c_in, c_out)}, the smaller width. Got {rank}.")
        self.family, self.rank, self.dim = f"rank-{rank}", rank, rank * (c_in + c_out) - rank**2
        self.down = nn.Parameter(uniform(rank, c_in, generator))
        self.up = nn.Parameter(uniform(c_out, rank, generator))

    def matrix(self) -> Tensor:
        """``U V``."""
        return self.up @ self.down

    def fit(self, moments: Moments) -> None:
        """Reduced-rank regression; both factors get equal sizes, so that one learning rate suits them."""
        up, down = reduced_rank(moments, self.rank)  # orthonormal columns, so `down` carries all the size
        u, s, vh = torch.linalg.svd(down, full_matrices=False)
        root = s.sqrt()
        self.up.copy_(up @ u * root)
        self.down.copy_(root[:, None] * vh)


class Lasso(Full):
    """A full map with the penalty ``lambda |A|_1`` (paper 1, v2 D.6, which takes a ``strength`` of 1e-4 to 1e-1).

    Differs from the paper: the penalty acts by its proximal step, ``a <- sign(a) max(|a| - lr lambda, 0)`` after each
    step on the loss, so that zeros *are* zeros; a gradient step on ``|a|`` jumps over zero for ever. The minimiser is
    the same; ``proximal=False``, a term of the loss, is as printed. A bias is not penalised.

    Raises:
        ValueError: If the strength is negative.
    """

    def __init__(
        self, c_in: int, c_out: int, strength: float = 1e-3, proximal: bool = True, **common: Unpack[Common]
    ) -> None:
        if not strength >= 0:
            raise ValueError(f"strength must be at least 0. Got {strength}.")
        super().__init__(c_in, c_out, **common)
        self.proximal = proximal
        self.family, self.strength = "lasso" if strength == 1e-3 else f"lasso-{strength:g}", strength

    def regulariser(self) -> Tensor:
        """``lambda |A|_1`` to add to the loss, if there is no proximal step."""
        return self.weight.new_zeros(()) if self.proximal else self.strength * self.weight.abs().sum()

    def penalty(self) -> float:
        """``lambda |A|_1``, for which the proximal step stands."""
        return self.strength * float(self.weight.detach().abs().sum())

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Soft thresholding by ``lr lambda``."""
        if self.proximal:
            self.weight.copy_(torch.nn.functional.softshrink(self.weight, lr * self.strength))


def sparsity(matrix: Tensor, threshold: float = 1e-3) -> float:
    """Share of entries with ``|a_ij| <= threshold`` (v2 D.1; the paper takes 1e-3); ``1 - 1/n`` for a permutation.

    Examples:
        >>> sparsity(torch.eye(4))
        0.75
    """
    return float((matrix.detach().abs() <= threshold).double().mean())


class Diagonal(StitchingLayer):
    """``y_i = d_i x_i``, any signs, with ``d`` its ``scale``: for networks whose channels correspond already.

    For unequal widths: the channels that both have, and zeros.
    """

    family = "diagonal"

    def create(self, generator: torch.Generator | None) -> None:
        """The identity, with as many dimensions as the smaller width."""
        self.dim = min(self.c_in, self.c_out)
        self.scale = nn.Parameter(torch.ones(self.dim))

    def matrix(self) -> Tensor:
        """``diag(d)``."""
        return nn.functional.pad(torch.diag(self.scale), (0, self.c_in - self.dim, 0, self.c_out - self.dim))

    def fit(self, moments: Moments) -> None:
        """Least squares channel by channel; channels of A that never respond keep factor one."""
        self.scale.copy_(diagonal(moments).diagonal())


class Identity(StitchingLayer):
    """``y = x``; for unequal widths, the channels that both have, and zeros."""

    family = "identity"
    dim = 0

    def matrix(self) -> Tensor:
        """Ones on the diagonal."""
        return torch.eye(self.c_out, self.c_in, device=None if self.bias is None else self.bias.device)

    def fit(self, moments: Moments) -> None:
        """Only a bias has something to fit."""


class Orthogonal(WeightLayer):
    """Orthogonal matrices: each gradient step is followed by the polar factor, the nearest orthogonal matrix.

    For unequal widths: matrices with orthonormal columns (``C_in < C_out``) or rows. For widths ``m <= N`` their
    dimension is ``N m - m (m + 1) / 2`` and they form one piece; for equal widths, ``n (n - 1) / 2`` and two pieces.
    """

    family = "orthogonal"

    def create(self, generator: torch.Generator | None) -> None:
        """A random start, uniform over the family."""
        small, large = sorted((self.c_in, self.c_out))
        self._group, self.log_components = groups.Orthogonal(large), log(2) if small == large else 0.0
        self.dim = large * small - small * (small + 1) // 2
        drawn = self._group.random(generator, torch.get_default_dtype()).matrix()
        self.weight = nn.Parameter(drawn[: self.c_out, : self.c_in].clone())

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Replace the weight by its polar factor."""
        self.weight.copy_(polar_factor(self.weight))

    def fit(self, moments: Moments) -> None:
        """Orthogonal Procrustes: ``max tr(A x.T y)``; the least ``sum |y - A x|^2`` unless ``C_in > C_out``."""
        self.weight.copy_(group_procrustes(self._group, moments))


class Projected(WeightLayer):
    """A layer generated from any group: ``group.project`` after each step, ``group.procrustes`` as a start.

    Made for groups in which one can move continuously (rotations, all invertible matrices, unit row sums). Permutations
    need a relaxation: small steps that are each rounded never leave a permutation. The random start is
    ``group.random``.
    """

    def __init__(self, group: Group, **common: Unpack[Common]) -> None:
        super().__init__(group.n, group.n, **common)
        self.family, self.group, self.dim, self.log_components = repr(group), group, group.dim, group.log_components
        drawn = group.random(common.get("generator"), torch.get_default_dtype()).matrix()
        self.weight = nn.Parameter(drawn.clone())

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Go to the nearest element; if that is only a limit of elements, as behind dead channels, to one nearby."""
        try:
            found = self.group.project(self.weight)
        except Unattained:
            wide = self.weight.cpu().double()
            found = self.group.project(wide + FLOOR * torch.eye(len(wide), dtype=wide.dtype))
        self.weight.copy_(found.matrix())

    def fit(self, moments: Moments) -> None:
        """The group's element with the least ``sum |y - g x|^2``."""
        self.weight.copy_(group_procrustes(self.group, moments))
