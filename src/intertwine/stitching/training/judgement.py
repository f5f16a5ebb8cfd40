"""Training losses of stitched networks as they are evaluated: the map rounded, batch norm recalibrated."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ...features.batches import size
from ...features.evaluate import known
from ...features.repeatable import repeatable
from ...programs import flat_inputs
from .._batches import labels_of
from ..networks.stitched import Stitched
from ..recalibrate import measure_norms


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
    if recalibration:
        anew = [(mapped, tail) for mapped, tail in zip(maps, tails) if tail.norms]
        if anew:
            measure_norms(trunk, anew, batches)
    sums, count = [0.0] * len(networks), 0
    for batch in batches:
        crossing = trunk(*flat_inputs(batch, device))
        labels = labels_of(batch, networks[0].classes).to(crossing[0].device)
        count += int(known(labels).sum())
        for i, (mapped, tail) in enumerate(zip(maps, tails)):
            sums[i] += float(F.cross_entropy(tail(*mapped(crossing))[0], labels, reduction="sum"))
    return [total / max(count, 1) for total in sums]
