"""Statistics of batch norms measured anew: the moments of all examples that run through them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._evaluation import evaluating
from .._words import counted
from .activations import watching
from .batches import call, device_of, head, regroup, size
from .moments import ChannelMoments


def normalisable(batches: Iterable[Any], least: int = 2) -> Iterator[Any]:
    """Batches of ``least`` examples or more, so that each has a spread; smaller ones join their neighbours."""
    groups = regroup(batches, least)
    first = next(groups, None)
    if first is None or size(first) < least:
        raise ValueError(
            f"batches must hold at least {counted(least, 'example')} in all, whose spread is measured. Got fewer. Give "
            "more, or leave the statistics as they are."
        )
    yield first
    yield from groups


def fewest(model: nn.Module, layers: Mapping[str, int], batch: Any) -> int:
    """How many examples have a spread at layers: one where each, with channels at an axis, has several positions of it.

    Else two. The model runs on the first example of the batch.
    """
    values: list[int] = []
    see = lambda name, k, module, inputs, output: values.append(output.numel() // output.shape[layers[name]])
    watched = {name: model.get_submodule(name) for name in layers}
    with evaluating(model), watching(watched, see), torch.no_grad():
        call(model, head(batch, 1), device_of(model))
    return 1 if all(count > 1 for count in values) else 2


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
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for key, norm in self._norms.items():
            found = self._found[key]
            kept = kind is not None or not found.count
            for tensor, value in zip(norm, self._before[key] if kept else (found.mean, found.variance)):
                tensor.copy_(value)
