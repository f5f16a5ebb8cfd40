"""Least-squares fits of scales and bases once units are matched: log ratios, Sylvester equations, closest rotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...groups import Element
from ...groups.dense import polar_factor
from ...symmetry.action import transform
from ...symmetry.blocks import blocks, inner_products
from ...symmetry.gauge.scales import LogScales
from ...symmetry.spaces import Layout, Leaf, Space
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.problem import Member, members
from .joint_scales import scale_steps

if TYPE_CHECKING:
    from ...symmetry.symmetry import Symmetry

__all__ = ["Fit", "log_scales"]

_CONDITION = 1e6  # a fitted basis is unidentifiable above this condition number: float32 weights leave it no digit
_UNKNOWN = 1e-12  # sums of eigenvalues, relative to the largest, along which the weights determine nothing


class Fit:
    """A network moved by an element whose scales and matrices are being fitted to another network.

    Balanced forms fix scales by norms, one vote per slice; here every weight has one, so that rounding averages out.
    Tensors that no scale and no matrix moves are not held. Numbers are those of the networks; sums over them are taken
    in float64.

    Args:
        sym: The symmetry, batch norms folded.
        a: Tensors to move.
        b: Tensors to meet.
        g: The element to begin with.
        spread: Sizes of what was subtracted to give entries of ``b`` (``Folded.spread``), which weigh less.

    Attributes:
        g: The element so far.
        near: The tensors that scales or matrices move, moved by ``g``.
    """

    def __init__(
        self,
        sym: Symmetry,
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        g: Transformation,
        spread: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.sym, self.b, self.g = sym, b, g
        self._spread = spread or {}
        self._spaces = [s for s in sym.spaces if s.group.scales or s.group.mixes]
        self._still = identity(sym)
        self.near = {name: transform(a[name], layout, g) for name, layout in sym.layouts.items() if _continuous(layout)}
        self._members = members(sym)
        self._joint = LogScales(sym, self.near, bases=False)  # heads take up at once what bases would step by step

    @property
    def exact(self) -> bool:
        """Whether no scale and no matrix is free, so that there is nothing to fit."""
        return not self.near

    def each_space(self, votes: Mapping[str, float] | None = None) -> None:
        """Fit one space after the other: scales by log ratios of slices, matrices by least squares."""
        for space in self._spaces:
            if space.group.mixes:
                self._turn(space, votes)
            else:
                self._put(space, scales=self._log_ratios(space, votes))

    def bases(self, votes: Mapping[str, float] | None = None) -> None:
        """Fit the matrices of one space after the other."""
        for space in self._spaces:
            if space.group.mixes:
                self._turn(space, votes)

    def scales(self, votes: Mapping[str, float] | None = None) -> None:
        """Fit the scales of all spaces at once."""
        means = {n: _mean_square(self.b[n]) for n in self.near}
        for logs in scale_steps(self._joint, self.near, self.b, {n: _vote(votes, n) / x for n, x in means.items()}):
            for name, step in logs.items():
                self._put(self.sym.space(name), scales=step)

    def _put(self, space: Space, **parts: Tensor) -> None:
        """Compose a step of one space with the element, and move the tensors that carry the space."""
        step = with_parts(self._still, space.name, **parts)
        self.g = Transformation(
            {**self.g.elements, space.name: step[space.name] @ self.g[space.name]}, self.g.certified
        )
        for name in self.near.keys() & {m.tensor for m in self._members[space.name]}:
            self.near[name] = transform(self.near[name], self.sym.layouts[name], step)

    def _log_ratios(self, space: Space, votes: Mapping[str, float] | None) -> Tensor:
        """Log scales ``(k, p..., n)`` by least squares on log ratios of slices, weighted by their sizes."""
        terms = []
        for m, x, y in self._slices(space):
            squares, inner = (inner_products(x, other, [x.ndim - 1]) for other in (x, y))
            usable = (squares > 0) & (inner > 0)
            ratio = torch.where(usable, inner / squares.clamp_min(1e-300), 1.0).log()
            there = x != 0
            weight = inner_products(there, self._trust(m) if m.tensor in self._spread else there, [x.ndim - 1])
            terms.append((m.leaf, _vote(votes, m.tensor) * weight * usable, ratio))
        return log_scales(self._still[space.name], terms)

    def _trust(self, m: Member) -> Tensor:
        """Weights of the entries of a folded bias: those that cancelled when it was made are rounded most."""
        spread = self._spread[m.tensor]
        left = (self.b[m.tensor] / spread.clamp_min(torch.finfo(spread.dtype).tiny)).square()
        return m.view(m.block.read(left))

    def _turn(self, space: Space, votes: Mapping[str, float] | None) -> None:
        matrix = self._matrix(space, votes)
        if matrix is not None:
            self._put(space, linear=matrix)

    def _matrix(self, space: Space, votes: Mapping[str, float] | None) -> Tensor | None:
        """Matrices ``(p..., n, n)`` that bring all slices of ``a`` closest to those of ``b``, weight by weight.

        With ``X`` of variance +1 and ``Y`` of variance -1 the errors ``M X_a - X_b`` and ``M^T Y_b - Y_a`` are both
        linear in ``M``: their least squares are a Sylvester equation
        ``M X_a X_a^T + Y_b Y_b^T M = X_b X_a^T + Y_b Y_a^T``.
        """
        n = space.size
        written, read, right = (torch.zeros(n, n, dtype=torch.float64) for _ in range(3))
        for m, x, y in self._slices(space):
            leaf = m.leaf
            x, y = x.double(), y.double()
            vote = _vote(votes, m.tensor) / _mean_square(self.b[m.tensor])
            if space.group.is_orthogonal or leaf.variance == 1:
                written = written + vote * x @ x.mT
            elif leaf.variance == -1:
                read = read + vote * y @ y.mT
            if space.group.is_orthogonal or leaf.variance:
                right = right + vote * y @ x.mT
        if space.group.is_orthogonal:
            return polar_factor(right)
        fitted = _sylvester(written, read, right)
        return fitted if bool((torch.linalg.cond(fitted) < _CONDITION).all()) else None

    def _slices(self, space: Space) -> list[tuple[Member, Tensor, Tensor]]:
        """The slices of a space in both networks, ``(p..., n, rest)``."""
        return [
            (m, m.view(m.block.read(self.near[m.tensor])), m.view(m.block.read(self.b[m.tensor])))
            for m in self._members[space.name]
            if m.tensor in self.near
        ]


def log_scales(still: Element, terms: Iterable[tuple[Leaf, Tensor, Tensor]]) -> Tensor:
    """Log scales ``(k, p..., n)`` by least squares on log ratios.

    Args:
        still: The identity of the space.
        terms: Exponents of the scales, with weights and log ratios ``(p..., n)``.
    """
    shape = (*still.permutation.shape, len(still.scales))
    normal, right = (torch.zeros(*some, dtype=torch.float64) for some in ((*shape, shape[-1]), shape))
    for leaf, weight, ratio in terms:
        e = torch.tensor([float(v) for v in leaf.scale] or [0.0] * shape[-1], dtype=torch.float64)
        normal += weight[..., None, None] * torch.outer(e, e)
        right += (weight * ratio)[..., None] * e
    return (torch.linalg.pinv(normal, rtol=1e-9, hermitian=True) @ right[..., None])[..., 0].movedim(-1, 0)


def _continuous(layout: Layout) -> bool:
    return any(isinstance(x, Leaf) and (any(x.scale) or x.variance) for block in blocks(layout) for x in block.leaves)


def _mean_square(x: Tensor) -> Tensor:
    return (inner_products(x, x, range(x.ndim)) / max(x.numel(), 1)).clamp_min(1e-300)


def _vote(votes: Mapping[str, float] | None, name: str) -> float:
    return 1.0 if votes is None else votes[name]


def _sylvester(written: Tensor, read: Tensor, right: Tensor) -> Tensor:
    """The solution of ``M written + read M = right``; the identity along directions that nothing determines."""
    l1, u1 = torch.linalg.eigh(written)
    l2, u2 = torch.linalg.eigh(read)
    sums = l2[..., :, None] + l1[..., None, :]
    known = sums > _UNKNOWN * sums.amax((-2, -1), keepdim=True)
    inner = torch.where(known, u2.mT @ right @ u1 / sums.clamp_min(1e-300), u2.mT @ u1)
    return u2 @ inner @ u1.mT
