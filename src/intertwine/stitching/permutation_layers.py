"""Stitching layers with a permutation: a relaxation to train, an assignment to round it, and scales."""

from abc import abstractmethod
from math import lgamma
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from .. import groups
from .closed_form import Moments, group_procrustes
from .layer import Common, StitchingLayer, doubly_stochastic_error

__all__ = [
    "Birkhoff", "GReLU", "Monomial", "Permutation", "RelaxedPermutation", "SignedPermutation", "SoftSort",
    "frobenius_on_polytope", "sinkhorn", "soft_sort",
]  # fmt: skip

_SUPPORT = 1e-9  # share of a uniform entry; added everywhere, so that every row and column can be scaled


def sinkhorn(matrix: Tensor, steps: int = 16) -> Tensor:
    """Bring a matrix ``(n, n)`` into the Birkhoff polytope: negative entries to 0, then Sinkhorn's iteration.

    ``A <- relu(A)``, then ``steps`` times ``A <- A diag(1^T A)^-1`` and ``A <- diag(A 1)^-1 A`` (paper 1, v2 D.2.1; the
    paper takes 16 steps), so that rows sum to one, and columns within ``doubly_stochastic_error``. Differs from the
    paper in one point: ``1e-9`` of a uniform entry is added everywhere. With true zeros the iteration has no limit if
    no permutation fits on the support, and a row of zeros, here uniform, cannot be scaled at all. The result is not a
    Euclidean projection.

    Examples:
        >>> import torch
        >>> sinkhorn(torch.tensor([[4.0, 1.0], [1.0, 4.0]]))
        tensor([[0.8000, 0.2000],
                [0.2000, 0.8000]])
    """
    a = matrix.clamp_min(0) + _SUPPORT / len(matrix)
    for _ in range(steps):
        a = a / a.sum(0, keepdim=True)
        a = a / a.sum(1, keepdim=True)
    return a


SMALLEST_SCALE = 1e-6  # scales stay positive: at zero a layer would leave its group and lose a channel for ever


class RelaxedPermutation(StitchingLayer):
    """Base of ``A = P D``: ``P`` a permutation, relaxed in training; ``D`` diagonal scales, or none.

    For unequal widths the narrower side is padded with channels that are always zero, so that ``P`` is square of size
    ``n = max(C_in, C_out)``; what is paired with padding is dropped, or receives zeros. The dimension is the number of
    scales of channels that are passed on; pieces are the ``n! / |C_in - C_out|!`` injections of the narrower side, for
    each choice of signs.
    """

    # The group that is relaxed, on one channel: its scales are those of ``D``, its signs those of ``P``
    relaxes: groups.Monomial = groups.PositiveMonomial(1)
    n: int  # Side of the square ``P``

    def create(self, generator: torch.Generator | None) -> None:
        """Set the sizes only."""
        self.n, passed = max(self.c_in, self.c_out), self.relaxes.on(min(self.c_in, self.c_out))
        injections = lgamma(self.n + 1) - lgamma(abs(self.c_in - self.c_out) + 1)
        self.dim, self.log_components = passed.dim, injections + passed.reduced(permutes=False).log_components

    @abstractmethod
    def relaxed(self) -> Tensor:
        """The relaxed permutation, ``(n, n)``, differentiable."""

    @abstractmethod
    def scales(self) -> Tensor:
        """The scales, on which ``P`` acts, ``(n,)``; ones if they are not free."""

    @abstractmethod
    def set_element(self, index: Tensor, sign: Tensor, scale: Tensor) -> None:
        """Set the parameters to ``(A x)_i = sign_i scale_{index_i} x_{index_i}``, ``scale`` positive, ``(n,)`` each."""

    def matrix(self) -> Tensor:
        """``P D`` with the relaxed ``P``, cut to ``(C_out, C_in)``."""
        return (self.relaxed() * self.scales())[: self.c_out, : self.c_in]

    @torch.no_grad()
    def element(self) -> tuple[Tensor, Tensor]:
        """``index`` of the permutation ``argmax tr(P Q^T)`` (v2 D.2.1), on ``|P|`` with signs, and ``sign``."""
        p = self.relaxed()
        index = groups.assign(p.abs() if self.relaxes.signs else p)
        matched = p.gather(1, index[:, None])[:, 0]
        return index, torch.where((matched < 0) & bool(self.relaxes.signs), -1.0, 1.0).to(p)

    def rounded(self) -> Tensor:
        """``Q D`` with a true permutation ``Q``, cut to ``(C_out, C_in)``."""
        index, sign = self.element()
        scale = self.scales().detach()
        a = torch.zeros(self.n, self.n, dtype=scale.dtype, device=scale.device)
        a[torch.arange(self.n, device=scale.device), index] = sign * scale[index]
        return a[: self.c_out, : self.c_in]

    def fit(self, moments: Moments) -> None:
        """Direct matching: the member with the least ``sum |y - A x|^2``, by optimal assignment."""
        matrix = group_procrustes(self.relaxes.on(self.n), moments)
        index, matched = _injection(matrix, self.n)
        scale = torch.ones_like(matched)
        scale[index] = matched.abs().clamp_min(SMALLEST_SCALE)
        self.set_element(index, torch.where(matched < 0, -1.0, 1.0), scale)

    def doubly_stochastic_error(self) -> float:
        """That of the relaxed permutation."""
        p = self.relaxed().detach()
        return doubly_stochastic_error(p.abs() if self.relaxes.signs else p)


def _injection(matrix: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Permutation of ``n`` channels from which a rectangular monomial matrix is cut, and its entries (1 outside)."""
    index = torch.full((n,), -1, dtype=torch.int64, device=matrix.device)
    entry = torch.ones(n, dtype=matrix.dtype, device=matrix.device)
    rows, columns = matrix.nonzero(as_tuple=True)
    index[rows], entry[rows] = columns, matrix[rows, columns]
    free = torch.ones(n, dtype=torch.bool, device=matrix.device)
    free[columns] = False
    index[index < 0] = free.nonzero().flatten()
    return index, entry


class Birkhoff(RelaxedPermutation):
    """``A = P D`` with ``P`` doubly stochastic in training (paper 1, v2 D.2.1, v1 D.1.1).

    After every step ``P`` is brought back to the polytope by a ReLU and ``T`` Sinkhorn steps, and ``D`` is kept
    positive. ``-alpha |P|_F`` in the loss draws ``P`` to the polytope's corners, the permutations. In the head start
    ``D`` is held. With signs, ``|P|`` is projected and the signs are kept.

    Differs from the paper in how the norm is written, see :func:`frobenius_on_polytope`: as printed it only divides the
    learning rate by ``1 + lr alpha / |P|_F``, since Sinkhorn undoes every step along ``P``. So ``alpha=0`` gives what
    the paper's own update gives.

    The random start is uniform in the polytope's interior with ``D = 1``; the paper does not state its own. Its
    ``alpha`` is 0.1, and its ``T`` (``sinkhorn_steps``) 16. The ``norm`` is ``"polytope"``, ours, or ``"printed"``.

    Raises:
        ValueError: If ``alpha`` is negative, there are no Sinkhorn steps, or ``norm`` is unknown.
    """

    permutation: nn.Parameter  # ``P``, ``(n, n)``
    scale: Tensor | None  # The diagonal of ``D``, ``(n,)``, or ``None`` where scales are not free

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        alpha: float = 0.1,
        sinkhorn_steps: int = 16,
        norm: Literal["polytope", "printed"] = "polytope",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(c_in, c_out, **common)
        generator = common.get("generator")
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0. Got {alpha}.")
        if sinkhorn_steps < 1:
            raise ValueError(f"sinkhorn_steps must be at least 1. Got {sinkhorn_steps}.")
        if norm not in ("polytope", "printed"):
            raise ValueError(f'norm must be "polytope" or "printed". Got {norm!r}.')
        self.alpha, self.sinkhorn_steps, self.norm = alpha, sinkhorn_steps, norm
        p = sinkhorn(torch.rand(self.n, self.n, generator=generator), sinkhorn_steps)
        if self.relaxes.signs:
            p = p * torch.where(torch.rand(self.n, self.n, generator=generator) < 0.5, -1.0, 1.0)
        self.permutation = nn.Parameter(p)
        self.register_parameter("scale", nn.Parameter(torch.ones(self.n)) if self.relaxes.scales else None)

    def relaxed(self) -> Tensor:
        """``P``."""
        return self.permutation

    def scales(self) -> Tensor:
        """The diagonal of ``D``."""
        return self.permutation.new_ones(self.n) if self.scale is None else self.scale

    def regulariser(self) -> Tensor:
        """``-alpha |P|_F``."""
        norm = torch.linalg.matrix_norm if self.norm == "printed" else frobenius_on_polytope
        return -self.alpha * norm(self.permutation.abs() if self.relaxes.signs else self.permutation)

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Project ``P`` onto the polytope and keep ``D`` positive."""
        p = self.permutation
        sign = torch.where(p < 0, -1.0, 1.0) if self.relaxes.signs else 1.0
        p.copy_(sinkhorn(p * sign, self.sinkhorn_steps) * sign)
        if self.scale is not None:
            self.scale.clamp_(min=SMALLEST_SCALE)

    def head_start(self, active: bool) -> None:
        """Hold ``D`` (in the paper for the first 10 of 20 epochs), or release it."""
        if self.scale is not None:
            self.scale.requires_grad_(not active)

    @torch.no_grad()
    def set_element(self, index: Tensor, sign: Tensor, scale: Tensor) -> None:
        """Go to a corner of the polytope."""
        self.permutation.zero_()
        self.permutation[torch.arange(self.n, device=index.device), index] = sign.to(self.permutation)
        if self.scale is not None:
            self.scale.copy_(scale)


def frobenius_on_polytope(p: Tensor) -> Tensor:
    """``sqrt(|P - 1/n|_F^2 + 1)``, which *is* ``|P|_F`` where rows and columns sum to one.

    Its gradient stays in the polytope's plane. That of ``|P|_F`` itself points along ``P``; a step along ``P``
    multiplies all of it by one number, which Sinkhorn's iteration divides out again. (The paper's 2-norm, read as an
    operator norm, would be 1 everywhere on the polytope.)

    For ``p`` ``(n, n)`` it is largest at permutations, ``sqrt(n)``, and 1 at the centre.
    """
    return ((p - 1 / len(p)).square().sum() + 1).sqrt()


class GReLU(Birkhoff):
    """``P D`` with positive ``D``: the intertwiner group of ReLU (paper 1, v2 D.2.1). Arguments as for ``Birkhoff``.

    Examples:
        >>> layer = GReLU(3, 3).eval()
        >>> (layer.rounded() > 0).sum(1)
        tensor([1, 1, 1])
    """

    family = "g_relu"


class Permutation(Birkhoff):
    """``P``: the intertwiner group of sigmoid, GELU and most smooth activations. Arguments as for ``Birkhoff``."""

    family = "permutation"
    relaxes = groups.Permutation(1)


class SignedPermutation(Birkhoff):
    """Entries -1 or 1, one in every row and column: the intertwiner group of tanh, erf and sin. See ``Birkhoff``."""

    family = "signed_permutation"
    relaxes = groups.SignedPermutation(1)


class Monomial(Birkhoff):
    """``P D`` with signs on ``P``: the intertwiner group of ``|x|`` and ``x^d``. Arguments as for ``Birkhoff``."""

    family = "monomial"
    relaxes = groups.Monomial(1)


_GAP = 8.0  # temperatures between neighbouring scores for a given permutation: P is within 1e-3 of it


def soft_sort(scores: Tensor, tau: float) -> Tensor:
    """A relaxed permutation that sorts ``scores`` in descending order.

    ``P = softmax(-|sort(s) 1^T - 1 s^T| / tau)`` over rows (Prillo and Eisenschlos 2020). The formula printed in paper
    1 (v2 D.2.2, v1 D.1.2) lacks the magnitude and has ``exp`` inside the softmax, which makes rows of equal entries.

    For scores ``(n,)`` it is ``(n, n)``; rows sum to one, columns need not. The temperature ``tau`` is about ``1 / n``
    for scores of unit size.

    Examples:
        >>> soft_sort(torch.tensor([0.0, 2.0, 1.0]), 0.1)
        tensor([[0.0000, 1.0000, 0.0000],
                [0.0000, 0.0000, 1.0000],
                [1.0000, 0.0000, 0.0000]])
    """
    descending = scores.sort(descending=True).values
    return torch.softmax(-(descending[:, None] - scores).abs() / tau, dim=1)


class SoftSort(RelaxedPermutation):
    """``P D`` with ``P`` from SoftSort and ``D = diag(exp lambda)`` (paper 1, v2 D.2.2, corrected as in ``soft_sort``).

    The paper rounds by the largest entry of each row, which need not give a permutation; here an assignment rounds. The
    temperature ``tau`` is ``1 / n`` by default, as the paper found necessary.

    Raises:
        ValueError: If ``tau`` is not positive.
    """

    family = "softsort"
    scores: nn.Parameter  # ``s``, ``(n,)``
    log_scale: nn.Parameter  # ``lambda``, ``(n,)``

    def __init__(self, c_in: int, c_out: int, *, tau: float | None = None, **common: Unpack[Common]) -> None:
        super().__init__(c_in, c_out, **common)
        generator = common.get("generator")
        self.tau = 1 / self.n if tau is None else tau
        if not self.tau > 0:
            raise ValueError(f"tau must be positive. Got {tau}.")
        self.scores = nn.Parameter(torch.randn(self.n, generator=generator))
        self.log_scale = nn.Parameter(torch.zeros(self.n))

    def relaxed(self) -> Tensor:
        """The sorting matrix of the scores."""
        return soft_sort(self.scores, self.tau)

    def scales(self) -> Tensor:
        """``exp lambda``."""
        return self.log_scale.exp()

    def head_start(self, active: bool) -> None:
        """Hold ``D``, or release it."""
        self.log_scale.requires_grad_(not active)

    @torch.no_grad()
    def set_element(self, index: Tensor, sign: Tensor, scale: Tensor) -> None:
        """Set scores that the permutation sorts, 8 temperatures apart."""
        ranks = torch.arange(self.n - 1, -1, -1, dtype=self.scores.dtype, device=self.scores.device)
        self.scores[index] = (ranks - (self.n - 1) / 2) * _GAP * self.tau
        self.log_scale.copy_(scale.log())
