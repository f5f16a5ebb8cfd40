"""Batches with labels, as often as stitching wants them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ..features.batches import labels_in, peek, size


def check_loader(loader: Any, name: str = "loader") -> None:
    """Refuse what can be read only once.

    Raises:
        TypeError: If ``loader`` is no iterable of batches, or an iterator.
    """
    if not isinstance(loader, Iterable) or isinstance(loader, Tensor | Mapping | str):
        raise TypeError(f"{name} must be an iterable of batches. Got {type(loader).__name__}.")
    if isinstance(loader, Iterator):
        raise TypeError(
            f"{name} must be readable several times, since training takes several epochs. Got the iterator "
            f"{type(loader).__name__}, which is used up by one. Pass a list or a DataLoader."
        )


def first_batch(loader: Iterable[Any]) -> Any:
    """The first batch of a loader that can be read again."""
    return peek(loader)[0]


def labels_of(batch: Any) -> Tensor:
    """Class labels ``(N,)`` of a batch.

    Raises:
        ValueError: If it has none.
    """
    found = labels_in(batch)
    if found is None or found.ndim != 1 or found.is_floating_point():
        got = "none" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
        raise ValueError(
            f"batches must be (inputs, labels, ...) or a dict with 'labels', labels (N,) of whole numbers. Got {got}."
        )
    return found


def normalisable(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches that batch norm can measure: a batch of one example may hold one value of a channel.

    Yields:
        Batches of two examples or more, such as all but a last one of what is left over.

    Raises:
        ValueError: If there are none.
    """
    found = False
    for batch in batches:
        if size(batch) > 1:
            found = True
            yield batch
    if not found:
        raise ValueError(
            "batches must hold at least two examples for batch norm to be measured anew. Got batches of one. Use "
            "larger batches, or leave the statistics as they are (recalibration=False)."
        )
