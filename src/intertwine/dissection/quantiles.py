"""Top quantiles of many units over a stream that does not fit in memory: a sketch with a stated error, and exactly.

The threshold of a unit at level ``q`` is its value number ``floor(q n)`` in falling order, counted from 0: at most a
share ``q`` of its ``n`` values lies above. Being an order statistic, it moves with every rising map of the unit, such
as a positive factor, and does not depend on an interpolation rule.

The sketch is a stack of buffers. A value in buffer ``h`` stands for ``2^h`` values. When a buffer is full its larger
half stays; the rest is sorted and every second value moves up with double weight. One such step changes the number of
values above any threshold by at most ``2^h``, and not at all for thresholds above the largest value moved. Counting
steps therefore gives a bound for each unit that holds for every input in every order. Since the top is what is
kept, bounds at top quantiles are small, and 0 while ``q n`` is below half the capacity.

Sources: Munro and Paterson 1980 (two passes); Karnin, Lang and Liberty 2016 and Cormode et al. 2021 (compactors, and
protecting one end of them). Here the bound is counted, not proved from a random choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Thresholds", "TopSketch", "exact_thresholds", "sketch_thresholds"]

_CAPACITY = 4096
_LONGEST_UPDATE = 8  # in capacities: bounds the temporary memory of one update


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Thresholds and how exact they are.

    Args:
        value: ``(U,)``.
        rank_error: ``(U,)`` in int64: ``value`` is the exact threshold for a rank at most this far from ``floor(q n)``.
        count: Number of values of each unit.
    """

    value: Tensor
    rank_error: Tensor
    count: int

    @property
    def share_error(self) -> float:
        """The largest rank error of any unit, as a share of all values."""
        return float(self.rank_error.max()) / self.count


class TopSketch:
    """A mergeable summary of ``U`` streams, accurate at their top.

    Args:
        units: Number of units ``U``.
        capacity: Values that each buffer of a unit holds; an even number, at least 4. Memory is about
            ``U * capacity * log2(n / capacity)`` values.

    Examples:
        >>> sketch = TopSketch(units=1, capacity=64)
        >>> for part in torch.arange(1000.0).flip(0).reshape(10, 1, 100):
        ...     sketch.update(part)
        >>> found = sketch.threshold(0.01)
        >>> float(found.value), int(found.rank_error)
        (989.0, 0)
    """

    def __init__(self, units: int, capacity: int = _CAPACITY) -> None:
        if capacity < 4 or capacity % 2:
            raise ValueError(f"capacity must be an even number, at least 4. Got {capacity}.")
        if units < 1:
            raise ValueError(f"units must be at least 1. Got {units}.")
        self.units, self.capacity, self.count = units, capacity, 0
        self._buffers: list[Tensor] = []
        self._steps: list[int] = []  # compactions of each buffer
        self._moved: list[Tensor] = []  # largest value that left each buffer, for each unit

    def update(self, values: Tensor) -> None:
        """Take in more values.

        Raises:
            ValueError: If the shape is wrong or a value is not finite.
        """
        if values.ndim != 2 or values.shape[0] != self.units:
            raise ValueError(f"values must be ({self.units}, m), one row for each unit. Got {tuple(values.shape)}.")
        if not bool(torch.isfinite(values).all()):
            bad = torch.nonzero(~torch.isfinite(values).all(1)).flatten().tolist()
            raise ValueError(f"values must be finite. Got NaN or infinity in units {bad[:8]}.")
        self.count += values.shape[1]
        for part in values.split(_LONGEST_UPDATE * self.capacity, dim=1):
            self._add(0, part)

    def merge(self, other: TopSketch) -> None:
        """Take in all that another sketch has seen; the bounds of both add up.

        Raises:
            ValueError: If units or capacity differ.
        """
        if (other.units, other.capacity) != (self.units, self.capacity):
            raise ValueError(
                f"other must have {self.units} units and capacity {self.capacity}. "
                f"Got {other.units} and {other.capacity}."
            )
        self.count += other.count
        for level, (steps, moved) in enumerate(zip(other._steps, other._moved)):
            self._grow(level, moved)
            self._steps[level] += steps
            self._moved[level] = torch.maximum(self._moved[level], moved)
        for level, buffer in enumerate(other._buffers):
            self._add(level, buffer)

    def threshold(self, q: float) -> Thresholds:
        """The threshold of each unit at level ``q``, with the error that its buffers can have caused."""
        rank = self._rank(q)
        values, _, upto, error = self._table()
        position = (upto <= rank).sum(1, keepdim=True).clamp_max(values.shape[1] - 1)
        return Thresholds(values.gather(1, position)[:, 0], error.gather(1, position)[:, 0], self.count)

    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """Bounds between which the exact threshold certainly lies, ``(U,)`` each; infinite where nothing is certain."""
        rank = self._rank(q)
        values, above, upto, error = self._table()
        infinity = torch.full_like(values, torch.inf)
        high = torch.where(above + error <= rank, values, infinity).amin(1)
        low = torch.where(upto - error >= rank + 1, values, -infinity).amax(1)
        return low, high

    def _rank(self, q: float) -> int:
        if not 0 < q < 1:
            raise ValueError(f"q must be a share in (0, 1). Got {q}.")
        if not self.count:
            raise ValueError("the sketch must have seen values before it is asked. Got none.")
        return min(int(q * self.count), self.count - 1)

    def _table(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Kept values in falling order, estimated counts before and up to each, the bound on them; all ``(U, S)``."""
        values = torch.cat(self._buffers, 1)
        weights = torch.cat([torch.full_like(b, 2**h, dtype=torch.int64) for h, b in enumerate(self._buffers)], 1)
        values, order = values.sort(stable=True, dim=1, descending=True)
        weights = weights.gather(1, order)
        upto = weights.cumsum(1)
        error = torch.zeros_like(upto)
        for level, (steps, moved) in enumerate(zip(self._steps, self._moved)):
            error += (moved[:, None] >= values) * (steps * 2**level)
        return values, upto - weights, upto, error

    def _grow(self, level: int, like: Tensor) -> None:
        while len(self._buffers) <= level:
            self._buffers.append(like.new_empty(self.units, 0))
            self._steps.append(0)
            self._moved.append(like.new_full((self.units,), -torch.inf))

    def _add(self, level: int, values: Tensor) -> None:
        self._grow(level, values)
        buffer = torch.cat([self._buffers[level], values], 1)
        if buffer.shape[1] <= self.capacity:
            self._buffers[level] = buffer
            return
        buffer = _sorted(buffer)
        moving = (buffer.shape[1] - self.capacity // 2) // 2 * 2
        low, self._buffers[level] = buffer[:, :moving], buffer[:, moving:].clone()
        self._moved[level] = torch.maximum(self._moved[level], low[:, -1])
        self._steps[level] += 1
        self._add(level + 1, low[:, self._steps[level] % 2 :: 2])  # odd and even places in turn: errors cancel


def sketch_thresholds(stream: Iterable[Tensor], q: float, capacity: int = _CAPACITY) -> Thresholds:
    """Thresholds from one pass over tensors ``(U, m)``, which a share ``q`` of values exceeds, with a stated error."""
    return _sketched(stream, capacity).threshold(q)


def exact_thresholds(stream: Callable[[], Iterable[Tensor]], q: float, capacity: int = _CAPACITY) -> Thresholds:
    """Exact thresholds from two passes, in memory that does not grow with the stream but for the sketch's error.

    The first pass brackets every threshold by a sketch. The second counts the values above the bracket and keeps those
    inside it, at most about four times the rank error of the sketch. It is left out where the sketch is already exact.

    Args:
        stream: Called for each pass; gives tensors ``(U, m)``, the same values each time.
        q: Share of values above the threshold.
        capacity: See :class:`TopSketch`.

    Raises:
        RuntimeError: If the second pass shows other values than the first.
    """
    sketch = _sketched(stream(), capacity)
    found = sketch.threshold(q)
    if not bool(found.rank_error.any()):
        return found
    low, high = sketch.bracket(q)
    above = torch.zeros_like(found.rank_error)
    at_high = torch.zeros_like(above)
    inside: list[tuple[Tensor, Tensor]] = []
    count = 0
    for values in stream():
        count += values.shape[1]
        above += (values > high[:, None]).sum(1)
        at_high += (values == high[:, None]).sum(1)
        unit, place = torch.nonzero((values > low[:, None]) & (values < high[:, None]), as_tuple=True)
        inside.append((unit, values[unit, place]))
    rank = min(int(q * count), count - 1)
    value = _select(rank, above, at_high, inside, low, high)
    if count != sketch.count or not bool(torch.isfinite(value).all()) or bool((above > rank).any()):
        raise RuntimeError("stream must give the same values in both passes. Got others in the second pass.")
    return Thresholds(value, torch.zeros_like(found.rank_error), count)


def _select(
    rank: int, above: Tensor, at_high: Tensor, inside: list[tuple[Tensor, Tensor]], low: Tensor, high: Tensor
) -> Tensor:
    """Value number ``rank`` in falling order: ``high``, one of those inside the bracket, or ``low``."""
    unit = torch.cat([u for u, _ in inside])
    values, order = torch.cat([v for _, v in inside]).sort(descending=True)
    unit, by_unit = unit[order].sort(stable=True, dim=0)
    values = values[by_unit]
    sizes = torch.bincount(unit, minlength=len(low))
    wanted = rank - above - at_high  # place among the values inside
    place = (sizes.cumsum(0) - sizes + wanted).clamp(0, max(len(values) - 1, 0))
    chosen = values[place] if len(values) else low
    return torch.where(wanted < 0, high, torch.where(wanted < sizes, chosen, low))


def _sketched(stream: Iterable[Tensor], capacity: int) -> TopSketch:
    sketch: TopSketch | None = None
    for values in stream:
        sketch = sketch or TopSketch(values.shape[0], capacity)
        sketch.update(values)
    if sketch is None:
        raise ValueError("stream must yield at least one tensor. Got none.")
    return sketch


def _sorted(values: Tensor) -> Tensor:
    """Rows in rising order. NumPy's vectorised sort is several times as fast as torch's on the CPU."""
    if values.device.type != "cpu":
        return values.sort(1).values
    import numpy as np

    return torch.from_numpy(np.sort(values.numpy(), axis=1))
