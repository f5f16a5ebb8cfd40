"""Limit of the tangent kernel of a residual network: a sum over its 2^b sub-networks, found in O(b)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .gate_gram import gram
from .product_kernel import product_kernel


def ensemble_tangent_kernel(
    x: Tensor, outer: Sequence[Tensor], blocks: Sequence[Sequence[Tensor]], *, sigma: float, depth: int,
    outer_depth: int, input: str = "x",
) -> Tensor:  # fmt: skip
    """Limit of the NTK under assumption 2.1: ``sum over J of beta_J NPK^J`` (P2 theorems 3.3, B.1), in O(b).

    The printed exponent ``2 (|J| + 2) d_blk - 1`` must be read ``2 ((|J| + 2) d_blk - 1)``. Here
    ``beta_J = D_J sigma^(2 (D_J - 1))`` with ``D_J = outer_depth + |J| depth`` layers of weights on each path; the
    paper's network has ``outer_depth = 2 depth``. As ``beta_J`` depends on ``|J|`` alone, ``P(t) = prod_j (1 + t B_j)``
    and its derivative at ``t = sigma^(2 depth)`` give the sum.

    Args:
        x: Inputs ``(N, d_in)``.
        outer: Gates ``(N, w)`` of the layers that every path passes.
        blocks: For each block with a skip, the gates of its layers.
        sigma: Size of the weights.
        depth: Layers of weights in a block.
        outer_depth: Layers of weights outside the blocks.
        input: ``"x"`` or ``"ones"``.

    Returns:
        The kernel ``(N, N)``.

    Examples:
        >>> on = torch.ones(1, 3, dtype=torch.bool)
        >>> ensemble_tangent_kernel(torch.ones(1, 1), [on], [], sigma=1.0, depth=1, outer_depth=2)  # 2 * NPK
        tensor([[6.]], dtype=torch.float64)
    """
    t = sigma ** (2 * depth)
    start: Tensor = product_kernel(x, outer, input=input)  # type: ignore[assignment]
    product, slope = torch.ones_like(start), torch.zeros_like(start)
    for block in blocks:
        b = math.prod(gram(g, g).double() for g in block)
        product, slope = product * (1 + t * b), slope * (1 + t * b) + product * b
    return start * sigma ** (2 * (outer_depth - 1)) * (outer_depth * product + depth * t * slope)
