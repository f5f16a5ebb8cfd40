"""CIFAR-10 and CIFAR-100, as parquet files or as the official Python archive."""

import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch

from ..._untrusted.archives import limited_stream
from ..._untrusted.files import regular_file
from ...errors import DataError
from ._unpickle import read_array_pickle
from .decoding.cache import data_roots
from .parquet import find_parquet_splits, load_parquet
from .splits import DataSplits, Split, class_labels, make_splits


@dataclass(frozen=True)
class _Layout:
    """File names and keys of one official archive."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str


_LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        "batches.meta",
        "labels",
        "label_names",
    ),
    "cifar100": _Layout(
        "cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names"
    ),
}
_LONGEST = 2**29  # bytes of an unpacked archive: the official ones have 178 million
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def load_cifar(name: Literal["cifar10", "cifar100"], path: str | Path | None = None) -> DataSplits:
    """Load CIFAR-10 or CIFAR-100 (with its 100 fine labels).

    Args:
        name: ``"cifar10"`` or ``"cifar100"``.
        path: The official archive, the folder it unpacks to, a folder of ``train.parquet`` and ``test.parquet``, or a
            folder that holds one of these. Without it, ``$INTERTWINE_DATA`` and ``~/.cache/intertwine`` are searched.

    Returns:
        45,000 training, 5,000 validation (held out from the training set) and 10,000 test images, where complete.

    Raises:
        DataError: If nothing is found (the message says what to download), or what is found is damaged.
    """
    layout = _LAYOUTS[name]
    places = [Path(path).expanduser()] if path else [p for root in data_roots() for p in (root / name, root)]
    for place in places:
        # The root of all data may hold parquet files of something else: there only the official names count.
        load = _find(place, name, layout, parquet=bool(path) or place.name == name)
        if load is not None:
            return load()
    looked = ", ".join(repr(str(place)) for place in places)
    raise DataError(
        f"{name} must be on this machine. Got nothing in {looked}. Download {layout.archive} from {_PAGE} into "
        f"{str(data_roots()[-1])!r} (or any folder named by INTERTWINE_DATA), or give its place as {name}:PATH."
    )


def _find(place: Path, name: str, layout: _Layout, parquet: bool) -> Callable[[], DataSplits] | None:
    if place.is_file() and place.name.endswith((".tar.gz", ".tgz", ".tar")):
        return lambda: _load_official(name, layout, _read_archive(place, layout))
    for folder in (place, place / layout.folder):
        if (folder / layout.train[0]).is_file():
            return lambda: _load_official(name, layout, _read_folder(folder, layout))
    if (place / layout.archive).is_file():
        return lambda: _load_official(name, layout, _read_archive(place / layout.archive, layout))
    if parquet and (place.suffix == ".parquet" or find_parquet_splits(place)):
        return lambda: load_parquet(place, name)
    return None


def _read_folder(folder: Path, layout: _Layout) -> dict[str, bytes]:
    files = {}
    for file in (*layout.train, layout.test, layout.meta):
        if not (folder / file).is_file():
            raise DataError(f"{str(folder)!r} must hold {file}. Got no such file. Unpack {layout.archive} again.")
        files[file] = regular_file(folder / file, file, DataError).read_bytes()
    return files


def _read_archive(archive: Path, layout: _Layout) -> dict[str, bytes]:
    wanted = {*layout.train, layout.test, layout.meta}
    files: dict[str, bytes] = {}
    try:
        with limited_stream(archive, _LONGEST) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                content = tar.extractfile(member) if member.isfile() and name in wanted else None
                if content is not None:
                    files[name] = content.read()
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise DataError(
            f"archive must be a complete {layout.archive}. Got {str(archive)!r}, {archive.stat().st_size} bytes, which "
            f"does not read ({error}). Download it again from {_PAGE}."
        ) from None
    if missing := sorted(wanted - files.keys()):
        raise DataError(f"{str(archive)!r} must hold {', '.join(missing)}. Got {sorted(files) or 'none of its files'}.")
    return files


def _load_official(name: str, layout: _Layout, files: dict[str, bytes]) -> DataSplits:
    meta = read_array_pickle(files[layout.meta], layout.meta)
    classes = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in _entry(meta, layout.names, layout.meta))
    parts = [_read_batch(files[file], file, layout) for file in layout.train]
    train = Split(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))
    return make_splits(name, train, test=_read_batch(files[layout.test], layout.test, layout), classes=classes)


def _read_batch(raw: bytes, file: str, layout: _Layout) -> Split:
    # Rows of 3,072 bytes: 1,024 red, 1,024 green, 1,024 blue, each row by row.
    content = read_array_pickle(raw, file)
    data, labels = _entry(content, "data", file), _entry(content, layout.labels, file)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or len(data) != len(labels):
        raise DataError(
            f"{file} must hold images as (N, 3072) and N labels. Got {getattr(data, 'shape', type(data).__name__)} "
            f"and {len(labels)} labels."
        )
    return Split(torch.from_numpy(data).view(-1, 3, 32, 32), class_labels(labels, file))


def _entry(content: dict[str, Any], key: str, file: str) -> Any:
    if key not in content:
        raise DataError(f"{file} must hold {key!r}. Got {', '.join(map(repr, content)) or 'nothing'}.")
    return content[key]
