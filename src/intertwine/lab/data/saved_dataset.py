"""Data sets that ``save_to_disk`` of the datasets library wrote; the library is not needed to read them."""

from pathlib import Path
from typing import Any

from ..._untrusted.files import json_of, within
from ...errors import DataError
from ._tables import Table, arrow_table
from .decoding.preprocessing import Preprocessing
from .parquet import load_tables
from .splits import DataSplits
from .text import TextBlocks

_ONE, _SEVERAL = "state.json", "dataset_dict.json"
_ALIASES = {"validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def load_saved_dataset(path: str | Path, preprocessing: Preprocessing | TextBlocks | None = None) -> DataSplits:
    """Load a directory of ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``.

    Columns are found as in parquet files, see ``load_parquet``. Of several splits those named train, validation (or
    valid, val, dev) and test are read; without ``train``, the first one is taken for it.

    Raises:
        DataError: If it is no such directory, or its files are missing or damaged.
    """
    path = Path(path)
    name = f"dataset:{path.name}"
    if (path / _ONE).is_file():
        return load_tables({"train": _tables(path)}, name, preprocessing)
    if not (path / _SEVERAL).is_file():
        raise DataError(
            f"dataset path must be a directory of save_to_disk(), with {_ONE} or {_SEVERAL}. Got {str(path)!r}. Of "
            "parquet files, say parquet:PATH."
        )
    splits = _entry(path / _SEVERAL, "splits")
    names = {key: next((alias for alias in aliases if alias in splits), None) for key, aliases in _ALIASES.items()}
    names["train"] = "train" if "train" in splits or not splits else splits[0]
    tables = {
        key: _tables(within(path, split, "split", DataError))
        for key, split in names.items()
        if split is not None and (key == "train" or split != names["train"])
    }
    return load_tables(tables, name, preprocessing)


def _tables(folder: Path) -> list[Table]:
    files = _entry(folder / _ONE, "_data_files")
    named = [file.get("filename") if isinstance(file, dict) else None for file in files]
    if not named:
        raise DataError(f"{_ONE} must name files of data. Got none in {str(folder)!r}.")
    return [arrow_table(within(folder, file, f"a file of {_ONE}", DataError)) for file in named]


def _entry(file: Path, key: str) -> list[Any]:
    """A list in a JSON file."""
    said = json_of(file, file.name, DataError)
    found = said.get(key) if isinstance(said, dict) else None
    if not isinstance(found, list):
        raise DataError(f"{file.name} must hold a list {key!r}. Got {str(file)!r}. Save the data set again.")
    return found
