"""Tables of images or texts (parquet files, or ``save_to_disk`` of the datasets library); and texts in blocks.

Columns are found by type and by the usual names of the Hugging Face hub. The datasets library is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..._memory import check_fits
from ..._untrusted.files import check_fields, json_of, regular_file, within
from ..._words import first_line
from ...errors import DataError, MissingExtraError
from .pictures import Preprocessing, decode_images, note
from .splits import ALIASES, DataSplits, Split, class_labels, make_splits, without_labels

if TYPE_CHECKING:
    import pyarrow as pa

_ONE, _SEVERAL = "state.json", "dataset_dict.json"
_SAVED = {"validation": (*ALIASES["validation"], "dev"), "test": ALIASES["test"]}
_ROWS = 64  # rows in memory at a time
_ROW = 128  # least bytes of a row besides its image
LABELS = ("label", "labels", "fine_label", "target", "class")
_TEXTS = ("text", "sentence", "content", "document")
_FILE = "tokenizer.json"
_COST = 200  # bytes of memory per byte of text while it is read
_SHORTEST = 2
_PLAIN = ("bytes", "chars")


class Table(NamedTuple):
    """A file of rows, from which some columns are read, a few rows at a time."""

    file: Path
    schema: pa.Schema
    rows: int
    read: Callable[[list[str]], Iterable[pa.RecordBatch]]

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Batches of rows of some columns; an error names a damaged file."""
        import pyarrow as pa

        try:
            yield from self.read(columns)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.file, error) from None


class _Columns(NamedTuple):
    """Columns by content; ``None`` if there is none."""

    image: str | None  # encoded images
    text: str | None
    label: str | None  # numbers of classes
    classes: tuple[str, ...] | None  # their names


def load_parquet(
    path: str | Path, name: str | None = None, preprocessing: Preprocessing | TextBlocks | None = None
) -> DataSplits:
    """Load a folder of ``train.parquet``, ``test.parquet`` (and ``validation.parquet``), or one file.

    Shards such as ``train-00000-of-00002.parquet`` are joined. An image is a struct with ``bytes`` or plain binary; the
    label is an integer column ``label`` (or ``fine_label``, ``labels``, ``target``, ``class``), or one whose class
    names are in the schema metadata. Without it, images have no labels. In a single file, a column ``split`` assigns
    the rows; without it, a fifth is held out for testing. ``preprocessing`` resizes images to one size; with
    ``TextBlocks``, a text column is read and cut. The result is called ``name``, or after the path's last part.

    Raises:
        DataError: If there is no data, or it is truncated, empty or malformed.
    """
    path = Path(path)
    found = {"train": [path]} if path.is_file() else find_parquet_splits(path)
    if "train" not in found:
        raise DataError(
            "parquet path must be a file, or a folder that holds train.parquet (or train-*.parquet). "
            f"Got {str(path)!r}."
        )
    tables = {key: list(map(_opened, files)) for key, files in found.items()}
    return _load(tables, name or f"parquet:{path.name}", preprocessing)


def find_parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """The parquet files of each split in ``folder``, or in its subfolders used by the hub's repositories."""
    found: dict[str, list[Path]] = {}
    for place in (folder, folder / "data", folder / "plain_text"):
        for split, aliases in ALIASES.items():
            for alias in aliases:
                files = sorted([*place.glob(f"{alias}.parquet"), *place.glob(f"{alias}-*.parquet")])
                if files and split not in found:
                    found[split] = files
    return found


def load_saved_dataset(path: str | Path, preprocessing: Preprocessing | TextBlocks | None = None) -> DataSplits:
    """Load a directory of ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``.

    Columns are found as in parquet files, see ``load_parquet``. Of several splits, those named train, validation (or
    valid, val, dev) and test are read; without ``train``, the first one takes its place.

    Raises:
        DataError: If it is not such a directory, or its files are missing or damaged.
    """
    path = Path(path)
    if (path / _ONE).is_file():
        tables = {"train": _saved_tables(path)}
    elif (path / _SEVERAL).is_file():
        splits = _listed(path / _SEVERAL, "splits", str)
        names = {key: next((alias for alias in aliases if alias in splits), None) for key, aliases in _SAVED.items()}
        train = "train" if "train" in splits or not splits else splits[0]
        folder = lambda split: within(path, split, "split", DataError)
        tables = {"train": _saved_tables(folder(train))}
        tables |= {key: _saved_tables(folder(split)) for key, split in names.items() if split not in (None, train)}
    else:
        raise DataError(
            f"dataset path must be a directory of save_to_disk(), with {_ONE} or {_SEVERAL}. Got {str(path)!r}. Of "
            "parquet files, say parquet:PATH."
        )
    return _load(tables, f"dataset:{path.name}", preprocessing)


def _saved_tables(folder: Path) -> list[Table]:
    files = _listed(folder / _ONE, "_data_files", {"filename": str})
    if not files:
        raise DataError(f"{_ONE} must name files of data. Got none in {str(folder)!r}.")
    paths = [within(folder, file["filename"], f"a file of {_ONE}", DataError) for file in files]
    return [_opened(path, "Arrow stream") for path in paths]


def _listed(file: Path, key: str, kind: Any) -> list[Any]:
    said = json_of(file, file.name, DataError)
    check_fields(said, {key: [kind]}, f"{file.name} of {str(file.parent)!r}: ", DataError)
    found: list[Any] = said[key]
    return found


def _load(
    tables: Mapping[str, Sequence[Table]], name: str, preprocessing: Preprocessing | TextBlocks | None
) -> DataSplits:
    """Data from the tables of its splits, which include ``train``."""
    first = tables["train"][0]
    columns = _columns_of(first)
    if isinstance(preprocessing, TextBlocks) or columns.image is None:
        if not isinstance(preprocessing, TextBlocks) or columns.text is None:
            missing = "images" if columns.image is None else "texts"
            raise DataError(
                f"{name} must hold {missing} for this. Got columns {', '.join(first.schema.names)}. Texts are read "
                "with the tokenizer of a model (hf:DIRECTORY), images without one."
            )
        texts = {  # rows joined by empty lines
            key: "\n\n".join(text for table in some for text in _column(table, columns.text) if text)
            for key, some in tables.items()
        }
        return split_texts(texts, preprocessing, name)
    loaded = {key: _read_images(some, columns, f"{name} ({key})", preprocessing) for key, some in tables.items()}
    count = sum(map(len, loaded.values()))
    if columns.label is None:
        notes = note(name, count, preprocessing, f", without labels: no column is called {', '.join(LABELS)}")
        return without_labels(name, torch.cat([split.inputs for split in loaded.values()]), notes)
    if len(tables) == len(tables["train"]) == 1 and "split" in first.schema.names:
        said, whole = list(_column(first, "split")), loaded["train"]
        masks = {key: torch.tensor([value in aliases for value in said]) for key, aliases in ALIASES.items()}
        loaded = {key: whole.take(mask) for key, mask in masks.items() if mask.any()}
        if "train" not in loaded:
            raise DataError(
                f"column split of {str(first.file)!r} must hold 'train'. Got {sorted(set(map(str, said)))}."
            )
    made = make_splits(name, loaded["train"], loaded.get("validation"), loaded.get("test"), columns.classes)
    return replace(made, notes=note(name, count, preprocessing) if preprocessing else ())


def _column(table: Table, name: str) -> Iterator[Any]:
    return (value for batch in table.batches([name]) for value in batch.column(0).to_pylist())


def _opened(file: Path, kind: str = "parquet file") -> Table:
    """A parquet file, or an Arrow stream file as ``save_to_disk`` of the datasets library writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    regular_file(file, "data", DataError)
    try:
        if kind == "parquet file":
            parquet = pq.ParquetFile(file)
            rows = lambda names: parquet.iter_batches(_ROWS, columns=names)
            return Table(file, parquet.schema_arrow, parquet.metadata.num_rows, rows)
        mapped = pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
        return Table(file, mapped.schema, len(mapped), lambda names: mapped.select(names).to_batches(_ROWS))
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error, kind) from None


def whole_table(file: Path) -> pa.Table:
    """A whole parquet file, in memory."""
    import pyarrow as pa

    opened = _opened(file)
    return pa.Table.from_batches(opened.batches(opened.schema.names), opened.schema)


def _unreadable(file: Path, error: Exception, kind: str = "parquet file") -> DataError:
    size = file.stat().st_size if file.exists() else 0
    return DataError(
        f"data must be a complete {kind}. Got {str(file)!r}, {size} bytes, which does not read ({first_line(error)}). "
        "Copy or download it again."
    )


def _columns_of(table: Table) -> _Columns:
    import pyarrow as pa

    def holds_images(kind: pa.DataType) -> bool:
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        return binary or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    fields = list(table.schema)
    image = next((f.name for f in fields if holds_images(f.type)), None)
    strings = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    text = next((name for name in _TEXTS if name in strings), strings[0] if len(strings) == 1 else None)
    try:  # class names, where the datasets library writes them
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = {
            key: tuple(map(str, value["names"]))
            for key, value in features.items()
            if isinstance(value, dict) and isinstance(value.get("names"), list)
        }
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError):
        classes = {}
    label = next((name for name in (*LABELS, *classes) if name in table.schema.names), None)
    if image is None and text is None:
        listed = ", ".join(f"{f.name} ({f.type})" for f in fields)
        raise DataError(
            f"table must have an image column (a struct with bytes, or binary) or a text column ({', '.join(_TEXTS)}, "
            f"or the only one of strings). Got {listed} in {str(table.file)!r}."
        )
    return _Columns(image, text, label, classes.get(label) if label else None)


def _read_images(tables: Sequence[Table], columns: _Columns, what: str, preprocessing: Preprocessing | None) -> Split:
    """Images with their labels, or -1 without labels."""
    total = sum(table.rows for table in tables)
    if not total:
        raise DataError(f"{what} must hold at least one row. Got none.")
    check_fits(_ROW * total, what, f"{total:,} rows", "Take fewer.", error=DataError)
    column = lambda name: (value for table in tables for value in _column(table, name))

    def encoded() -> Iterator[tuple[str, bytes | None]]:
        """Name and bytes of every image, with a few rows in memory at a time."""
        for row, image in enumerate(column(columns.image)):
            path, content = (image.get("path"), image.get("bytes")) if isinstance(image, dict) else (None, image)
            yield f"row {row} ({path})" if path else f"row {row}", content

    labels = [-1] * total if columns.label is None else list(column(columns.label))
    inputs, _ = decode_images([table.file for table in tables], encoded(), total, what, preprocessing)
    return Split(inputs, class_labels(labels, what))


@dataclass(frozen=True)
class TextBlocks:
    """The division of a text into blocks of equal length, each with the special tokens that the tokenizer adds.

    Raises:
        DataError: If there is no such file, or it is damaged.
    """

    # A ``tokenizer.json``, which is read as data, or a transformers directory that holds one; ``"bytes"`` for UTF-8
    # bytes, ``"chars"`` for the index of each character among the characters of the whole text
    tokenizer: Path | str
    max_length: int = 128  # Tokens per block; a shorter last block is left out
    next_token: bool = True  # Whether the next token is the label of each token; otherwise there are no labels

    def __post_init__(self) -> None:
        if self.max_length < _SHORTEST:
            raise DataError(f"max_length must be at least {_SHORTEST}. Got {self.max_length}.")

    def __call__(self, text: str, name: str, letters: str = "") -> Tensor:
        """Tokens ``(N, T)``, or ``(N, T + 1)`` if the next ones are labels; ``"chars"`` numbers the ``letters``."""
        check_fits(_COST * len(text), name, f"{len(text):,} characters", "Take a part of it.", error=DataError)
        length = self.max_length + self.next_token
        if self.tokenizer in _PLAIN:
            number = {letter: k for k, letter in enumerate(sorted(set(letters or text)))}
            ids = list(text.encode()) if self.tokenizer == "bytes" else [number[letter] for letter in text]
            whole = [ids[k : k + length] for k in range(0, len(ids) - length + 1, length)]
        else:
            tokenizer = self._opened()
            tokenizer.no_padding()
            tokenizer.enable_truncation(length)
            first = tokenizer.encode(text)
            whole = [block.ids for block in (first, *first.overflowing) if len(block.ids) == length]
        if not whole:
            raise DataError(
                f"text must hold at least one block of {length} tokens. Got fewer in {name}. Say a "
                "smaller --max-length."
            )
        return torch.tensor(whole, dtype=torch.int64)

    def _opened(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError("tokenizers", "hf") from None
        place = Path(self.tokenizer)
        file = place / _FILE if place.is_dir() else place
        if not file.is_file():
            raise DataError(
                f"text must be read with a model's tokenizer. Got no {_FILE} in {str(place)!r}. Save it there with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(DIR), or say --tokenizer bytes, chars or PATH."
            )
        file = regular_file(file, _FILE, DataError)
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the reader raises nothing more specific
            raise DataError(f"{_FILE} must be one of the tokenizers library. Got {str(file)!r} ({error}).") from None


def load_text(path: str | Path, blocks: TextBlocks) -> DataSplits:
    """Load a UTF-8 text file as blocks of tokens.

    Raises:
        DataError: If it is missing, no text or shorter than one block, or if no tokenizer is known.
    """
    if not isinstance(blocks, TextBlocks):
        raise DataError(
            f"text must be read with a model's tokenizer. Got none for {str(path)!r}. Give checkpoints of transformers "
            "(hf:DIRECTORY) with a tokenizer.json beside the weights, or --model hf:DIRECTORY."
        )
    file = regular_file(path, "text", DataError)
    size = file.stat().st_size
    check_fits(_COST * size, "text", f"{size:,} bytes", "Take a part of it.", error=DataError)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"text must be in UTF-8. Got {str(file)!r} ({error}).") from None
    return split_texts({"train": text}, blocks, f"text:{file.name}")


def split_texts(texts: Mapping[str, str], blocks: TextBlocks, name: str) -> DataSplits:
    """Data from the texts of its splits; missing splits are held out from ``train``."""
    tokens = {key: blocks(text, name, "".join(texts.values())) for key, text in texts.items()}
    count = sum(map(len, tokens.values()))
    said = (f"{name}: {count:,} blocks of {blocks.max_length} tokens; what is left after the last is not used.",)
    if not blocks.next_token:
        return without_labels(name, torch.cat(list(tokens.values())), said)
    splits = {key: Split(t[:, :-1], t[:, 1:]) for key, t in tokens.items()}
    return replace(make_splits(name, splits["train"], splits.get("validation"), splits.get("test")), notes=said)
