"""Data sets in memory, by name or path: digits, CIFAR-10 and CIFAR-100, parquet, npz, image folders."""

from .cifar import load_cifar
from .concepts import (
    BrodenConcepts,
    CocoConcepts,
    FolderConcepts,
    GeneratedConcepts,
    ParquetConcepts,
    load_concepts,
)
from .digits import load_digits
from .images import load_images
from .load import FORMS, load
from .npz import load_npz
from .parquet import load_parquet
from .splits import Batches, DataSplits, Split, make_splits

__all__ = [
    # by name
    "load",
    "FORMS",
    # what comes back
    "DataSplits",
    "Split",
    "Batches",
    "make_splits",
    # one loader for each kind
    "load_digits",
    "load_cifar",
    "load_parquet",
    "load_npz",
    "load_images",
    # images with a label for every pixel
    "load_concepts",
    "GeneratedConcepts",
    "ParquetConcepts",
    "FolderConcepts",
    "CocoConcepts",
    "BrodenConcepts",
]
