"""Tables of examples, images or texts: parquet files, or what ``save_to_disk`` of the datasets library wrote.

Columns are found by what they hold, as the Hugging Face hub names them. The datasets library is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._memory import check_fits
from ..._untrusted.files import json_of, regular_file, within
from ...errors import DataError
from .pictures import Preprocessing, cached_tensors, decode_images
from .splits import ALIASES, DataSplits, Split, class_labels, make_splits, without_labels
from .text import TextBlocks, split_texts

if TYPE_CHECKING:
    import pyarrow as pa

_ONE, _SEVERAL = "state.json", "dataset_dict.json"
_SAVED = {"validation": (*ALIASES["validation"], "dev"), "test": ALIASES["test"]}
_ROWS = 64  # in memory at a time
_ROW = 128  # bytes that a row takes at least, beside its image
LABELS = ("label", "labels", "fine_label", "target", "class")
_TEXTS = ("text", "sentence", "content", "document")


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
        for split, aliases in ALIASES.items():
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
    for split, aliases in ALIASES.items():
        mask = torch.tensor([value in aliases for value in said])
        if mask.any():
            parts[split] = whole.take(mask)
    if "train" not in parts:
        raise DataError(f"column split of {str(table.file)!r} must hold 'train'. Got {sorted(set(map(str, said)))}.")
    return parts


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
    names = {key: next((alias for alias in aliases if alias in splits), None) for key, aliases in _SAVED.items()}
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


@dataclass(frozen=True)
class Table:
    """A file of rows.

    Args:
        file: Where it is.
        schema: Names and types of its columns.
        rows: How many.
        read: Rows of some columns, some at a time.
    """

    file: Path
    schema: pa.Schema
    rows: int
    read: Callable[[list[str]], Iterator[pa.RecordBatch]]

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Rows of some columns, some at a time.

        Raises:
            DataError: If the file is damaged.
        """  # noqa: DOC501, DOC502 - made by a helper
        import pyarrow as pa

        try:
            yield from self.read(columns)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.file, error) from None


@dataclass(frozen=True)
class Columns:
    """Columns by what they hold; ``None`` for what there is not."""

    image: str | None  # Encoded images
    text: str | None  # Texts
    label: str | None  # Numbers of classes
    classes: tuple[str, ...] | None = None  # Their names


def parquet_table(file: Path) -> Table:
    """A parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    regular_file(file, "data", DataError)
    try:
        opened = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from None
    return Table(
        file, opened.schema_arrow, opened.metadata.num_rows, lambda names: opened.iter_batches(_ROWS, columns=names)
    )


def whole_table(file: Path) -> pa.Table:
    """All of a parquet file, in memory."""
    import pyarrow as pa

    opened = parquet_table(file)
    return pa.Table.from_batches(opened.batches(opened.schema.names), opened.schema)


def arrow_table(file: Path) -> Table:
    """A file of one Arrow stream, as ``save_to_disk`` of the datasets library writes it."""
    import pyarrow as pa

    regular_file(file, "data", DataError)

    def opened() -> Any:
        return pa.ipc.open_stream(pa.memory_map(str(file)))

    def read(names: list[str]) -> Iterator[pa.RecordBatch]:
        for batch in opened():
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.select(names).slice(start, _ROWS)

    try:
        return Table(file, opened().schema, sum(batch.num_rows for batch in opened()), read)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error, "Arrow stream") from None


def columns_of(table: Table) -> Columns:
    """Which columns hold images, texts and labels."""
    import pyarrow as pa

    def holds_images(kind: pa.DataType) -> bool:
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        return binary or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    fields = list(table.schema)
    image = next((f.name for f in fields if holds_images(f.type)), None)
    strings = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    text = next((name for name in _TEXTS if name in strings), strings[0] if len(strings) == 1 else None)
    names = _class_names(table.schema)
    label = next((name for name in (*LABELS, *names) if name in table.schema.names), None)
    if image is None and text is None:
        listed = ", ".join(f"{f.name} ({f.type})" for f in fields)
        raise DataError(
            f"table must have an image column (a struct with bytes, or binary) or a text column ({', '.join(_TEXTS)}, "
            f"or the only one of strings). Got {listed} in {str(table.file)!r}."
        )
    return Columns(image, text, label, names.get(label) if label else None)


def read_images(
    tables: Sequence[Table], columns: Columns, what: str, preprocessing: Preprocessing | None = None
) -> Split:
    """Images with their labels; -1 where there are none."""
    total = sum(table.rows for table in tables)
    if not total:
        raise DataError(f"{what} must hold at least one row. Got none.")
    check_fits(_ROW * total, what, f"{total:,} rows", "Take fewer.", error=DataError)

    def decode() -> dict[str, torch.Tensor]:
        labels: list[Any] = []
        inputs = decode_images(_encoded(tables, columns, labels), total, what, preprocessing)
        return {"inputs": inputs, "labels": class_labels(labels, what)}

    found = cached_tensors([table.file for table in tables], decode, f"images of a table, {preprocessing!r}")
    return Split(found["inputs"], found["labels"])


def read_texts(tables: Sequence[Table], column: str) -> str:
    """All texts of a column, an empty line between them."""
    texts = [text for table in tables for batch in table.batches([column]) for text in batch.column(0).to_pylist()]
    return "\n\n".join(text for text in texts if text)


def _encoded(tables: Sequence[Table], columns: Columns, labels: list[Any]) -> Iterator[tuple[str, bytes | None]]:
    """Name and bytes of every image, a few rows in memory at a time; their labels go to the list."""
    wanted = [name for name in (columns.image, columns.label) if name is not None]
    for table in tables:
        for batch in table.batches(wanted):
            start = len(labels)
            labels += [-1] * batch.num_rows if columns.label is None else batch.column(columns.label).to_pylist()
            for i, value in enumerate(batch.column(columns.image), start):
                yield _name_and_bytes(i, value.as_py())


def _name_and_bytes(row: int, value: Any) -> tuple[str, bytes | None]:
    if isinstance(value, dict):
        path = value.get("path")
        return f"row {row} ({path})" if path else f"row {row}", value.get("bytes")
    return f"row {row}", value


def _unreadable(file: Path, error: Exception, kind: str = "parquet file") -> DataError:
    size = file.stat().st_size if file.exists() else 0
    reason = str(error).splitlines()[0]
    return DataError(
        f"data must be a complete {kind}. Got {str(file)!r}, {size} bytes, which does not read ({reason}). "
        "Copy or download it again."
    )


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Names of classes by column, from the schema metadata, where the datasets library writes them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            key: tuple(map(str, value["names"]))
            for key, value in features.items()
            if isinstance(value, dict) and isinstance(value.get("names"), list)
        }
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError):
        return {}
