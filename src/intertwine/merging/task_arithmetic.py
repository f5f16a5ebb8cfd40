"""Sums of what fine-tuned networks learned: task arithmetic, TIES and DARE, on one tensor.

- Task arithmetic (Ilharco et al. 2023): ``base + s * sum_i w_i d_i`` with ``d_i = x_i - base``.
- TIES (Yadav et al. 2023): of each ``d_i`` the largest entries only; then those with the sign of the weighted sum.
- DARE (Yu et al. 2024): random entries of each ``d_i`` only, the others scaled up.

Densities, weights and norms mean what they mean in mergekit 0.1.5, against whose functions the results were compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TaskArithmetic:
    """A way to add differences.

    Args:
        keeps: Which entries of a difference are kept: ``"largest"``, ``"random"`` or ``"all"``.
        elects: Whether only entries with the sign of the weighted sum are added.
        normalise: Whether the sum is divided by the weights of the entries in it.
        rescale: Whether kept entries are scaled so that the sum of their absolute values is that of all.
        scale: Of the sum, called lambda.
    """

    keeps: str = "all"
    elects: bool = False
    normalise: bool = False
    rescale: bool = False
    scale: float = 1.0

    def __call__(
        self,
        base: Tensor,
        others: Sequence[Tensor],
        weights: Sequence[float],
        densities: Sequence[float],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The sum of one tensor.

        Args:
            base: Of the network that the others were trained from.
            others: The same tensor of those.
            weights: One for each of them.
            densities: Shares of entries to keep, one for each of them.
            generator: Of random entries.

        Returns:
            Of the shape and dtype of ``base``.

        Examples:
            >>> base, others = torch.zeros(2), [torch.tensor([1.0, 4.0]), torch.tensor([3.0, -1.0])]
            >>> TaskArithmetic()(base, others, [1, 1], [1, 1])
            tensor([4., 3.])
            >>> TaskArithmetic(elects=True, normalise=True)(base, others, [1, 1], [1, 1])
            tensor([2., 4.])
        """
        work = torch.promote_types(base.dtype, torch.float32)
        start = base.to(work)
        deltas = torch.stack(
            [
                w * self._kept(_difference(x.to(work), start), density, generator)
                for x, w, density in zip(others, weights, densities)
            ]
        )
        shares = torch.tensor(list(weights), dtype=work, device=base.device).view(-1, *[1] * base.ndim)
        if self.elects:
            majority = torch.where(deltas.sum(0) >= 0, 1.0, -1.0).to(work)
            agree = deltas.sign() == majority
            total, mass = (deltas * agree).sum(0), (shares * agree).sum(0)
        else:
            total, mass = deltas.sum(0), shares.sum(0)
        if self.normalise:
            total = total / torch.where(mass.abs() < 1e-8, 1.0, mass)
        return (start + self.scale * total).to(base.dtype)

    def _kept(self, delta: Tensor, density: float, generator: torch.Generator | None) -> Tensor:
        if density >= 1 or self.keeps == "all":
            return delta
        if self.keeps == "largest":
            count = max(1, int(density * delta.numel())) if density > 0 else 0
            mask = torch.zeros_like(delta.flatten())
            mask[delta.abs().flatten().topk(count).indices] = 1
            kept = delta * mask.view_as(delta)
        else:
            kept = delta * (torch.rand(delta.shape, generator=generator) < density).to(delta.device)
        before, after = delta.abs().sum(), kept.abs().sum()
        return kept * (before / after) if self.rescale and after > 0 else kept


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """``x - y``, with 0 where both hold the same infinity."""
    return torch.where(x == y, 0.0, x - y)
