"""Data sets by name, ``load("cifar10:PATH")``; and those stored as arrays: digits, NumPy archives, CIFAR.

The official files of CIFAR hold a pickled dictionary of byte strings, lists of integers and one ``uint8`` array. A
pickle can name any importable function. The reader here resolves only the few names that an array needs, to its own
stand-ins that only store their arguments, so that not even NumPy's own constructors run on the file's arguments.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..._memory import check_fits
from ..._untrusted.archives import array_headers, limited_stream
from ..._untrusted.files import regular_file
from ...errors import DataError
from .images import load_imagenet, load_images
from .pictures import Preprocessing
from .splits import DataSplits, Split, class_labels, make_splits, without_labels
from .tables import TextBlocks, find_parquet_splits, load_parquet, load_saved_dataset, load_text

FORMS = (
    "digits", "cifar10[:PATH]", "cifar100[:PATH]", "parquet:PATH", "npz:PATH", "images:DIR", "imagenet:DIR",
    "dataset:DIR", "text:FILE",
)  # fmt: skip
_KEYS = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels"), ("x", "y"), ("images", "labels")),
    "validation": (("x_validation", "y_validation"), ("x_val", "y_val"), ("val_images", "val_labels")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}


def load(spec: str = "digits", preprocessing: Preprocessing | TextBlocks | None = None) -> DataSplits:
    """Load a data set into memory: training, validation and test split, which are always the same.

    Args:
        spec: ``digits``, ``cifar10[:PATH]``, ``cifar100[:PATH]``, ``parquet:PATH``, ``npz:PATH``, ``images:DIR``,
            ``imagenet:DIR``, ``dataset:DIR`` or ``text:FILE``.
        preprocessing: For parquet, images and dataset: how to resize images to one size. For text, and texts in parquet
            and dataset: how to cut them into blocks of tokens. Other data stay unchanged.

    Raises:
        ValueError: If the form is unknown, or a path is missing or given where none belongs.

    Examples:
        >>> load("digits").classes[:3]
        ('0', '1', '2')
    """
    kind, _, path = spec.partition(":")
    if kind == "digits" and not path:
        return load_digits()
    if kind in ("cifar10", "cifar100"):
        return load_cifar(kind, path or None)  # type: ignore[arg-type]
    if kind not in _LOADERS or not path:
        raise ValueError(f"data must be one of {', '.join(FORMS)}. Got {spec!r}.")
    if kind in ("images", "imagenet") and isinstance(preprocessing, TextBlocks):
        preprocessing = None
    return _LOADERS[kind](path, *([] if kind == "npz" else [preprocessing]))


def load_digits() -> DataSplits:
    """Load scikit-learn's digits, 0 to 1, as 1,295 training, 143 validation and 359 test examples, stratified.

    Examples:
        >>> load_digits()
        DataSplits('digits', train=1295, validation=143, test=359, shape=(1, 8, 8), classes=10)
    """
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).unsqueeze(1) / 16
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    return make_splits("digits", Split(images, labels), classes=tuple(str(d) for d in range(10)))


def load_npz(path: str | Path) -> DataSplits:
    """Load ``x_train, y_train`` (and ``x_test, y_test``, ``x_val, y_val``) or just ``x, y`` from a ``.npz`` file.

    Inputs are ``(N, C, H, W)``, images ``(N, H, W)`` or ``(N, H, W, C)`` with 1 or 3 channels last, or vectors
    ``(N, C)``; ``uint8`` values 0 to 255 mean 0 to 1. ``x_train`` may also be called ``train_images`` or ``images``,
    and so on. Missing splits are held out from the training examples. Pickled arrays are refused.

    Inputs ``(N, T)`` of wider integers are tokens, which stay unchanged. Their labels are classes ``(N,)``, or one for
    each token ``(N, T)``. Without labels, the label of each token is the next token: inputs are all tokens except the
    last, labels all except the first. Other inputs without labels are one set for every split, as stimuli are.

    Raises:
        DataError: If the file is missing, damaged, or holds other arrays.
    """
    path = regular_file(path, "npz path", DataError)
    try:
        shapes = array_headers(path)
        known = [key for pairs in _KEYS.values() for pair in pairs for key in pair if key in shapes]
        size = sum(shapes[key].size for key in known)
        check_fits(3 * size, f"npz:{path.name}", f"arrays {', '.join(known)}", "Take fewer examples.", error=DataError)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in known}
    except DataError:
        raise
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"npz path must be a complete .npz file of plain arrays. Got {str(path)!r}, which does not read ({error})."
        ) from None
    splits = {split: _split(arrays, pairs, path) for split, pairs in _KEYS.items()}
    train = splits["train"]
    alone = next((key for key, _ in _KEYS["train"] if key in arrays), None)
    if train is None and alone and len(shapes) == 1 and arrays[alone].ndim > 1 and len(arrays[alone]):
        return without_labels(f"npz:{path.name}", _channels_first(arrays[alone], alone))
    if train is None:
        raise DataError(
            "npz file must hold x_train and y_train, or x and y; or x alone; or whole numbers x (N, T), tokens. "
            f"Got {', '.join(shapes) or 'nothing'} in {str(path)!r}."
        )
    return make_splits(f"npz:{path.name}", train, splits["validation"], splits["test"])


def _split(arrays: dict[str, np.ndarray], pairs: tuple[tuple[str, str], ...], path: Path) -> Split | None:
    for x, y in pairs:
        if x in arrays and (y in arrays or _are_tokens(arrays[x])):
            labels = arrays.get(y)
            if labels is not None and not np.issubdtype(labels.dtype, np.integer):
                raise DataError(f"{y} must hold whole numbers. Got {labels.dtype} in {str(path)!r}.")
            if _are_tokens(arrays[x]):
                return _tokens(arrays[x], labels, x, y)
            assert labels is not None
            return Split(_channels_first(arrays[x], x), torch.from_numpy(labels.reshape(-1).astype(np.int64)))
    return None


def _are_tokens(array: np.ndarray) -> bool:
    return array.ndim == 2 and np.issubdtype(array.dtype, np.integer) and array.dtype != np.uint8


def _tokens(array: np.ndarray, labels: np.ndarray | None, x: str, y: str) -> Split:
    """Tokens with their labels, or with the next tokens as labels if there are none."""
    tokens = torch.from_numpy(np.ascontiguousarray(array.astype(np.int64)))
    if tokens.numel() and int(tokens.min()) < 0:
        raise DataError(f"{x} must hold tokens of 0 or more. Got {int(tokens.min())}.")
    if labels is None:
        if tokens.shape[1] < 2:
            raise DataError(f"{x} must hold at least two tokens in a row to predict the next. Got {array.shape}.")
        return Split(tokens[:, :-1], tokens[:, 1:])
    if labels.size == len(array):
        labels = labels.reshape(-1)
    elif labels.shape != array.shape:
        raise DataError(f"{y} must be of shape (N,) or (N, T) for tokens {array.shape}. Got {labels.shape}.")
    return Split(tokens, torch.from_numpy(np.ascontiguousarray(labels.astype(np.int64))))


def _channels_first(array: np.ndarray, key: str) -> torch.Tensor:
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise DataError(
            f"{key} must be uint8 or floating point, or whole numbers (N, T) for tokens. "
            f"Got {array.dtype} of shape {array.shape}."
        )
    inputs = torch.from_numpy(np.ascontiguousarray(array if array.dtype == np.uint8 else array.astype(np.float32)))
    if not torch.isfinite(inputs).all():
        raise DataError(f"{key} must be finite. Got NaN or infinite values.")
    if inputs.ndim == 3:
        return inputs.unsqueeze(1)
    if inputs.ndim == 4 and inputs.shape[1] not in (1, 3) and inputs.shape[3] in (1, 3):
        return inputs.permute(0, 3, 1, 2).contiguous()
    return inputs


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
    """Load CIFAR-10 or CIFAR-100 (with its 100 fine labels); 5,000 training images are held out for validation.

    The path is the official archive, its unpacked folder, a folder with ``train.parquet`` and ``test.parquet``, or a
    folder that contains one of these. Without it, ``$INTERTWINE_DATA`` and ``~/.cache/intertwine`` are searched.

    Raises:
        DataError: If nothing is found (the message says what to download), or the data are damaged.
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
        # The root of all data may hold unrelated parquet files: there only the official names count.
        own = path or place.name == name
        if own and (place.suffix == ".parquet" or find_parquet_splits(place)):
            return load_parquet(place, name)
    looked = ", ".join(repr(str(place)) for place in places)
    raise DataError(
        f"{name} must be on this machine. Got nothing in {looked}. Download {layout.archive} from {_PAGE} into "
        f"{str(roots[-1])!r} (or any folder named by INTERTWINE_DATA), or give its place as {name}:PATH."
    )


def _load_official(name: str, layout: _Layout, place: Path) -> DataSplits:
    """Data from the official archive or its unpacked folder."""
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
    """A pickled dictionary of strings, numbers, lists and ``uint8`` arrays, with ``str`` keys; all else is refused."""
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
        """Ignore byte order and alignment, which do not matter for single bytes."""


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
    ("_codecs", "encode"): lambda text, encoding="": text.encode("latin1"),  # how Python 3 pickles bytes for Python 2
}


class _ArrayUnpickler(pickle._Unpickler):  # in Python: the one in C makes a table as long as any number in the file
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise DataError(f"pickle must hold plain containers and uint8 arrays only. Got a call of {module}.{name}.")
        return found


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


_LOADERS: dict[str, Callable[..., DataSplits]] = {
    "parquet": lambda path, how: load_parquet(path, preprocessing=how), "npz": load_npz, "images": load_images,
    "imagenet": load_imagenet, "dataset": load_saved_dataset, "text": load_text,
}  # fmt: skip
