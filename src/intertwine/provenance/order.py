"""Order of the units of a network that would make two independent ones agree in place.

Weights sorted by a norm, a state matrix that starts as ``1, 2, ..., n``, or a layer that starts as the identity: there
units are not alike before training, and the null of permuted units does not hold. It fails only where both networks
have such an order, so it is enough to look at one; and a choice that depends on that one alone leaves the null exact.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

_LIMIT = 4.5  # standard deviations: a p-value of 7e-6, for a space may have many tensors
_SORTED = 0.999  # rank correlation that tells small spaces are sorted
_FEWEST = 5  # units that can be seen to be sorted


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


def _diagonal(x: Tensor) -> bool:
    """Whether the diagonal of a matrix of sizes stands out."""
    gap = x.diagonal().mean() - x.mean()
    return float(gap) > _LIMIT * float(x.std()) / len(x) ** 0.5
