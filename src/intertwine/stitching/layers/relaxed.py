"""The base of layers with a permutation in them: a relaxation to train, an assignment to round it, scales."""

from abc import abstractmethod
from math import lgamma

import torch
from torch import Tensor

from ... import groups
from ..closed_form import group_procrustes
from ..layer import StitchingLayer, doubly_stochastic_error
from ..moments import Moments

SMALLEST_SCALE = 1e-6  # scales stay positive: at zero a layer would leave its group and lose a channel for ever


class RelaxedPermutation(StitchingLayer):
    """Base of ``A = P D``: ``P`` a permutation, relaxed in training; ``D`` diagonal scales, or none.

    Of unequal widths the narrower side is padded with channels that are always zero, so that ``P`` is square of size
    ``n = max(C_in, C_out)``; what is paired with padding is dropped, or receives zeros.

    Attributes:
        relaxes: The group that is relaxed, on one channel: its scales are those of ``D``, its signs those of ``P``.
    """

    relaxes = groups.PositiveMonomial(1)

    @property
    def n(self) -> int:
        """Side of the square ``P``."""
        return max(self.c_in, self.c_out)

    @property
    def dim(self) -> int:
        """The free scales: those of channels that are passed on."""
        return self.relaxes.on(min(self.c_in, self.c_out)).dim

    @property
    def log_components(self) -> float:
        """``log (n! / |C_in - C_out|!)``, injections of the narrower side, and the group's own for signs."""
        signs = self.relaxes.on(min(self.c_in, self.c_out)).reduced(permutes=False)
        return lgamma(self.n + 1) - lgamma(abs(self.c_in - self.c_out) + 1) + signs.log_components

    @abstractmethod
    def relaxed(self) -> Tensor:
        """The relaxed permutation, ``(n, n)``, differentiable."""

    @abstractmethod
    def scales(self) -> Tensor:
        """The scales that ``P`` acts after, ``(n,)``; ones where they are not free."""

    @abstractmethod
    def set_element(self, index: Tensor, sign: Tensor, scale: Tensor) -> None:
        """Set the parameters to ``(A x)_i = sign_i scale_{index_i} x_{index_i}``.

        Args:
            index: ``(n,)``, a permutation.
            sign: ``(n,)``, of -1 and 1.
            scale: ``(n,)``, positive, of *input* channels.
        """

    def matrix(self) -> Tensor:
        """``P D`` with the relaxed ``P``, cut to ``(C_out, C_in)``."""
        return (self.relaxed() * self.scales())[: self.c_out, : self.c_in]

    @torch.no_grad()
    def element(self) -> tuple[Tensor, Tensor]:
        """The permutation that is evaluated: ``index (n,)`` and ``sign (n,)``, nearest to the relaxed one.

        ``argmax over permutations Q of tr(P Q^T)`` by the Hungarian method (paper 1, v2 D.2.1); on ``|P|`` with signs.
        """
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
        """Of the relaxed permutation."""
        p = self.relaxed().detach()
        return doubly_stochastic_error(p.abs() if self.relaxes.signs else p)


def _injection(matrix: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The permutation of ``n`` channels that a rectangular monomial matrix is cut from, and its entries (1 outside)."""
    index = torch.full((n,), -1, dtype=torch.int64, device=matrix.device)
    entry = torch.ones(n, dtype=matrix.dtype, device=matrix.device)
    rows, columns = matrix.nonzero(as_tuple=True)
    index[rows], entry[rows] = columns, matrix[rows, columns]
    free = torch.ones(n, dtype=torch.bool, device=matrix.device)
    free[columns] = False
    index[index < 0] = free.nonzero().flatten()
    return index, entry
