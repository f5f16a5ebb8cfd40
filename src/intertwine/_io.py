"""Reading and writing files: atomically, and never unpickling anything unsafely."""

import contextlib
import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import CheckpointError

__all__ = [
    "check_writable", "file_digest", "read_json", "read_tensors", "remove_empty_folders", "write_atomically",
    "write_json", "write_tensors",
]  # fmt: skip

_made: list[Path] = []  # folders that check_writable made, the inner ones first


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, then rename it: readers see the old file or the new one.

    Args:
        path: Where the file shall be. Missing parent folders are made.
        write: Receives the temporary path.

    Returns:
        ``path`` as a ``Path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def check_writable(path: str | Path, name: str = "--out") -> Path:
    """Refuse a place where no file can be written, before long work. Missing parent folders are made.

    Args:
        path: Where a file shall be.
        name: What the path is called, in messages.

    Returns:
        ``path`` as a ``Path``.

    Raises:
        ValueError: If it is a folder, or nothing can be written there.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{name} must be a file. Got the folder {str(path)!r}.")
    try:
        _made.extend(folder for folder in (path.parent, *path.parent.parents) if not folder.exists())
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"{name} must be a place where files can be written. Got {str(path)!r} ({error.strerror}). Choose another."
        ) from None
    return path


def remove_empty_folders() -> None:
    """Remove the folders that ``check_writable`` made and nothing was written to, such as after an error."""
    while _made:
        with contextlib.suppress(OSError):  # what is not empty stays
            _made.pop(0).rmdir()


def write_json(path: str | Path, value: Any) -> Path:
    """Write ``value`` as indented JSON, atomically.

    NaN and infinities are written as ``null``: JSON has no word for them.
    """
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)

    def write(temporary: Path) -> None:
        temporary.write_text(text + "\n", encoding="utf-8")

    return write_atomically(path, write)


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    """Write tensors as safetensors, atomically; tied tensors are written once per name."""
    from safetensors.torch import save_file

    contents = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return write_atomically(path, lambda p: save_file(contents, p, metadata=dict(metadata or {})))


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from safetensors, or from a torch file with ``weights_only=True``.

    Args:
        path: A ``.safetensors`` file, or any file that ``torch.save`` wrote. A dictionary that holds the state
            dict under ``state_dict``, ``model`` or ``model_state_dict`` is opened.

    Returns:
        Parameter and buffer names to CPU tensors.

    Raises:
        CheckpointError: If the file is missing, truncated, would need unsafe unpickling, or holds no state dict.
    """  # noqa: DOC502 - raised by what it calls
    from ._untrusted.weights import check_sizes, check_weights_file

    path = check_weights_file(path)
    loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    found = _find_state_dict(loaded, path)
    check_sizes(found, path)
    return found


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(
            f"checkpoint must be a complete safetensors file. Got {str(path)!r}, {path.stat().st_size} bytes, which "
            f"does not read ({error}). Copy or download it again."
        ) from None


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"checkpoint must hold tensors only. Got {str(path)!r}, which needs unsafe unpickling (it "
            "could run any code) or is damaged. If you trust its source, convert it once where it was made: "
            "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')."
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"checkpoint must be a complete torch or safetensors file. Got {str(path)!r}, which does not read "
            f"({_reason(path, error)}). Copy or download it again."
        ) from None


def _reason(path: Path, error: Exception) -> str:
    # torch says nothing of an empty file, and names only an opcode where there is no torch file at all
    if path.stat().st_size == 0:
        return "0 bytes"
    said = (str(error).splitlines() or [""])[0].partition(". ")[0]
    return said if " " in said else "no torch file"


def _find_state_dict(loaded: Any, path: Path) -> dict[str, Tensor]:
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise CheckpointError(
            f"checkpoint must hold a state dict (names to tensors). Got {type(loaded).__name__} in {str(path)!r}. "
            "Save it with safetensors.torch.save_file(model.state_dict(), 'model.safetensors')."
        )
    return dict(loaded)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
