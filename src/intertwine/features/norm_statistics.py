"""Statistics of batch norms measured anew: the moments of all examples that run through them."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from .batches import regroup, size
from .moments import ChannelMoments


def normalisable(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches that batch norm can normalise by, of all examples: one that holds a single example joins its neighbour.

    Raises:
        ValueError: If there are fewer than two examples in all.
    """
    groups = regroup(batches, 2)
    first = next(groups, None)
    if first is None or size(first) < 2:
        raise ValueError(
            "batches must hold at least two examples in all, whose spread is measured. Got fewer. Give more, or leave "
            "the statistics as they are."
        )
    yield first
    yield from groups


class NormStatistics:
    """Replaces running means and variances, ``(C,)`` each, by the moments of what runs through the batch norms.

    In the ``with`` block batch norms normalise by their batch and write its statistics (momentum 1) for ``add`` to take
    over. Afterwards each holds the mean and the unbiased variance of all examples together, merged in float64, unlike
    an average of running statistics. A norm that did not run, and all of them after an error, hold what they held.
    """

    def __init__(self, norms: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._norms = {id(mean): (mean, variance) for mean, variance in norms}
        self._before = {key: (mean.clone(), variance.clone()) for key, (mean, variance) in self._norms.items()}
        self._found = {key: ChannelMoments() for key in self._norms}

    def add(self, mean: Tensor, variance: Tensor, values: int) -> None:
        """Take over one batch: the running tensors that a norm has just written, and its values of each channel."""
        self._found[id(mean)].merge(values, mean.to(torch.float64, copy=True), variance.double() * (values - 1))

    def __enter__(self) -> Self:
        return self

    @torch.no_grad()
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key, norm in self._norms.items():
            found = self._found[key]
            kept = kind is not None or not found.count
            for tensor, value in zip(norm, self._before[key] if kept else (found.mean, found.variance)):
                tensor.copy_(value)
