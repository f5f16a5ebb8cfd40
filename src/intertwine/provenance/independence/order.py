"""Order of the units of a network that would make two independent ones agree in place.

Weights sorted by a norm, decays and frequencies that start as a function of the number of the unit, units sorted by the
class that they serve, or a layer that starts as the identity: there units are not alike before training, and the null
of permuted units does not hold. Nor does it where units stand there several times over, as widening leaves them: where
one agrees, its copies do. It fails only where both networks have such an order, so it is enough to look at one;
and a choice that depends on that one alone leaves the null exact.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..features import similarity

_LIMIT = 4.5  # standard deviations: a p-value of 7e-6, for a space may have many tensors
_SORTED = 0.999  # rank correlation that tells small spaces are sorted
_FEWEST = 5  # units that can be seen to be sorted
_COPIED = 0.99  # cosine of a unit with its copy
_LONG = 8  # weights of a unit from which on none is so like another by chance
_SAMPLE = 256  # units whose neighbours are looked at: the first ones, and as many spread over all of them


@dataclass
class Order:
    """Signs of an order among the units of one space, collected from tensor after tensor of one network.

    Attributes:
        reason: What shows that the units stand in an order, or an empty string.
        sizes: Sums of ``|w|^1.5`` by unit over all tensors, by which canonical forms and pruning sort.
    """

    found: str = ""
    sizes: list[Tensor] = field(default_factory=list)

    def add(self, rows: Tensor, square: Tensor | None, tensor: str) -> bool:
        """Look at one tensor.

        Args:
            rows: Features ``(P, n, d)`` of its units.
            square: A matrix whose diagonal would stand out if the tensor started as the identity, or ``None``.
            tensor: Its name.

        Returns:
            Whether the tensor may be read; a diagonal rules out this tensor, sorted units the space.
        """
        size = rows.float().abs().pow(1.5).sum(-1)
        self.sizes.append(size)
        if not self.found and _sorted(size):
            self.found = f"units of a are sorted by their weights in {tensor}"
        if not self.found and (_serial(size[..., None]) or _serial(rows)):
            self.found = f"units of a stand in an order: neighbours are alike in {tensor}"
        if not self.found and _copied(rows):
            self.found = f"most units of a stand there several times over in {tensor}"
        return square is None or not _diagonal(square)

    @property
    def reason(self) -> str:
        """What shows that the units stand in an order, or an empty string."""
        if not self.found and self.sizes and _sorted(torch.stack(self.sizes).sum(0)):
            return "units of a are sorted by the size of all their weights"
        return self.found


def _sorted(size: Tensor) -> bool:
    """Whether sizes ``(P, n)`` rise or fall with the index by more than chance."""
    n = size.shape[-1]
    if n < _FEWEST or bool((size == size[..., :1]).all()):
        return False
    ranks = size.argsort(-1).argsort(-1).double()
    index = torch.arange(n, dtype=torch.float64)
    rho = (((ranks - (n - 1) / 2) * (index - (n - 1) / 2)).sum(-1) * 12 / (n * (n * n - 1))).mean()
    return abs(float(rho)) * (len(size) * (n - 1)) ** 0.5 > _LIMIT or abs(float(rho)) > _SORTED


def _serial(rows: Tensor) -> bool:
    """Whether units ``(P, n, d)`` are more alike at some distance in number than any two of them.

    Among the likenesses of one unit to all others, that to a certain one has a uniform rank where units stand in no
    order.
    """
    n = rows.shape[-2]
    for index in {range(min(n, _SAMPLE)), range(0, n, -(-n // _SAMPLE))}:
        alike = similarity(*[rows[..., list(index), :]] * 2)
        if not bool(alike.any()):
            continue
        alike.diagonal(dim1=-2, dim2=-1).fill_(torch.nan)
        for lag in (2**k for k in range(len(index).bit_length() - 1)):
            those, this = alike[..., :-lag, :], alike.diagonal(lag, -2, -1)[..., None]
            rank = ((those < this).sum(-1) + (those == this).sum(-1) / 2) / (len(index) - 1)
            if float(rank.mean() - 0.5) * (12 * rank.numel()) ** 0.5 > _LIMIT:
                return True
    return False


def _copied(rows: Tensor) -> bool:
    """Whether most units ``(P, n, d)`` have a copy among the others."""
    n, d = rows.shape[-2:]
    if n < _FEWEST or d < _LONG:
        return False
    units = torch.nn.functional.normalize(rows.float(), dim=-1)
    cosines = (units[..., : 2 * _SAMPLE, :] @ units.mT).abs()
    cosines.diagonal(dim1=-2, dim2=-1).fill_(0.0)
    return 2 * int((cosines.amax(-1) > _COPIED).sum()) > cosines[..., 0].numel()


def _diagonal(x: Tensor) -> bool:
    """Whether the diagonal of a matrix of sizes stands out."""
    gap = x.diagonal().mean() - x.mean()
    return float(gap) > _LIMIT * float(x.std()) / len(x) ** 0.5
