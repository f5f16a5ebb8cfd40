"""Top quantiles of many units over a stream, exactly.

The threshold of a unit at level ``q`` is its value number ``floor(q n)`` in falling order, counted from 0: at most a
share ``q`` of its ``n`` values lies above. Being an order statistic, it moves with every rising map of the unit, such
as a positive factor, and does not depend on an interpolation rule. Only the ``floor(q n) + 1`` largest values matter, a
small share of the stream; where they do not fit the memory, units are taken in groups, one pass for each.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

_GATHERED = 4096  # values of a unit that are gathered before the largest are picked


def top_thresholds(stream: Callable[[], Iterable[Tensor]], q: float, count: int, memory: int = 2**30) -> Tensor:
    """The value of every unit that a share ``q`` of its values exceeds, ``(U,)``.

    Args:
        stream: Called for each pass; gives tensors ``(U, m)``, the same values each time.
        q: Share of values above the threshold.
        count: Values of each unit in the whole stream.
        memory: Bytes for the largest values.

    Raises:
        ValueError: If the share is not in (0, 1), a value is not finite, or the stream holds another number of them.

    Examples:
        >>> values = torch.arange(1000.0).reshape(10, 1, 100)
        >>> top_thresholds(lambda: iter(values), 0.01, 1000)
        tensor([989.])
    """
    if not 0 < q < 1:
        raise ValueError(f"q must be a share in (0, 1). Got {q}.")
    keep = min(int(q * count), count - 1) + 1
    found: list[Tensor] = []
    start, units = 0, 1
    while start < units:
        largest, seen = _Largest(keep), 0
        for values in stream():
            units, seen = len(values), seen + values.shape[1]
            group = max(1, memory // (32 * (keep + _GATHERED)))
            largest.add(_finite(values[start : start + group]))
        if seen != count:
            raise ValueError(f"stream must give {count} values for each unit in every pass. Got {seen}.")
        found.append(largest.least())
        start += group
    return torch.cat(found)


class _Largest:
    """The largest values of some units, ``keep`` of each, over all that was added."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._parts: list[Tensor] = []

    def add(self, values: Tensor) -> None:
        """Add values ``(U, m)``."""
        self._parts.append(values)
        if sum(part.shape[1] for part in self._parts) >= 2 * self._keep + _GATHERED:
            self._parts = [self._picked()]

    def least(self) -> Tensor:
        """The least of the values that are kept, ``(U,)``."""
        return self._picked().amin(1)

    def _picked(self) -> Tensor:
        values = torch.cat(self._parts, 1)
        return values.topk(min(self._keep, values.shape[1]), dim=1, sorted=False).values


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        bad = torch.nonzero(~torch.isfinite(values).all(1)).flatten().tolist()
        raise ValueError(f"values must be finite. Got NaN or infinity in units {bad[:8]}.")
    return values
