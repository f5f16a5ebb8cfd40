"""Any group of matrices as a family: gradient steps, each followed by the group's own projection."""

import torch
from torch import Tensor, nn

from ...groups import Group, Unattained
from ..closed_form import FLOOR, group_procrustes
from ..layer import StitchingLayer
from ..moments import Moments


class Projected(StitchingLayer):
    """A layer generated from a group: ``group.project`` after each step, ``group.procrustes`` to start.

    Made for groups in which one can move continuously (rotations, all invertible matrices, unit row sums). Permutations
    need a relaxation: small steps never leave a permutation that is rounded after each of them, so that in products and
    wreath products units and blocks keep the places that they start at.

    Args:
        group: Any group of this library, or one of your own.
        bias: Whether to add a bias.
        channel_dim: The channel axis.
        generator: Source of the random start, ``group.random``.

    Attributes:
        group: The group.
        weight: ``(n, n)``.
    """

    def __init__(
        self, group: Group, *, bias: bool = False, channel_dim: int = 1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(group.n, group.n, bias=bias, channel_dim=channel_dim)
        self.family, self.group = repr(group), group
        self.weight = nn.Parameter(group.random(generator, torch.get_default_dtype()).matrix().clone())

    @property
    def dim(self) -> int:
        """Of the group."""
        return self.group.dim

    @property
    def log_components(self) -> float:
        """Of the group."""
        return self.group.log_components

    def matrix(self) -> Tensor:
        """The weight."""
        return self.weight

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """The nearest element; one near the weight where that is a limit of elements, as behind dead channels."""
        try:
            found = self.group.project(self.weight)
        except Unattained:
            wide = self.weight.cpu().double()
            found = self.group.project(wide + FLOOR * torch.eye(len(wide), dtype=wide.dtype))
        self.weight.copy_(found.matrix())

    def fit(self, moments: Moments) -> None:
        """The group's element with the least ``sum |y - g x|^2``."""
        self.weight.copy_(group_procrustes(self.group, moments))
