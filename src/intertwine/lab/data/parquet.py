"""Parquet files of encoded images or of texts, with the columns that the Hugging Face hub uses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ...errors import DataError
from ._tables import LABELS, Table, columns_of, parquet_table, read_images, read_texts
from .decoding.preprocessing import Preprocessing
from .splits import DataSplits, Split, make_splits, without_labels
from .text import TextBlocks, split_texts

_ALIASES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


def load_parquet(
    path: str | Path, name: str | None = None, preprocessing: Preprocessing | TextBlocks | None = None
) -> DataSplits:
    """Load a folder of ``train.parquet``, ``test.parquet`` (and ``validation.parquet``), or one file.

    Shards such as ``train-00000-of-00002.parquet`` are joined. An image is a struct with ``bytes`` or plain binary; the
    label is an integer column ``label`` (or ``fine_label``, ``labels``, ``target``, ``class``), or one whose class
    names are in the schema metadata. Without it the images have no labels. In one file, a column ``split`` is obeyed;
    without it a fifth is held out for testing. With ``TextBlocks``, a column of texts is read instead.

    Args:
        path: Folder or file.
        name: Name of the result; the path's last part otherwise.
        preprocessing: What brings images to one size, or cuts texts into blocks.

    Raises:
        DataError: If nothing is there, or what is there is truncated, empty or malformed.
    """
    path = Path(path)
    name = name or f"parquet:{path.name}"
    if path.is_file():
        return load_tables({"train": [parquet_table(path)]}, name, preprocessing)
    found = find_parquet_splits(path)
    if "train" not in found:
        raise DataError(
            "parquet path must be a file, or a folder that holds train.parquet (or train-*.parquet). "
            f"Got {str(path)!r}."
        )
    return load_tables({key: list(map(parquet_table, files)) for key, files in found.items()}, name, preprocessing)


def find_parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """The parquet files of each split in ``folder``, or where the hub's repositories keep them below it."""
    found: dict[str, list[Path]] = {}
    for place in (folder, folder / "data", folder / "plain_text"):
        for split, aliases in _ALIASES.items():
            for alias in aliases:
                files = sorted([*place.glob(f"{alias}.parquet"), *place.glob(f"{alias}-*.parquet")])
                if files and split not in found:
                    found[split] = files
    return found


def load_tables(
    tables: Mapping[str, Sequence[Table]], name: str, preprocessing: Preprocessing | TextBlocks | None = None
) -> DataSplits:
    """Data from the tables of its splits.

    Args:
        tables: By name of the split; ``train`` must be among them.
        name: Name of the data.
        preprocessing: See ``load_parquet``.

    Raises:
        DataError: If they hold neither images nor texts, or are damaged.
    """
    first = tables["train"][0]
    columns = columns_of(first)
    if isinstance(preprocessing, TextBlocks) or columns.image is None:
        if not isinstance(preprocessing, TextBlocks) or columns.text is None:
            missing = "images" if columns.image is None else "texts"
            raise DataError(
                f"{name} must hold {missing} for this. Got columns {', '.join(first.schema.names)}. Texts are read "
                "with the tokenizer of a model (hf:DIRECTORY), images without one."
            )
        texts = {key: read_texts(some, columns.text) for key, some in tables.items()}
        return split_texts(texts, preprocessing, name)
    loaded = {key: read_images(some, columns, f"{name} ({key})", preprocessing) for key, some in tables.items()}
    count = f"{sum(map(len, loaded.values())):,} images" + (f", {preprocessing}" if preprocessing else "")
    if columns.label is None:
        note = f"{name}: {count}, without labels: no column is called {', '.join(LABELS)}."
        return without_labels(name, torch.cat([split.inputs for split in loaded.values()]), (note,))
    if len(tables) == len(tables["train"]) == 1 and "split" in first.schema.names:
        loaded = _by_column(first, loaded["train"])
    made = make_splits(name, loaded["train"], loaded.get("validation"), loaded.get("test"), columns.classes)
    return replace(made, notes=(f"{name}: {count}.",) if preprocessing else ())


def _by_column(table: Table, whole: Split) -> dict[str, Split]:
    """The splits that a column ``split`` names."""
    said = [value for batch in table.batches(["split"]) for value in batch.column(0).to_pylist()]
    parts = {}
    for split, aliases in _ALIASES.items():
        mask = torch.tensor([value in aliases for value in said])
        if mask.any():
            parts[split] = whole.take(mask)
    if "train" not in parts:
        raise DataError(f"column split of {str(table.file)!r} must hold 'train'. Got {sorted(set(map(str, said)))}.")
    return parts
