"""Data in memory: one split, the three splits of a data set, and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._threads import threads
from ...errors import DataError

MOST_CLASSES = 2**20  # no data set has more classes, and no vocabulary more tokens

# Names of folders and files of each split
ALIASES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}

SplitName = Literal["train", "validation", "test", "all"]

_MEASURED = 2048  # image files on which channels are measured
_TESTED = 0.2  # share of all examples held out if no test split is given
_FEWEST = 100  # fewest validation examples of a shortened data set


@dataclass(frozen=True)
class Split:
    """Examples and their labels."""

    # ``(N, C, *S)``; ``uint8`` values 0 to 255 mean 0 to 1, floats stay unchanged. Tokens are ``(N, T)``, ``int64``.
    # Images that do not fit in memory are ``pictures.Pictures``, decoded on indexing
    inputs: Tensor
    labels: Tensor  # ``(N,)``, ``int64``; for tokens also ``(N, T)``, one for each

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor | slice) -> Split:
        """Some of the examples; image files are not decoded."""
        inputs = self.inputs[index] if isinstance(self.inputs, Tensor) else self.inputs.take(index)
        return Split(inputs, self.labels[index])

    def to(self, device: torch.device | str) -> Split:
        """The same split on another device."""
        return Split(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Batches:
    """Repeatable iterable of ``(inputs, labels)``; inputs are float32 with normalised channels, or tokens."""

    split: Split  # The examples
    mean: tuple[float, ...]  # Mean of each channel of the training set, on the scale 0 to 1 for images
    std: tuple[float, ...]  # Standard deviation of each channel
    batch_size: int = 250  # Examples per batch; the last one may be smaller
    shuffle: bool = False  # Whether each pass uses a new random order
    generator: torch.Generator | None = None  # Source of the orders; torch's global generator if ``None``
    # Keyword arguments, such as those of an encoder and a decoder, each of which gets the inputs; empty for one
    # positional argument
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        n = len(self.split)
        order = torch.randperm(n, generator=self.generator) if self.shuffle else None
        for start in range(0, n, self.batch_size):
            stop = start + self.batch_size
            yield self.batch(slice(start, stop) if order is None else order[start:stop])

    def batch(self, index: Tensor | slice) -> tuple[Any, Tensor]:
        """The examples at ``index`` as one batch."""
        if isinstance(index, Tensor):
            index = index.to(self.split.labels.device)
        inputs = self.normalise(self.split.inputs[index])
        return dict.fromkeys(self.names, inputs) or inputs, self.split.labels[index]

    def normalise(self, inputs: Tensor) -> Tensor:
        """The inputs with ``uint8`` scaled to 0 to 1 and channels normalised by mean and deviation; tokens stay."""
        if inputs.dtype == torch.int64:
            return inputs
        x = inputs.to(torch.float32)
        if inputs.dtype == torch.uint8:
            x /= 255
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, std = (torch.tensor(v, device=x.device).view(shape) for v in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True)
class DataSplits:
    """A data set in memory: training, validation and test split; validation examples never come from the test set."""

    name: str  # Name given to ``load``, without a path
    train: Split  # Training split
    validation: Split  # Held out from the training set, for choosing weights
    test: Split  # For final numbers only
    classes: tuple[str, ...]  # Class names, in label order
    mean: tuple[float, ...]  # Mean of each channel over the training split; empty for tokens
    std: tuple[float, ...]  # Standard deviation of each channel over the training split; 1 if a channel is constant
    notes: tuple[str, ...] = ()  # Notes for the reader: how many examples were used, and why not others

    @property
    def labelled(self) -> bool:
        """Whether examples have labels; without them, every split contains all data."""
        return bool(self.classes)

    def need_labels(self, what: str, classes: int = 1) -> None:
        """Refuse data without labels or with fewer classes; the message says what the labels are needed for."""
        if not self.labelled:
            raise DataError(
                f"data must have labels {what}. Got {self.name}, which has none. Give data with labels, such as "
                "images in one folder for each class."
            )
        if len(found := self.train.labels.unique()) < classes:
            raise DataError(f"{self.name} must hold at least two classes {what}. Got one: label {int(found[0])}.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, ``(C, *S)``; ``(T,)`` for tokens."""
        return tuple(self.train.inputs.shape[1:])

    def split(self, name: SplitName) -> Split:
        """A split by name; ``"all"`` joins all of them, and any other name raises a ``ValueError``."""
        if name not in ("train", "validation", "test", "all"):
            raise ValueError(f"split must be train, validation, test or all. Got {name!r}.")
        if name != "all":
            return getattr(self, name)
        if not self.labelled:
            return self.train
        parts = (self.train, self.validation, self.test)
        inputs: Any = [part.inputs for part in parts]
        joined = torch.cat(inputs) if isinstance(inputs[0], Tensor) else inputs[0].joined(inputs[1:])
        return Split(joined, torch.cat([part.labels for part in parts]))

    def first(self, examples: int | None) -> DataSplits:
        """The same data with this many training examples (all if ``None``), and validation examples in proportion.

        The order of a split is random and fixed, so the first ones are as good as any. At least 100 validation examples
        are kept, if there are that many; the number of training examples appears in the name.

        Raises:
            ValueError: If ``examples`` is below 1.

        Examples:
            >>> from intertwine.lab.data import load
            >>> load("digits").first(500)
            DataSplits('digits[:500]', train=500, validation=100, test=359, shape=(1, 8, 8), classes=10)
        """
        if examples is None or examples >= len(self.train):
            return self
        if examples < 1:
            raise ValueError(f"examples must be at least 1. Got {examples}.")
        held_out = max(examples * len(self.validation) // len(self.train), _FEWEST)
        return replace(
            self, name=f"{self.name}[:{examples}]",
            train=self.train.take(slice(examples)), validation=self.validation.take(slice(held_out)),
        )  # fmt: skip

    def pooled(self, size: int) -> DataSplits:
        """The same images, averaged over squares of ``size`` pixels, from 0 to 1; channel moments stay unchanged.

        Examples:
            >>> from intertwine.lab.data import load
            >>> load("digits").pooled(2).shape
            (1, 4, 4)
        """
        if size == 1:
            return self
        scale = 1 if self.train.inputs.dtype.is_floating_point else 255
        shrink = lambda split: replace(split, inputs=F.avg_pool2d(split.inputs.to("cpu").float() / scale, size))
        train, validation, test = map(shrink, (self.train, self.validation, self.test))
        return replace(self, name=f"{self.name}/{size}", train=train, validation=validation, test=test)

    def loader(
        self,
        split: SplitName = "test",
        batch_size: int = 250,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        examples: int | None = None,
    ) -> Batches:
        """Batches of normalised inputs with labels, from a split (see ``split``) or its first ``examples``.

        With ``shuffle``, each pass uses a new random order from ``generator``.

        Raises:
            ValueError: If a size is below 1.

        Examples:
            >>> from intertwine.lab import data
            >>> inputs, labels = next(iter(data.load("digits").loader("test", batch_size=32)))
            >>> inputs.shape, labels.shape
            (torch.Size([32, 1, 8, 8]), torch.Size([32]))
        """
        for name, value in (("batch_size", batch_size), ("examples", examples)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1. Got {value}.")
        chosen = self.split(split)
        if examples is not None:
            chosen = chosen.take(slice(examples))
        return Batches(chosen, self.mean, self.std, batch_size, shuffle, generator)

    def __repr__(self) -> str:
        if not self.labelled:
            return f"DataSplits({self.name!r}, {len(self.train)} without labels, shape={self.shape})"
        sizes = ", ".join(f"{name}={len(self.split(name))}" for name in ("train", "validation", "test"))
        return f"DataSplits({self.name!r}, {sizes}, shape={self.shape}, classes={len(self.classes)})"


def class_labels(values: Sequence[Any], what: str) -> Tensor:
    """Labels ``(N,)`` in ``int64``, from a list of values."""
    for value in values:
        if not isinstance(value, int) or not -1 <= value < MOST_CLASSES:  # negative ones are named in a later error
            raise DataError(f"labels of {what} must be whole numbers from 0, below {MOST_CLASSES:,}. Got {value!r}.")
    return torch.tensor(values, dtype=torch.int64)


def make_splits(
    name: str,
    train: Split,
    validation: Split | None = None,
    test: Split | None = None,
    classes: tuple[str, ...] | None = None,
    validation_fraction: float = 0.1,
    moments: Any = None,
) -> DataSplits:
    """Check examples, hold out missing splits (stratified by class), and measure the channels of the training split.

    Held-out examples are always the same, so that every network is judged on the same ones: a fifth of ``train`` for
    the test split, and ``validation_fraction`` of the rest. Without ``classes``, their number follows from the largest
    label; ``moments`` gives ``mean`` and ``std`` of the channels instead of measuring them.

    Raises:
        DataError: If a split is empty or of another shape, or a label is out of range.

    Examples:
        >>> x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
        >>> make_splits("noise", Split(x, y))
        DataSplits('noise', train=28, validation=4, test=8, shape=(1, 4, 4), classes=2)
    """
    splits = {"train": train, "validation": validation, "test": test}
    given = {key: split for key, split in splits.items() if split is not None}
    for key, split in given.items():
        if len(split) == 0 or len(split.inputs) != len(split):
            raise DataError(
                f"{name} must hold at least one example in {key}, with one label each. "
                f"Got {len(split.inputs)} inputs and {len(split)} labels."
            )
        if split.inputs.shape[1:] != train.inputs.shape[1:] or split.inputs.ndim < 2:
            shapes = f"{tuple(train.inputs.shape[1:])} in train and {tuple(split.inputs.shape[1:])} in {key}"
            raise DataError(f"{name} must hold inputs (N, C, ...) of one shape. Got {shapes}. Resize them first.")
    lowest = min(int(split.labels.min()) for split in given.values())
    highest = max(int(split.labels.max()) for split in given.values())
    if lowest < 0 or (classes is not None and highest >= len(classes)):
        rule = f"0 to {len(classes) - 1}" if classes else "0 or more"
        raise DataError(f"labels of {name} must be {rule}. Got {lowest} to {highest}.")
    if highest >= MOST_CLASSES:
        raise DataError(
            f"labels of {name} must be class numbers below {MOST_CLASSES:,}. Got {highest:,}. Number them from 0."
        )
    classes = classes or tuple(str(i) for i in range(highest + 1))
    generator = torch.Generator().manual_seed(0)
    if test is None:
        train, test = _hold_out(name, train, _TESTED, generator)
    if validation is None:
        train, validation = _hold_out(name, train, validation_fraction, generator)
    with threads(1):  # same result on every machine
        mean, std = (moments.mean, moments.std) if moments and moments.mean else _channel_moments(train.inputs)
    return DataSplits(name, train, validation, test, classes, mean, std)


def without_labels(name: str, inputs: Tensor, notes: tuple[str, ...] = ()) -> DataSplits:
    """Data without labels: each split contains all of it, and labels are -1."""
    split = Split(inputs, torch.full((len(inputs),), -1))
    with threads(1):
        return DataSplits(name, split, split, split, (), *_channel_moments(inputs), notes)


def _hold_out(name: str, split: Split, fraction: float, generator: torch.Generator) -> tuple[Split, Split]:
    # Splits off ``fraction`` of every class; both parts are in one random order.
    order = torch.randperm(len(split), generator=generator)
    labels = split.labels[order] if split.labels.ndim == 1 else torch.zeros(len(split))  # of tokens: no class
    chosen = torch.zeros(len(split), dtype=torch.bool)
    for label in labels.unique():
        places = (labels == label).nonzero().squeeze(1)
        chosen[places[: round(fraction * len(places))]] = True
    if not chosen.any():
        raise DataError(
            f"{name} must hold enough examples of some class to hold out {fraction:.0%} of it. "
            f"Got {len(split)} examples of {len(labels.unique())} classes. Add examples, or give the split yourself."
        )
    kept, held = order[~chosen], order[chosen]
    return split.take(kept), split.take(held)


def _channel_moments(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in float64, by two passes over chunks; empty for tokens."""
    if not isinstance(inputs, Tensor):
        inputs = inputs[:_MEASURED]  # the first image files: their order is random
    if inputs.dtype == torch.int64:
        return (), ()
    scale = 255.0 if inputs.dtype == torch.uint8 else 1.0
    count = inputs.numel() / inputs.shape[1]
    chunks = [chunk.transpose(0, 1).flatten(1) for chunk in inputs.split(2048)]
    mean = sum((chunk.double().sum(1) for chunk in chunks), torch.zeros(inputs.shape[1], dtype=torch.float64)) / count
    variance = sum(((c.double() - mean[:, None]).square().sum(1) for c in chunks), torch.zeros_like(mean)) / count
    others = [d for d in range(inputs.ndim) if d != 1]
    varies = inputs.amax(others) > inputs.amin(others)  # rounding of the mean would make equal values vary
    std = torch.where(varies & (variance > 0), variance.sqrt() / scale, 1.0)
    return tuple((mean / scale).tolist()), tuple(std.tolist())
