"""Data sets by name, ``load("cifar10:PATH")``; those that come in arrays: digits, and NumPy archives."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..._memory import check_fits
from ..._untrusted.archives import array_headers
from ...errors import DataError
from .cifar import load_cifar
from .images import load_imagenet, load_images
from .pictures import Preprocessing
from .splits import DataSplits, Split, make_splits
from .tables import load_parquet, load_saved_dataset
from .text import TextBlocks, load_text

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
    """Load a data set into memory.

    Args:
        spec: ``digits``, ``cifar10[:PATH]``, ``cifar100[:PATH]``, ``parquet:PATH``, ``npz:PATH``, ``images:DIR``,
            ``imagenet:DIR``, ``dataset:DIR`` or ``text:FILE``.
        preprocessing: For parquet, images and dataset: what brings images of other sizes to one. For text, and texts of
            parquet and dataset: what cuts them into blocks of tokens. Others are as they are.

    Returns:
        Training, validation and test split. The choice of the validation split is fixed, so that all networks are
        judged on the same examples.

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
    ``(N, C)``; ``uint8`` counts 0 to 255 as 0 to 1. ``x_train`` may also be ``train_images`` or ``images``, and so on.
    What is missing is held out from the training examples. Pickled arrays are refused.

    Inputs ``(N, T)`` of wider whole numbers are tokens, which are left as they are. Their labels are classes ``(N,)``,
    or one for each token ``(N, T)``. Without labels, the label of each token is the next one: inputs are all tokens but
    the last, labels all but the first.

    Raises:
        DataError: If the file is missing, damaged, or holds other arrays.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"npz path must be an existing file. Got {str(path)!r}.")
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
    if train is None:
        raise DataError(
            "npz file must hold x_train and y_train, or x and y; or whole numbers x_train or x (N, T), tokens. "
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
    """Tokens with their labels; the next tokens where there are none."""
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


_LOADERS: dict[str, Callable[..., DataSplits]] = {
    "parquet": lambda path, how: load_parquet(path, preprocessing=how), "npz": load_npz, "images": load_images,
    "imagenet": load_imagenet, "dataset": load_saved_dataset, "text": load_text,
}  # fmt: skip
