"""Sinkhorn's iteration: from a matrix to one that is doubly stochastic, or nearly."""

from torch import Tensor

_SUPPORT = 1e-9  # of a uniform entry; added everywhere, so that every row and column can be scaled


def sinkhorn(matrix: Tensor, steps: int = 16) -> Tensor:
    """Bring a matrix to the Birkhoff polytope: negative entries to 0, then Sinkhorn's iteration.

    ``A <- relu(A)``, then ``steps`` times ``A <- A diag(1^T A)^-1`` and ``A <- diag(A 1)^-1 A`` (paper 1, v2 D.2.1; the
    paper takes 16 steps). Differs from the paper in one point: ``1e-9`` of a uniform entry is added everywhere. With
    true zeros the iteration has no limit where no permutation fits on the support, and a row of zeros cannot be scaled
    at all; here such a row becomes uniform. The result is no Euclidean projection, and doubly stochastic only as far as
    ``doubly_stochastic_error`` says.

    Args:
        matrix: ``(n, n)``.
        steps: Rounds of columns and rows.

    Returns:
        A new ``(n, n)`` matrix whose rows sum to one.

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
