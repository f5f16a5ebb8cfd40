"""Parquet files of encoded images, with the columns that the Hugging Face hub uses."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._memory import check_fits
from ..._untrusted.files import regular_file
from ...errors import DataError
from ._cache import cached_tensors
from ._decode import decode_images
from .splits import DataSplits, Split, class_labels, make_splits

if TYPE_CHECKING:
    import pyarrow as pa

_ALIASES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
_ROWS = 64  # in memory at a time
_ROW = 128  # bytes that a row takes at least, beside its image
_LABELS = ("label", "labels", "fine_label", "target", "class")


def load_parquet(path: str | Path, name: str | None = None) -> DataSplits:
    """Load a folder of ``train.parquet``, ``test.parquet`` (and ``validation.parquet``), or one file.

    Shards such as ``train-00000-of-00002.parquet`` are joined. An image is a struct with ``bytes`` or plain binary; the
    label is an integer column ``label`` (or ``fine_label``, ``labels``, ``target``, ``class``). Class names are read
    from the schema metadata. In one file, a column ``split`` is obeyed; without it a fifth is held out for testing.

    Args:
        path: Folder or file.
        name: Name of the result; the path's last part otherwise.

    Raises:
        DataError: If nothing is there, or what is there is truncated, empty or malformed.
    """
    path = Path(path)
    name = name or f"parquet:{path.name}"
    if path.is_file():
        return _from_one_file(path, name)
    found = find_parquet_splits(path)
    if "train" not in found:
        raise DataError(
            "parquet path must be a file, or a folder that holds train.parquet (or train-*.parquet). "
            f"Got {str(path)!r}."
        )
    loaded = {key: _read_split(files, f"{name} ({key})") for key, files in found.items()}
    return make_splits(
        name, loaded["train"], loaded.get("validation"), loaded.get("test"), _class_names(found["train"][0])
    )


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


def _from_one_file(path: Path, name: str) -> DataSplits:
    everything = _read_split([path], name)
    names = _class_names(path)
    if "split" not in _open(path).schema_arrow.names:
        return make_splits(name, everything, classes=names)
    column = _open(path).read(["split"]).column("split").to_pylist()
    parts = {}
    for split, aliases in _ALIASES.items():
        mask = torch.tensor([value in aliases for value in column])
        if mask.any():
            parts[split] = Split(everything.inputs[mask], everything.labels[mask])
    if "train" not in parts:
        raise DataError(f"column split of {str(path)!r} must hold 'train'. Got {sorted(set(map(str, column)))}.")
    return make_splits(name, parts["train"], parts.get("validation"), parts.get("test"), names)


def _read_split(files: Sequence[Path], what: str) -> Split:
    tensors = cached_tensors(files, lambda: _decode_files(files, what), "parquet images")
    return Split(tensors["inputs"], tensors["labels"])


def _decode_files(files: Sequence[Path], what: str) -> dict[str, torch.Tensor]:
    total = sum(_open(file).metadata.num_rows for file in files)
    if not total:
        raise DataError(f"{what} must hold at least one row. Got none.")
    check_fits(_ROW * total, what, f"{total:,} rows", "Take fewer.", error=DataError)
    labels: list[Any] = []
    inputs = decode_images(_rows(files, labels), total, what)
    return {"inputs": inputs, "labels": class_labels(labels, what)}


def _rows(files: Sequence[Path], labels: list[Any]) -> Iterator[tuple[str, bytes | None]]:
    """Name and bytes of every image, a few rows in memory at a time; their labels go to the list.

    Raises:
        DataError: If a file is damaged.
    """  # noqa: DOC501, DOC502 - made by a helper
    import pyarrow as pa

    for file in files:
        opened = _open(file)
        image, label = _columns(opened.schema_arrow, file)
        try:
            for batch in opened.iter_batches(_ROWS, columns=[image, label]):
                some = batch.column(batch.schema.get_field_index(label)).to_pylist()
                for i, value in enumerate(batch.column(batch.schema.get_field_index(image)), len(labels)):
                    yield _name_and_bytes(i, value.as_py())
                labels += some
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file, error) from None


def _name_and_bytes(row: int, value: Any) -> tuple[str, bytes | None]:
    if isinstance(value, dict):
        path = value.get("path")
        return f"row {row} ({path})" if path else f"row {row}", value.get("bytes")
    return f"row {row}", value


def _open(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    regular_file(file, "data", DataError)
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> DataError:
    size = file.stat().st_size if file.exists() else 0
    reason = str(error).splitlines()[0]
    return DataError(
        f"data must be a complete parquet file. Got {str(file)!r}, {size} bytes, which does not read ({reason}). "
        "Copy or download it again."
    )


def _columns(schema: "pa.Schema", file: Path) -> tuple[str, str]:
    # Names of the image and of the label column.
    import pyarrow as pa

    def holds_images(kind: "pa.DataType") -> bool:
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        return binary or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    image = next((field.name for field in schema if holds_images(field.type)), None)
    label = next((name for name in _LABELS if name in schema.names), None)
    if image is None or label is None:
        listed = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise DataError(
            f"parquet file must have an image column (a struct with bytes, or binary) and a label column "
            f"({', '.join(_LABELS)}). Got {listed} in {str(file)!r}."
        )
    return image, label


def _class_names(file: Path) -> tuple[str, ...] | None:
    """Class names in the schema metadata, where the hub's ``datasets`` library writes them."""
    schema = _open(file).schema_arrow
    label = _columns(schema, file)[1]
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
