"""Data sets by name: ``load("cifar10:PATH")``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ...errors import DataError
from .cifar import load_cifar
from .images import load_imagenet, load_images
from .npz import load_npz
from .preprocessing import Preprocessing
from .splits import DataSplits, Split, make_splits
from .tables import load_parquet, load_saved_dataset
from .text import TextBlocks, load_text

FORMS = (
    "digits", "cifar10[:PATH]", "cifar100[:PATH]", "parquet:PATH", "npz:PATH", "images:DIR", "imagenet:DIR",
    "dataset:DIR", "text:FILE",
)  # fmt: skip


def load(spec: str = "digits", preprocessing: Preprocessing | TextBlocks | None = None) -> DataSplits:
    """Load a data set into memory.

    Args:
        spec: ``digits``, ``cifar10[:PATH]``, ``cifar100[:PATH]``, ``parquet:PATH``, ``npz:PATH``, ``images:DIR``,
            ``imagenet:DIR``, ``dataset:DIR`` or ``text:FILE``.
        preprocessing: For parquet, images and dataset: what brings images of other sizes to one. For text, and texts of
            parquet and dataset: what cuts them into blocks of tokens. Others are as they are.

    Returns:
        Training, validation and test split. The choice of the validation split is fixed, so that all networks are
        judged on the same examples.

    Raises:
        ValueError: If the form is unknown, or a path is missing or given where none belongs.

    Examples:
        >>> load("digits").classes[:3]
        ('0', '1', '2')
    """
    kind, _, path = spec.partition(":")
    if kind == "digits" and not path:
        return load_digits()
    if kind == "cifar10":
        return load_cifar("cifar10", path or None)
    if kind == "cifar100":
        return load_cifar("cifar100", path or None)
    images = None if isinstance(preprocessing, TextBlocks) else preprocessing
    loaders: dict[str, Callable[[str], DataSplits]] = {
        "parquet": partial(load_parquet, preprocessing=preprocessing),
        "npz": load_npz,
        "images": partial(load_images, preprocessing=images),
        "imagenet": partial(load_imagenet, preprocessing=images),
        "dataset": partial(load_saved_dataset, preprocessing=preprocessing),
        "text": partial(_text, preprocessing=preprocessing),
    }
    if kind not in loaders or not path:
        raise ValueError(f"data must be one of {', '.join(FORMS)}. Got {spec!r}.")
    return loaders[kind](path)


def _text(path: str, preprocessing: object) -> DataSplits:
    """A text file."""
    if not isinstance(preprocessing, TextBlocks):
        raise DataError(
            f"text must be read with a model's tokenizer. Got none for {path!r}. Give checkpoints of transformers "
            "(hf:DIRECTORY) with a tokenizer.json beside the weights, or --model hf:DIRECTORY."
        )
    return load_text(path, preprocessing)


def load_digits() -> DataSplits:
    """Load scikit-learn's digits, 0 to 1, as 1,295 training, 143 validation and 359 test examples, stratified.

    Examples:
        >>> load_digits()
        DataSplits('digits', train=1295, validation=143, test=359, shape=(1, 8, 8), classes=10)
    """
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).unsqueeze(1) / 16
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    return make_splits("digits", Split(images, labels), classes=tuple(str(d) for d in range(10)))
