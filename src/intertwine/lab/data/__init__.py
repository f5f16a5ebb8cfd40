"""Data sets in memory, by name or path: digits, CIFAR-10 and CIFAR-100, tables, arrays, folders of images, texts."""

from .cifar import load_cifar
from .concepts import BrodenConcepts, CocoConcepts, FolderConcepts, GeneratedConcepts, ParquetConcepts, load_concepts
from .decoding.preprocessing import Preprocessing
from .digits import load_digits
from .images import load_images
from .load import FORMS, load
from .npz import load_npz
from .parquet import load_parquet
from .saved_dataset import load_saved_dataset
from .splits import Batches, DataSplits, Split, make_splits
from .text import TextBlocks, load_text

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
