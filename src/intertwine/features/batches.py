"""Batches and how they are passed to a model: a tensor, ``(inputs, labels, ...)``, or keyword arguments."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._examples import run
from .._nested import map_tensors, tensors_in, with_items
from .._random import Stream

_LABELS = ("labels", "label")  # left out of keyword batches: given them, models compute losses that nobody asked for


def call(model: Callable[..., Any], batch: Any, device: torch.device | None) -> Any:
    """Run ``model`` on a copy of the inputs of ``batch`` on ``device`` (``None``: where they are)."""
    return run(model, _inputs(batch), device)


def size(batch: Any) -> int:
    """The number of examples: the length of the first axis of the first input tensor."""
    for tensor in tensors_in(_inputs(batch)):
        return tensor.shape[0] if tensor.ndim else 1
    raise TypeError(
        f"a batch must be a tensor, a tuple (inputs, labels, ...) or a dict of tensors. Got {type(batch).__name__}."
    )


def labels_in(batch: Any) -> Tensor | None:
    """The labels: a dict's ``labels`` or ``label``, the second entry of a tuple; ``None`` if that is not a tensor."""
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in _LABELS if key in batch), None)
    else:
        found = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    return found if isinstance(found, Tensor) else None


def example(batch: Any, examples: int, device: torch.device | None = None) -> Any:
    """The inputs of ``batch`` cut to its first examples: a dict, a tuple of several positional ones, or one value.

    Their tensors are put on ``device`` (``None``: left where they are).
    """
    return map_tensors(_first(_inputs(batch), examples, size(batch)), lambda x: x.to(device or x.device))


def head(batch: Any, examples: int) -> Any:
    """A batch of the first examples, without labels: a dict stays a dict, everything else becomes ``(inputs,)``."""
    return _batch(example(batch, examples))


def _first(value: Any, count: int, n: int) -> Any:
    """Tensors and other lists of ``n`` examples, cut to the first ``count``; anything else stays as it is."""
    if isinstance(value, Tensor):
        return value[:count] if value.ndim and len(value) == n else value
    if _is_of_examples(value, n):
        return value[:count]
    if isinstance(value, Mapping):
        return with_items(value, {key: _first(one, count, n) for key, one in value.items()})
    return with_items(value, [_first(one, count, n) for one in value]) if isinstance(value, list | tuple) else value


def _is_of_examples(value: Any, n: int) -> bool:
    """Whether a value is a list or array of one item, not a tensor, per example, such as lengths; tuples are sizes."""
    if isinstance(value, np.ndarray):
        return value.shape[:1] == (n,)
    return type(value) is list and len(value) == n and not any(True for _ in tensors_in(value))


def _batch(inputs: Any) -> Any:
    return inputs if isinstance(inputs, Mapping) else (inputs,)


def join(batches: Sequence[Any], index: Tensor | None = None) -> Any:
    """One batch of inputs joined from several, or from some examples by ``index`` among all; labels are left out.

    The batches must have one shape, and be equal in what does not belong to single examples.

    Raises:
        ValueError: If they have several shapes, or differ in what they must share.
    """  # noqa: DOC502 - raised by the parts
    if len(batches) == 1 and index is None:
        return batches[0]
    whole = _joined([_inputs(batch) for batch in batches], [*map(size, batches)], index)
    return (whole,) if isinstance(whole, tuple) else whole


def regroup(batches: Iterable[Any], at_least: int) -> Iterator[Any]:
    """Join batches until each holds ``at_least`` examples; what remains at the end joins the last one."""
    return map(join, grouped(batches, at_least))


def grouped(batches: Iterable[Any], at_least: int) -> Iterator[list[Any]]:
    """Batches in groups of ``at_least`` examples; what remains at the end joins the last one."""
    ready: list[Any] = []
    growing: list[Any] = []
    for batch in batches:
        growing.append(batch)
        if sum(map(size, growing)) >= at_least:
            if ready:
                yield ready
            ready, growing = growing, []
    if ready or growing:
        yield ready + growing


def length(loader: Iterable[Any]) -> int | None:
    """Number of batches, ``None`` if the loader does not know: streaming loaders have a length that fails."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def peek(loader: Iterable[Any]) -> tuple[Any, Iterator[Any]]:
    """The first batch, and an iterator over all batches, that one included: the loader is read only once."""
    _check_iterable(loader, "loader")
    batches = iter(repeatable(loader))
    for first in batches:
        return first, chain([first], batches)
    raise ValueError(
        "loader must yield at least one batch. Got none. A generator can be read only once: "
        "pass a list or a DataLoader to use it again."
    )


def check_repeatable(loader: Any, name: str = "loader") -> None:
    """Refuse a loader that can be read only once, before long work."""
    _check_iterable(loader, name)
    if isinstance(loader, Iterator):
        raise TypeError(
            f"{name} must be readable several times. Got an iterator ({type(loader).__name__}), which is empty after "
            "the first time. Pass a list or a DataLoader."
        )


def _check_iterable(loader: Any, name: str) -> None:
    if not isinstance(loader, Iterable) or isinstance(loader, Tensor | Mapping | str):
        raise TypeError(
            f"{name} must be an iterable of batches. Got {type(loader).__name__}. For one batch, pass [batch]."
        )


class Repeatable:
    """A loader whose every pass draws the same global random numbers, whatever was drawn before, and leaves no trace.

    Shuffling and augmentation by torch's global random numbers are then the same in every pass. A loader with its own
    generator continues from that generator's state.
    """

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        stream = Stream(self.seed)
        with stream.drawing():
            batches = iter(self.loader)
        while True:
            with stream.drawing():
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch


def repeatable(loader: Iterable[Any], seed: int | None = None) -> Repeatable:
    """A loader as a :class:`Repeatable`; one that already is gets the new seed, or keeps its own."""
    if isinstance(loader, Repeatable):
        return loader if seed is None else Repeatable(loader.loader, seed)
    return Repeatable(loader, 0 if seed is None else seed)


def device_of(model: nn.Module) -> torch.device | None:
    """Device of the model's first parameter or buffer; ``None`` for a model without any."""
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return None


def _inputs(batch: Any) -> Any:
    """The inputs: a mapping for keyword arguments, a tuple for several positional ones, else one value."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in _LABELS}
    if isinstance(batch, tuple | list) and batch:
        first = batch[0]
        return tuple(first) if isinstance(first, tuple | list) else _inputs(first)
    return batch


def _joined(values: Sequence[Any], sizes: Sequence[int], index: Tensor | None) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return with_items(first, {key: _joined([value[key] for value in values], sizes, index) for key in first})
    if all(map(_is_of_examples, values, sizes)):
        if isinstance(first, np.ndarray):
            rows = np.concatenate(values)
            return rows if index is None else rows[index.tolist()]
        every = [*chain(*values)]
        return every if index is None else [every[k] for k in index.tolist()]
    if isinstance(first, list | tuple) and any(True for _ in tensors_in(first)):
        return with_items(first, [_joined(parts, sizes, index) for parts in zip(*values, strict=True)])
    if not isinstance(first, Tensor):
        equal = np.array_equal if isinstance(first, np.ndarray) else lambda x, y: np.all(x == y)
        if all(value is first or equal(value, first) for value in values):
            return first
        raise ValueError("batches must agree in what is not one value per example to be joined. Got different ones.")
    if any(x.ndim == 0 or len(x) != n for x, n in zip(values, sizes)):
        if all(torch.equal(first, value) for value in values):
            return first
        raise ValueError("batches must agree in tensors without a row per example to be joined. Got different ones.")
    shapes = {tuple(value.shape[1:]) for value in values}
    if len(shapes) > 1:
        raise ValueError(
            f"batches must have inputs of one shape to be joined. Got {sorted(shapes)}. "
            "Pad or resize them, or make batches larger."
        )
    return torch.cat(list(values)) if index is None else _picked(values, index)


def _picked(values: Sequence[Tensor], index: Tensor) -> Tensor:
    """Rows of several tensors by their index among all, without a copy of all."""
    found, first = torch.cat([x[:0] for x in values]), 0
    found = found.new_empty(len(index), *found.shape[1:])
    for x in values:
        here = (index >= first) & (index < first + len(x))
        found[here.to(x.device)] = x[(index[here] - first).to(x.device)].to(found.dtype)
        first += len(x)
    return found
