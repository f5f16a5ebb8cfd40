"""Chance of CKA in closed form: moments of inner products of Gram matrices over all permutations, and their tail."""

from dataclasses import dataclass
from math import perm

import torch
from torch import Tensor

_UPPER = 1.6448536269514722  # standard deviations that a normal variable exceeds once in 20 times
_NORMAL = 1e-3  # skewness below which the tail counts as normal
_SQUARE = 0.5**0.5
# How three edges of a graph may meet: number of labelled ways, number of vertices, and the sum over distinct vertices
# of the product of three entries in terms of a = sum K_ij^3 and b = tr K^3, since the rows of K sum to zero.
_MEETINGS = (
    (4, 2, (1, 0)),  # one edge three times
    (8, 3, (0, 1)),  # a triangle
    (24, 3, (-1, 0)),  # one edge twice and a neighbour
    (6, 4, (2, 0)),  # one edge twice and one apart
    (24, 4, (1, -1)),  # a path
    (8, 4, (2, 0)),  # a star
    (12, 5, (-4, 2)),  # two that meet and one apart
    (1, 6, (16, -8)),  # three apart
)


@dataclass(frozen=True)
class Chance:
    """Distribution of scores over permutations: of mean 0, given by its standard deviation and skewness."""

    deviation: Tensor
    skewness: Tensor

    def p_value(self, scores: Tensor) -> Tensor:
        """Share of permutations that score at least as high, from the tail of a Pearson III variable; never 0."""
        z, (flat, sign, shape) = scores / self.deviation, self._gamma()
        upper = torch.special.gammaincc(shape, (shape + shape.sqrt() * z * sign).clamp(min=0))
        curved = torch.where(sign > 0, upper, 1 - upper)
        return torch.where(flat, torch.special.erfc(z * _SQUARE) / 2, curved).clamp(min=1e-300)

    def quantile(self) -> Tensor:
        """The 95 % quantile of that variable."""
        from scipy.special import gammaincinv

        flat, sign, shape = self._gamma()
        found = torch.as_tensor(gammaincinv(shape.numpy(), torch.where(sign > 0, 0.95, 0.05).numpy()))
        return self.deviation * torch.where(flat, _UPPER, (found - shape) / shape.sqrt() * sign)

    def _gamma(self) -> tuple[Tensor, Tensor, Tensor]:
        """Whether skewness is negligible, its sign, and elsewhere the shape of the gamma variable that has it."""
        skewness = self.skewness.clamp(-20, 20)
        flat = skewness.abs() < _NORMAL
        safe = torch.where(flat, 1.0, skewness)
        return flat, safe.sign(), 4 / safe.square()


def spread_factor(n: int) -> float:
    """Variance of ``<K, P L P^T>`` over all permutations, in units of ``|K|^2 |L|^2``: ``2 / (n (n - 3))``.

    For symmetric ``K`` and ``L`` with zero diagonals and rows that sum to zero (U-centred), whatever their entries. Of
    the pairs of entries that a permutation may bring together, those with one index or none in common follow from those
    with both (Mantel's variance; Kazi-Aoual, Hitier, Sabatier, Lebreton, "Refined approximations to permutation tests
    for multivariate inference", 1995). The mean is 0. Needs ``n >= 4``.
    """
    return 2 / (n * (n - 3))


def third_sums(k: Tensor) -> Tensor:
    """``sum_ij K_ij^3`` and ``tr K^3`` of U-centred matrices ``(L, n, n)``: ``(L, 2)``, in float64."""
    k = k.double()
    return torch.stack([k.pow(3).sum((1, 2)), ((k @ k) * k).sum((1, 2))], 1)


def third_moment(n: int, sums_k: Tensor, sums_l: Tensor) -> Tensor:
    """``E <K, P L P^T>^3`` over all permutations, from the :func:`third_sums` of both sides: ``(L_a, L_b)``."""
    total = sums_k.new_zeros(len(sums_k), len(sums_l))
    for ways, vertices, (a, b) in _MEETINGS:
        if n >= vertices:
            weights = sums_k.new_tensor([a, b])
            total += ways / perm(n, vertices) * torch.outer(sums_k @ weights, sums_l @ weights)
    return total
