"""Groups made of groups as families: blocks side by side, and blocks that may change places."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ...groups import Group, Product, Wreath, assign
from ..closed_form import group_procrustes
from ..layer import StitchingLayer, doubly_stochastic_error
from ..moments import Moments
from .birkhoff import frobenius_on_polytope
from .projected import OfGroup
from .sinkhorn import sinkhorn

Make = Callable[[Group], StitchingLayer]


class _OfBlocks(OfGroup):
    """Base: one layer for each output block, and the group that they make."""

    group: Product | Wreath

    def __init__(self, group: Product | Wreath, parts: list[StitchingLayer], bias: bool, channel_dim: int) -> None:
        super().__init__(group, bias, channel_dim)
        self._parts = nn.ModuleList(parts)

    @property
    def parts(self) -> list[StitchingLayer]:
        """The layer of each output block."""
        return cast(list[StitchingLayer], list(self._parts))

    def regulariser(self) -> Tensor:
        """The sum over blocks."""
        total = super().regulariser()
        for part in self.parts:
            total = total + part.regulariser()
        return total

    def after_step(self, lr: float) -> None:
        """Every block goes back into its family."""
        for part in self.parts:
            part.after_step(lr)

    def head_start(self, active: bool) -> None:
        """Every block holds what it holds, or lets it go."""
        for part in self.parts:
            part.head_start(active)


class Blocks(_OfBlocks):
    """A direct product as a family: each block of channels is stitched to the same block by a layer of its own.

    Args:
        group: The product.
        make: Makes the layer of a factor.
        bias: Whether to add a bias.
        channel_dim: The channel axis.
    """

    def __init__(self, group: Product, make: Make, *, bias: bool = False, channel_dim: int = 1) -> None:
        super().__init__(group, [make(factor) for factor in group.factors], bias, channel_dim)

    def matrix(self) -> Tensor:
        """Block-diagonal."""
        return torch.block_diag(*(part.matrix() for part in self.parts))

    def rounded(self) -> Tensor:
        """Block-diagonal."""
        return torch.block_diag(*(part.rounded() for part in self.parts))

    def fit(self, moments: Moments) -> None:
        """Each block by itself: the squared error is a sum over blocks."""
        for part, s in zip(self.parts, self.group.slices, strict=True):
            part.start(moments.select(s, s))

    def doubly_stochastic_error(self) -> float | None:
        """The largest of all blocks; ``None`` where none has a relaxed permutation."""
        return max((e for e in (part.doubly_stochastic_error() for part in self.parts) if e is not None), default=None)


class SwappedBlocks(_OfBlocks):
    """A wreath product as a family: blocks change places by a permutation relaxed as in :class:`Birkhoff`.

    Block ``(i, j)`` of the matrix is ``P_ij B_i``, ``P`` doubly stochastic of size ``k`` and ``B_i`` a layer of the
    base's family.

    Args:
        group: The wreath product.
        make: Makes the layer of the base.
        alpha: Weight of ``-|P|_F``.
        sinkhorn_steps: Of the projection of ``P``.
        bias: Whether to add a bias.
        channel_dim: The channel axis.
        generator: Source of the random start of ``P``.

    Attributes:
        permutation: ``P``, ``(k, k)``.
    """

    group: Wreath

    def __init__(
        self,
        group: Wreath,
        make: Make,
        *,
        alpha: float = 0.1,
        sinkhorn_steps: int = 16,
        bias: bool = False,
        channel_dim: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(group, [make(group.base) for _ in range(group.k)], bias, channel_dim)
        self.alpha, self.sinkhorn_steps = alpha, sinkhorn_steps
        self.permutation = nn.Parameter(sinkhorn(torch.rand(group.k, group.k, generator=generator), sinkhorn_steps))

    def matrix(self) -> Tensor:
        """``P_ij B_i`` at block ``(i, j)``."""
        return _spread(self.permutation, torch.stack([part.matrix() for part in self.parts]))

    def rounded(self) -> Tensor:
        """The same with the permutation nearest to ``P`` and members of the base's family."""
        order = assign(self.permutation)
        p = torch.zeros_like(self.permutation.detach())
        p[torch.arange(self.group.k, device=p.device), order] = 1
        return _spread(p, torch.stack([part.rounded() for part in self.parts]))

    def regulariser(self) -> Tensor:
        """``-alpha |P|_F`` and those of the blocks."""
        return super().regulariser() - self.alpha * frobenius_on_polytope(self.permutation)

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Project ``P`` onto the polytope, and every block into its family."""
        super().after_step(lr)
        self.permutation.copy_(sinkhorn(self.permutation, self.sinkhorn_steps))

    def fit(self, moments: Moments) -> None:
        """The best pairing of blocks by ``group.procrustes``, then each block by itself."""
        k, m = self.group.k, self.group.base.n
        sizes = group_procrustes(self.group, moments).abs().reshape(k, m, k, m).sum((1, 3))
        order = sizes.argmax(1).tolist()  # one block of every row is not zero
        self.permutation.zero_()
        self.permutation[torch.arange(k), torch.tensor(order)] = 1
        slices = self.group.slices
        for part, y, j in zip(self.parts, slices, order, strict=True):
            part.start(moments.select(slices[j], y))

    def doubly_stochastic_error(self) -> float:
        """The largest of ``P`` and all blocks."""
        inner = [part.doubly_stochastic_error() for part in self.parts]
        return max([doubly_stochastic_error(self.permutation.detach()), *(e for e in inner if e is not None)])


def _spread(p: Tensor, parts: Tensor) -> Tensor:
    k, m, _ = parts.shape
    return torch.einsum("ij,iab->iajb", p, parts).reshape(k * m, k * m)
