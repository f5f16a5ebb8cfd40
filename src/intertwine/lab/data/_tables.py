"""Tables of examples, in parquet or Arrow files: images or texts, with or without labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._memory import check_fits
from ..._untrusted.files import regular_file
from ...errors import DataError
from .decoding.cache import cached_tensors
from .decoding.image_tensor import decode_images
from .decoding.preprocessing import Preprocessing
from .splits import Split, class_labels

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 64  # in memory at a time
_ROW = 128  # bytes that a row takes at least, beside its image
LABELS = ("label", "labels", "fine_label", "target", "class")
_TEXTS = ("text", "sentence", "content", "document")


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
