"""Stitching layers: linear maps of channels, of one family; their training and evaluation forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..groups.capacity import log_count
from .closed_form import Moments, intercept


class Common(TypedDict, total=False):
    """Arguments that every family takes; see ``StitchingLayer``."""

    bias: bool
    channel_dim: int
    generator: torch.Generator | None


class StitchingLayer(nn.Module, ABC):
    """A map ``y = A x + b`` of channels, ``x (N, C_in, *S)`` or tokens ``(N, T, C_in)``, with ``A`` in one family.

    In training mode a layer uses ``matrix()``, which may be a relaxation (a doubly stochastic matrix for a
    permutation). In evaluation mode it uses ``rounded()``, a member of the family, computed anew from the parameters at
    every call. The random start, if there is one, comes from ``generator``.

    Raises:
        ValueError: If a width is not positive or ``channel_dim`` is neither 1 nor -1.
    """

    family: str = ""  # Its name on the command line, such as ``"rank-4"``
    c_in: int  # Channels of network A at its tap
    c_out: int  # Channels of network B at its tap
    channel_dim: int  # The channel axis: 1, or -1 for tokens
    # ``b (C_out,)``, or ``None`` as in the paper (D.2: "to stick closely to the statement of theorem 4.2")
    bias: Tensor | None
    dim: int  # Dimension of the family: the free numbers of one member, such as ``n`` for G_ReLU
    # Logarithm of the number of pieces of the family (``log n!`` if permutations are free)
    log_components: float = 0.0
    origin: str = ""  # Where training starts, which tells apart the files that keep it

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        bias: bool = False,
        channel_dim: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if c_in < 1 or c_out < 1:
            raise ValueError(f"widths must be positive. Got c_in={c_in}, c_out={c_out}.")
        if channel_dim not in (1, -1):
            raise ValueError(f"channel_dim must be 1, or -1 for tokens. Got {channel_dim}.")
        self.c_in, self.c_out, self.channel_dim = c_in, c_out, channel_dim
        self.register_parameter("bias", nn.Parameter(torch.zeros(c_out)) if bias else None)
        self.create(generator)

    def create(self, generator: torch.Generator | None) -> None:
        """Make the parameters of a family without settings, at their start; does nothing here."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """The map that is trained, ``(C_out, C_in)``, differentiable in the parameters."""

    def rounded(self) -> Tensor:
        """The map that is evaluated, ``(C_out, C_in)``: ``matrix()`` unless the family is relaxed in training."""
        return self.matrix().detach()

    def regulariser(self) -> Tensor:
        """A scalar to add to the loss; 0 here."""
        return next((p.new_zeros(()) for p in self.parameters()), torch.zeros(()))

    def penalty(self) -> float:
        """What else a good map keeps small, with the family's own weight (lasso: ``lambda |A|_1``); 0 here."""
        return 0.0

    def after_step(self, lr: float) -> None:
        """Bring the parameters back into the family after an optimiser step: a projection, or a proximal step."""

    def head_start(self, active: bool) -> None:
        """Hold back some parameters in the first epochs (G_ReLU: the scales), or release them. Does nothing here."""

    @torch.no_grad()
    def start(self, moments: Moments) -> None:
        """Set the parameters to the family's closed-form solution for the features' second moments (direct matching).

        A layer with a bias is fitted to moments about the means.

        Raises:
            ValueError: If the family has no closed form, or widths differ.
        """
        if (moments.c_in, moments.c_out) != (self.c_in, self.c_out):
            raise ValueError(
                f"moments must be of {self.c_in} channels of A and {self.c_out} of B. "
                f"Got {moments.c_in} and {moments.c_out}."
            )
        self.fit(moments if self.bias is None else moments.centred())
        if self.bias is not None:
            self.bias.copy_(intercept(self.rounded(), moments))

    def fit(self, moments: Moments) -> None:
        """Set the parameters to the least-squares solution of ``matrix``; a ``ValueError`` if it has no closed form."""
        raise ValueError(
            f"a start from moments must have a closed form. Got the family {self.family!r}, which has none."
        )

    def doubly_stochastic_error(self) -> float | None:
        """Distance of the relaxed permutation from doubly stochastic (see the function); ``None`` without one."""
        return None

    @property
    def parameters_count(self) -> int:
        """Trainable numbers as stored; a relaxation stores more than ``dim``."""
        return sum(p.numel() for p in self.parameters())

    def log_count(self, eps: float, bound: float) -> float:
        """Logarithm of the number of members on a grid of spacing ``eps`` in ``[-bound, bound]`` (v2 E.7)."""
        return log_count(self.log_components, self.dim, eps, bound)

    def fixed(self) -> Fixed:
        """The evaluated map, as a layer without trainable parameters."""
        bias = None if self.bias is None else self.bias.detach().clone()
        return Fixed(self.rounded().clone(), bias, family=self.family, channel_dim=self.channel_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map the channels of ``x``; all other axes are kept."""
        return act_on_channels(x, self.matrix() if self.training else self.rounded(), self.bias, self.channel_dim)

    def extra_repr(self) -> str:
        """Family and widths."""
        return f"{self.family!r}, {self.c_in} -> {self.c_out}"


class Fixed(StitchingLayer):
    """A given map ``(C_out, C_in)``: a closed-form solution, an element of a group, or what a trained layer became.

    Raises:
        ValueError: If ``matrix`` is not a matrix.
    """

    dim = 0  # nothing is free
    _matrix: Tensor

    def __init__(
        self, matrix: Tensor, bias: Tensor | None = None, *, family: str = "fixed", channel_dim: int = 1
    ) -> None:
        if matrix.ndim != 2:
            raise ValueError(f"matrix must have shape (C_out, C_in). Got {tuple(matrix.shape)}.")
        super().__init__(matrix.shape[1], matrix.shape[0], channel_dim=channel_dim)
        self.family = family
        self.register_buffer("_matrix", matrix.detach())
        del self.bias
        self.register_buffer("bias", None if bias is None else bias.detach())

    def matrix(self) -> Tensor:
        """The map."""
        return self._matrix

    def start(self, moments: Moments) -> None:
        """Nothing to start: the map is given."""


def act_on_channels(x: Tensor, matrix: Tensor, bias: Tensor | None = None, channel_dim: int = 1) -> Tensor:
    """``y_i = sum_j A_ij x_j + b_i`` along one axis, with ``A`` ``(C_out, C_in)`` in the dtype of ``x``."""
    if x.shape[channel_dim] != matrix.shape[1]:
        raise ValueError(
            f"features must have {matrix.shape[1]} channels along axis {channel_dim}. Got shape {tuple(x.shape)}."
        )
    a = matrix.to(x)
    b = None if bias is None else bias.to(x)
    if channel_dim in (-1, x.ndim - 1):
        return F.linear(x, a, b)
    if x.ndim == 4:
        return F.conv2d(x, a[:, :, None, None], b)
    flat = torch.matmul(a, x.flatten(2))
    return (flat if b is None else flat + b[:, None]).unflatten(2, x.shape[2:])


def doubly_stochastic_error(p: Tensor) -> float:
    """``max(|row sums - 1|, |column sums - 1|, -smallest entry)``: 0 exactly on the Birkhoff polytope."""
    with torch.no_grad():
        gaps = [(p.sum(0) - 1).abs().max(), (p.sum(1) - 1).abs().max(), -p.min()]
        return float(torch.stack(gaps).max())
