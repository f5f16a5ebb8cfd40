"""Labels of batches, as stitching wants them."""

from typing import Any

from torch import Tensor

from ..features.batches import labels_in
from ..features.evaluate import known


def labels_of(batch: Any, classes: int | None = None) -> Tensor:
    """Class labels ``(N,)`` of a batch, below ``classes`` where it is given, or -100 where they are ignored."""
    found = labels_in(batch)
    if found is None or found.ndim != 1 or found.is_floating_point():
        got = "none" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
        raise ValueError(
            f"batches must be (inputs, labels, ...) or a dict with 'labels', labels (N,) of whole numbers. Got {got}."
        )
    if classes is not None and len(outside := found[known(found) & ((found < 0) | (found >= classes))]):
        raise ValueError(
            f"labels must be from 0 to {classes - 1}, B's {classes} outputs, or -100 where they are ignored. "
            f"Got {int(outside[0])}."
        )
    return found
