"""Batch-norm statistics of the tail, measured anew behind a stitching layer, and the loss of maps as evaluated."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._progress import track
from ..features.batches import check_repeatable, length, repeatable, size
from ..features.evaluate import known
from ..features.norm_statistics import normalisable
from ..programs import Part, flat_inputs
from .penalty import labels_of
from .stitched import Stitched, Trunk, by_trunk

__all__ = ["measure_norms", "recalibrate"]


def recalibrate(
    networks: Stitched | Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None
) -> None:
    """Give every stitched network the batch-norm statistics of what its tail really sees (paper 1, D.2.1).

    One pass over training data without gradients, the stitching layer as it is evaluated (a true permutation). The
    paper calls it critical: else the statistics are those of a layer no longer in use. It is done for *every* family
    here; the reference code did it for G_ReLU only. Only the stitched networks' own copies of the statistics change.
    Tails without batch norm are left as they are.

    Differs from the paper, whose pass goes on from the present statistics with PyTorch's momentum 0.1 and so depends on
    the order of the data: here they are the moments of all examples.

    Args:
        networks: Stitched networks; those that share a trunk run it once per batch.
        loader: Training data; labels are not read. A batch of one example joins its neighbour. One that shuffles by
            torch's global random numbers is read in the same order every time.
        progress: Whether to show progress.

    Raises:
        ValueError: If there are fewer than two examples.
    """  # noqa: DOC502 - raised where batches are read
    nets = [networks] if isinstance(networks, Stitched) else list(networks)
    check_repeatable(loader)
    for group in by_trunk([net for net in nets if net.tail.norms]):
        batches = track(repeatable(loader), "Recalibrating batch norm", length(loader), progress)
        measure_norms(group[0].trunk, [(net.evaluated(), net.tail) for net in group], batches)


@torch.no_grad()
def measure_norms(
    trunk: Trunk, tails: Sequence[tuple[Callable[[Sequence[Tensor]], tuple[Tensor, ...]], Part]], batches: Iterable[Any]
) -> None:
    """Measure the batch norms of tails, each with the maps of what it reads, behind one run of the trunk a batch."""
    device = next((tensor.device for tensor in tails[0][1].buffers()), None)
    with ExitStack() as stack:
        for _, tail in tails:
            stack.enter_context(tail.measuring_norms())
        for batch in normalisable(batches):
            crossing = trunk(*flat_inputs(batch, device))
            for mapped, tail in tails:
                tail(*mapped(crossing))


def some_batches(loader: Iterable[Any], examples: int) -> list[Any]:
    """The first whole batches of a loader, until they hold so many examples or there are no more."""
    found, count = [], 0
    for batch in repeatable(loader):
        found.append(batch)
        count += size(batch)
        if count >= examples:
            break
    return found


@torch.no_grad()
def evaluated_losses(
    networks: Sequence[Stitched], batches: Sequence[Any], *, recalibration: bool = True
) -> list[float]:
    """Mean cross-entropy of stitched networks that share a trunk, as :func:`penalty.evaluate` would run them.

    Relaxed maps are rounded, and with ``recalibration`` batch norm of the tail is measured anew on the same batches.
    Networks are not changed. What a relaxed map reaches in training says little of this: a doubly stochastic matrix far
    from every permutation may fit the task well, and its nearest permutation badly. NaN or infinity where a network
    gives them.
    """
    if not networks:
        return []
    trunk, device = networks[0].trunk, next((t.device for t in networks[0].tail.buffers()), None)
    maps, tails = [net.evaluated() for net in networks], [net.tail.fork().eval() for net in networks]
    if recalibration and (anew := [(mapped, tail) for mapped, tail in zip(maps, tails) if tail.norms]):
        measure_norms(trunk, anew, batches)
    sums, count = [0.0] * len(networks), 0
    for batch in batches:
        crossing = trunk(*flat_inputs(batch, device))
        labels = labels_of(batch, networks[0].classes).to(crossing[0].device)
        count += int(known(labels).sum())
        for i, (mapped, tail) in enumerate(zip(maps, tails)):
            sums[i] += float(F.cross_entropy(tail(*mapped(crossing))[0], labels, reduction="sum"))
    return [total / max(count, 1) for total in sums]
