"""Known orders of rows: rotary halves and pairs, query-key-value fused head by head."""

from collections.abc import Iterator

import torch
from torch import Tensor

_LEAST_HEAD = 4  # with two dimensions pairs and halves are the same


def rotary_order(rows: int, head: int, pairs: bool) -> Tensor:
    """Old row at each new place, where rotary dimensions are stored in another layout.

    Args:
        rows: Number of rows, of all heads.
        head: Dimensions of one head.
        pairs: From halves ``(x_0, x_1, ..., y_0, y_1, ...)`` to pairs ``(x_0, y_0, x_1, y_1, ...)``; else from pairs to
            halves, as the conversion of Llama weights to transformers does.

    Examples:
        >>> rotary_order(4, 4, pairs=False).tolist(), rotary_order(4, 4, pairs=True).tolist()
        ([0, 2, 1, 3], [0, 2, 1, 3])
        >>> rotary_order(6, 6, pairs=False).tolist()
        [0, 2, 4, 1, 3, 5]
    """
    shape = (2, head // 2) if pairs else (head // 2, 2)
    within = torch.arange(head).reshape(shape).mT.flatten()
    return (torch.arange(rows // head)[:, None] * head + within).flatten()


def head_sizes(rows: int) -> Iterator[int]:
    """Sizes that heads of so many rows may have."""
    yield from (h for h in range(_LEAST_HEAD, rows + 1, 2) if rows % h == 0)


def rotary_part(order: Tensor) -> tuple[int, bool] | None:
    """Head size and direction of the rotary conversion in an order of rows, heads permuted or not.

    Returns:
        The size, and whether halves became pairs; ``None`` where the order is no such conversion.
    """
    n = len(order)
    for head in head_sizes(n):
        blocks = order.reshape(-1, head)
        if not bool((blocks // head == blocks[:, :1] // head).all()):
            continue
        for pairs in (False, True):
            if bool((blocks % head == rotary_order(head, head, pairs)).all()):
                return head, pairs
    return None
