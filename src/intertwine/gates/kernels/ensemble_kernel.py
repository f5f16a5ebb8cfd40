"""Theorem 3.3: the path kernel of a residual network is a sum over 2^b sub-networks, found in O(b)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .gate_gram import gram

__all__ = ["ensemble_kernel", "ensemble_tangent_kernel"]


def ensemble_kernel(x: Tensor, outer: Sequence[Tensor], blocks: Sequence[Sequence[Tensor]], input: str = "x") -> Tensor:
    """``NPK^RES = sum over J of NPK^J = <x, x'> B_outer prod_j (1 + B_j)`` (P2 theorem 3.3, lemma B.1, definition 3.1).

    ``B`` is the product of the gate Grams of a block's layers. It holds where the ReLUs stand inside the branches; with
    a ReLU after the addition the gates act on the skip as well, and :func:`neural_path_kernel` carries their products
    along. "Blocks included" and "skips ignored" name the same ``J``. No biases.

    Args:
        x: Inputs ``(N, d_in)``.
        outer: Gates ``(N, w)`` of the layers that every path passes.
        blocks: For each block with a skip, the gates of its layers.
        input: ``"x"`` or ``"ones"``.

    Returns:
        The kernel ``(N, N)``.

    Examples:
        >>> on = torch.ones(2, 3, dtype=torch.bool)
        >>> ensemble_kernel(torch.eye(2), [on], [[on], [on]])  # 3 (1 + 3)^2
        tensor([[48.,  0.],
                [ 0., 48.]], dtype=torch.float64)
    """
    kernel = _start(x, outer, input)
    for block in blocks:
        kernel = kernel * (1 + _product(block))
    return kernel


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
    start = _start(x, outer, input)
    product, slope = torch.ones_like(start), torch.zeros_like(start)
    for block in blocks:
        b = _product(block)
        product, slope = product * (1 + t * b), slope * (1 + t * b) + product * b
    return start * sigma ** (2 * (outer_depth - 1)) * (outer_depth * product + depth * t * slope)


def _start(x: Tensor, outer: Sequence[Tensor], input: str) -> Tensor:
    """Kernel of what every path passes.

    Raises:
        ValueError: If ``input`` is unknown.
    """
    if input not in ("x", "ones"):
        raise ValueError(f'input must be "x" or "ones". Got {input!r}.')
    signal = x.double() if input == "x" else torch.ones_like(x, dtype=torch.float64)
    return signal @ signal.T * _product(outer)


def _product(gates: Sequence[Tensor]) -> Tensor | float:
    kernel: Tensor | float = 1.0
    for g in gates:
        kernel = kernel * gram(g, g).double()
    return kernel
