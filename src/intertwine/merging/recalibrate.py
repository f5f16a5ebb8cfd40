"""Batch norm statistics for weights that were never trained: measured anew on data.

Stitched networks are programs, whose batch norms are calls (``programs.Part.measuring_norms``). Here they are modules
of a model that need not run as a program, so that hooks watch them; moments and batches are those of stitching.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import evaluating, in_usual_mode
from ..features.activations import watching
from ..features.batches import call, device_of, peek
from ..features.norm_statistics import NormStatistics, fewest, normalisable

_BatchNorm = nn.modules.batchnorm._BatchNorm


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norms with running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


@in_usual_mode
def recalibrate_(model: nn.Module, loader: Iterable[Any]) -> nn.Module:
    """Replace the running statistics of all batch norms by the moments of their inputs over a loader.

    While the loader is read, batch norms normalise by their batch, everything else is in evaluation mode. Unlike an
    average of running statistics, the moments are those of all examples together, with the variance unbiased as torch
    keeps it.

    Args:
        model: A model with batch norms, changed in place; one without is left as it is.
        loader: Batches; labels are not used. Batches of a few hundred examples, shuffled, are best; a batch of one
            value per channel joins its neighbour. One that shuffles by torch's global random numbers is read in the
            same order every time.

    Raises:
        ValueError: If the loader holds one value per channel, or none.

    Examples:
        >>> model = nn.BatchNorm1d(2)
        >>> x = torch.randn(64, 2) * 3 + 1
        >>> _ = recalibrate_(model, x.split(16))
        >>> torch.allclose(model.running_mean, x.mean(0)), torch.allclose(model.running_var, x.var(0))
        (True, True)
    """  # noqa: DOC502 - raised by what it calls
    norms = batch_norms(model)
    if not norms:
        return model
    first, batches = peek(loader)
    least = fewest(model, dict.fromkeys(norms, 1), first)
    device = device_of(model)
    with evaluating(model), _measuring(norms), torch.no_grad():
        for batch in normalisable(batches, least):
            call(model, batch, device)
    return model


@contextmanager
def _measuring(norms: dict[str, _BatchNorm]) -> Iterator[None]:
    """Train mode for batch norms, which hold the moments of all their inputs afterwards."""

    def measure(name: str, k: int, norm: nn.Module, inputs: Any, output: Tensor) -> None:
        found.add(norm.running_mean, norm.running_var, output.numel() // output.shape[1])  # type: ignore[arg-type]

    found = NormStatistics((norm.running_mean, norm.running_var) for norm in norms.values())  # type: ignore[misc]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms.values()]
    try:
        for norm in norms.values():
            norm.training, norm.momentum = True, 1.0
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked = norm.num_batches_tracked.clone()  # these batches do not count
        with found, watching(norms, measure):
            yield
    finally:
        for norm, momentum, batches in kept:
            norm.momentum, norm.num_batches_tracked = momentum, batches
