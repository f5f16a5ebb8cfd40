"""Data sets in memory, by name or path: digits, CIFAR-10 and CIFAR-100, tables, arrays, image folders, texts.

The loaders of images with a label for every pixel, which dissection needs, are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .images import load_images
from .load import FORMS, load, load_cifar, load_digits, load_npz
from .pictures import Preprocessing
from .splits import Batches, DataSplits, Split, make_splits
from .tables import TextBlocks, load_parquet, load_saved_dataset, load_text

if TYPE_CHECKING:
    from .concepts import (
        BrodenConcepts,
        CocoConcepts,
        FolderConcepts,
        GeneratedConcepts,
        ParquetConcepts,
        load_concepts,
    )

__all__ = [
    # by name
    "load", "FORMS",
    # what comes back
    "DataSplits", "Split", "Batches", "make_splits",
    # one loader for each kind
    "load_digits", "load_cifar", "load_parquet", "load_npz", "load_images", "load_saved_dataset", "load_text",
    # sizes of images, blocks of tokens
    "Preprocessing", "TextBlocks",
    # images with a label for every pixel
    "load_concepts", "GeneratedConcepts", "ParquetConcepts", "FolderConcepts", "CocoConcepts", "BrodenConcepts",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.concepts"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
