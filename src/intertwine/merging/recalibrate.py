"""Batch norm statistics for weights that were never trained: measured anew on data."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import evaluating, in_usual_mode
from ..features.batches import call, device_of, peek
from ..features.norm_statistics import NormStatistics

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
        loader: Batches; labels are not used. Batches of a few hundred examples, shuffled, are best. One that shuffles
            by torch's global random numbers is read in the same order every time.

    Raises:
        ValueError: If the loader is empty, or a batch is too small to normalise by.

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
    _, batches = peek(loader)
    device = device_of(model)
    with evaluating(model), _measuring(norms), torch.no_grad():
        for batch in batches:
            call(model, batch, device)
    return model


@contextmanager
def _measuring(norms: dict[str, _BatchNorm]) -> Iterator[None]:
    """Train mode for batch norms, which hold the moments of all their inputs afterwards."""

    def checking(name: str) -> Any:
        def hook(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].numel() == inputs[0].shape[1]:
                raise ValueError(
                    "batches must hold several examples to measure batch norms. Got one value per channel in "
                    f"{name!r}. Use larger batches."
                )

        return hook

    def measure(norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.add(norm.running_mean, norm.running_var, inputs[0].numel() // inputs[0].shape[1])  # type: ignore[arg-type]

    found = NormStatistics((norm.running_mean, norm.running_var) for norm in norms.values())  # type: ignore[misc]
    kept = [(norm, norm.momentum, _copied(norm.num_batches_tracked)) for norm in norms.values()]
    hooks = [norm.register_forward_pre_hook(checking(name)) for name, norm in norms.items()]
    hooks += [norm.register_forward_hook(measure) for norm in norms.values()]
    try:
        for norm in norms.values():
            norm.training, norm.momentum = True, 1.0
        with found:
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm, momentum, batches in kept:
            norm.momentum = momentum
            if batches is not None:
                norm.num_batches_tracked.copy_(batches)  # type: ignore[union-attr]


def _copied(tensor: Any) -> Tensor | None:
    return tensor.clone() if isinstance(tensor, Tensor) else None
