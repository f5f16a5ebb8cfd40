"""CIFAR-10 and CIFAR-100, as parquet files or as the official Python archive.

The official files hold a dictionary of byte strings, lists of integers and one ``uint8`` array, pickled. A pickle can
name any importable function; the reader here resolves only the few names that an array needs, and to stand-ins of its
own that store what they are given, so that not even NumPy's own constructors run on the file's arguments.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..._untrusted.archives import limited_stream
from ..._untrusted.files import regular_file
from ...errors import DataError
from .splits import DataSplits, Split, class_labels, make_splits
from .tables import find_parquet_splits, load_parquet


class _Layout(NamedTuple):
    archive: str  # names of the archive and of the folder in it
    folder: str
    train: tuple[str, ...]  # files
    test: str
    meta: str
    labels: str  # keys in them
    names: str


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_LAYOUTS = {
    "cifar10": _Layout("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta",
                       "labels", "label_names"),
    "cifar100": _Layout("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", "meta",
                        "fine_labels", "fine_label_names"),
}  # fmt: skip
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
    named = os.environ.get("INTERTWINE_DATA")
    roots = [*([Path(named).expanduser()] if named else []), Path("~/.cache/intertwine").expanduser()]
    places = [Path(path).expanduser()] if path else [p for root in roots for p in (root / name, root)]
    for place in places:
        archive = place if place.name.endswith((".tar.gz", ".tgz", ".tar")) else place / layout.archive
        folders = [folder for folder in (place, place / layout.folder) if (folder / layout.train[0]).is_file()]
        if folders or archive.is_file():
            return _load_official(name, layout, folders[0] if folders else archive)
        # The root of all data may hold parquet files of something else: there only the official names count.
        own = path or place.name == name
        if own and (place.suffix == ".parquet" or find_parquet_splits(place)):
            return load_parquet(place, name)
    looked = ", ".join(repr(str(place)) for place in places)
    raise DataError(
        f"{name} must be on this machine. Got nothing in {looked}. Download {layout.archive} from {_PAGE} into "
        f"{str(roots[-1])!r} (or any folder named by INTERTWINE_DATA), or give its place as {name}:PATH."
    )


def _load_official(name: str, layout: _Layout, place: Path) -> DataSplits:
    """Data from the official archive, or from the folder that it unpacks to."""
    wanted = {*layout.train, layout.test, layout.meta}
    if place.is_dir():
        there = [place / file for file in wanted if (place / file).is_file()]
        files = {path.name: regular_file(path, path.name, DataError).read_bytes() for path in there}
    else:
        files = _unpacked(place, wanted, layout)
    if missing := sorted(wanted - files.keys()):
        raise DataError(
            f"{str(place)!r} must hold {', '.join(missing)}. Got {', '.join(sorted(files)) or 'none of its files'}. "
            f"Download {layout.archive} again from {_PAGE}."
        )
    meta = read_array_pickle(files[layout.meta], layout.meta)
    classes = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in _entry(meta, layout.names, layout.meta))
    *parts, test = (_read_batch(files[file], file, layout) for file in (*layout.train, layout.test))
    train = Split(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))
    return make_splits(name, train, test=test, classes=classes)


def _unpacked(archive: Path, wanted: set[str], layout: _Layout) -> dict[str, bytes]:
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
    return files


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


def read_array_pickle(raw: bytes, name: str) -> dict[str, Any]:
    """A pickled dictionary of strings, numbers, lists and ``uint8`` arrays, with ``str`` keys; others are refused."""
    try:
        loaded = _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        if isinstance(loaded, dict):
            return {_text(key): value.value if isinstance(value, _Array) else value for key, value in loaded.items()}
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{name} must be a complete pickle. Got {len(raw)} bytes that do not read ({error}).") from None
    raise DataError(f"{name} must hold a dictionary. Got {type(loaded).__name__}.")


class _Dtype:
    def __init__(self, code: Any, *_: Any) -> None:
        if _text(code) != "u1":
            raise DataError(f"pickled arrays must be uint8 ('u1'). Got {_text(code)!r}.")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment mean nothing for single bytes."""


class _Array:
    """Stands in for ``numpy.ndarray`` while the pickle is read."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise DataError(f"pickled arrays must hold plain bytes. Got {type(raw).__name__}.")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C").copy()


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): lambda text, encoding="": text.encode("latin1"),  # how Python 3 writes bytes for Python 2
}


class _ArrayUnpickler(pickle._Unpickler):  # in Python: the one in C makes a table as long as any number in the file
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise DataError(f"pickle must hold plain containers and uint8 arrays only. Got a call of {module}.{name}.")
        return found


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
