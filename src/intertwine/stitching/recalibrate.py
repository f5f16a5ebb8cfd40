"""Running statistics of the tail's batch norms, found anew behind a stitching layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._progress import track
from ..features.batches import length
from ..features.repeatable import repeatable
from ..programs import flat_inputs
from ._batches import check_loader, normalisable
from .stitched import Stitched, by_trunk

__all__ = ["recalibrate"]


def recalibrate(
    networks: Stitched | Sequence[Stitched],
    loader: Iterable[Any],
    *,
    momentum: float | None = None,
    progress: bool = False,
) -> None:
    """Give every stitched network the batch-norm statistics of what its tail really sees (paper 1, D.2.1).

    One pass over training data without gradients, the stitching layer as it is evaluated (a true permutation), the
    tail's batch norms in training mode. The paper calls it critical: else the statistics are those of a layer no longer
    in use. It is done for *every* family here; the reference code did it for G_ReLU only. Only the stitched networks'
    own copies of the statistics change. Tails without batch norm are left as they are.

    Args:
        networks: Stitched networks; those that share a trunk run it once per batch.
        loader: Training data; labels are not read, and batches of one example are left out. One that shuffles by
            torch's global random numbers is read in the same order every time.
        momentum: ``None`` takes the plain average over all batches, which does not depend on their order; a number
            goes on from the present statistics with that momentum, as the paper's pass with PyTorch's 0.1 did.
        progress: Whether to show progress.

    Raises:
        ValueError: If ``momentum`` is not between 0 and 1, or all batches hold one example.
    """
    nets = [networks] if isinstance(networks, Stitched) else list(networks)
    if momentum is not None and not 0 < momentum <= 1:
        raise ValueError(f"momentum must be None, or above 0 and at most 1. Got {momentum}.")
    check_loader(loader)
    for group in by_trunk([net for net in nets if net.tail.norms]):
        _recalibrate(group, loader, momentum, progress)


@torch.no_grad()
def _recalibrate(nets: list[Stitched], loader: Iterable[Any], momentum: float | None, progress: bool) -> None:
    before = [(net.training, net.tail.training, net.tail.momentum) for net in nets]
    device = next((t.device for t in nets[0].tail.buffers()), None)
    maps = [net.evaluated() for net in nets]
    for net in nets:
        net.tail.train()
        net.tail.momentum = momentum
        if momentum is None:
            net.tail.reset_norms()
    try:
        for batch in normalisable(track(repeatable(loader), "Recalibrating batch norm", length(loader), progress)):
            crossing = nets[0].trunk(*flat_inputs(batch, device))
            for net, mapped in zip(nets, maps):
                net.tail(*mapped(crossing))
    finally:
        for net, (mode, tail_mode, kept) in zip(nets, before):
            net.train(mode)
            net.tail.train(tail_mode)
            net.tail.momentum = kept
