"""Direction of descent between two related networks, where the weights tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_SHARE = 0.05  # of zeros that only one network has, above which it was pruned


def direction(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Sequence[str]) -> tuple[int, str]:
    """Which of two related networks was made from the other.

    Casts and pruning lose what cannot be had back, and counters of batch norms only rise. Training alone leaves no
    trace of its direction.

    Args:
        a: Tensors of one network.
        b: Those of the other.
        names: Tensors that both have in one shape.

    Returns:
        1 where ``b`` was made from ``a``, -1 for the reverse, 0 where it cannot be told; and the ground.
    """
    found: dict[int, str] = {}
    coarse = [_share(state, names, _rounded) for state in (a, b)]
    if abs(coarse[0] - coarse[1]) > 0.5:
        found[1 if coarse[1] > coarse[0] else -1] = "its weights are of half precision, the other's are not"
    zeros = [_share(state, names, lambda x: float((x == 0).double().mean())) for state in (a, b)]
    if abs(zeros[0] - zeros[1]) > _SHARE:
        found.setdefault(1 if zeros[1] > zeros[0] else -1, "weights were pruned that the other has")
    steps = [_counter(state) for state in (a, b)]
    if None not in steps and steps[0] != steps[1]:
        found.setdefault(1 if steps[1] > steps[0] else -1, "its batch norms have seen more batches")  # type: ignore[operator]
    if len(found) != 1:
        return 0, "the signs contradict each other" if found else "training alone leaves no trace of its direction"
    return next(iter(found.items()))


def _share(state: Mapping[str, Tensor], names: Sequence[str], of: object) -> float:
    """Mean over tensors of real numbers, each weighted by its size."""
    sizes = {n: state[n].numel() for n in names if state[n].is_floating_point()}
    return sum(sizes[n] * of(state[n]) for n in sizes) / max(sum(sizes.values()), 1)  # type: ignore[operator]


def _rounded(x: Tensor) -> float:
    """1 where all numbers are of half precision, else 0."""
    return float(any(torch.equal(x, x.to(half).to(x.dtype)) for half in (torch.bfloat16, torch.float16)))


def _counter(state: Mapping[str, Tensor]) -> int | None:
    """The largest counter of batches, where there is one."""
    counts = [int(state[n]) for n in state if n.endswith("num_batches_tracked")]
    return max(counts) if counts else None
