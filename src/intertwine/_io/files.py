"""Reading and writing files: atomically, and without any unsafe unpickling."""

import contextlib
import errno
import hashlib
import json
import os
import pickle
import platform
import tempfile
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._words import listed, release
from ..errors import CheckpointError, StorageError
from .gguf_file import GGUF, read_gguf
from .scratch import Scratch, sweep

# A full disk, a used-up quota, a limit on files, a read-only file system.
STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

_made: list[Path] = []  # folders that check_writable made, the inner ones first


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, then rename it: readers see the old file or the new one.

    The file and its name are on the disk when this returns, so that a power loss cannot take them. Temporary files of
    processes that no longer run are removed from the folder.

    Raises:
        StorageError: If the disk is full, or cannot be written to.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_once(path.parent.resolve())
    scratch = Scratch(path.parent, f".{path.name}", path.suffix)
    try:
        write(scratch.path)
        scratch.path.chmod(0o666 & ~_umask())
        _sync(scratch.path)
        scratch.path.replace(path)
        _sync(path.parent)
    except Exception as error:
        fault = storage_fault(scratch.path, error)
        if fault is not None:
            raise StorageError(
                f"{str(path)!r} must have room and a place that can be written. Got {fault.strerror!r}. What was "
                "written before is kept: free space and run the same again.",
                fault.errno,
            ) from error
        raise
    finally:
        scratch.close()
    return path


def storage_fault(path: Path, error: BaseException | None = None) -> OSError | None:
    """Reason why a place (a file to be written, or a folder) cannot be written: a full disk, a used-up quota.

    ``None`` if it can be written. Libraries report this in their own words, or not at all, so it is tried out;
    ``error`` is what went wrong, and ``None`` only tries.
    """
    if isinstance(error, OSError) and error.errno in STORAGE:
        return error
    try:
        with path.open("ab") if path.is_file() else tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as found:
        return found if found.errno in STORAGE else None
    return None


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power loss."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have nothing to sync
            raise
    finally:
        os.close(handle)


@cache
def _sweep_once(folder: Path) -> None:
    sweep(folder)


def check_writable(path: str | Path, name: str = "--out") -> Path:
    """Refuse a place where no file can be written, before long work. Missing parent folders are made."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{name} must be a file. Got the folder {str(path)!r}.")
    try:
        folders = path.absolute().parents
        _made.extend(folder for folder in folders if not folder.exists())
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"{name} must be a place where files can be written. Got {str(path)!r} ({error.strerror}). Choose another."
        ) from None
    return path


def remove_empty_folders() -> None:
    """Remove the folders that ``check_writable`` made and that nothing was written into, such as after an error."""
    while _made:
        with contextlib.suppress(OSError):  # what is not empty stays
            _made.pop(0).rmdir()


def write_text(path: str | Path, text: str) -> Path:
    """Write text, atomically."""
    return write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: str | Path, value: Any) -> Path:
    """Write ``value`` as indented JSON, atomically.

    NaN and infinities are written as ``null``: JSON has no word for them.
    """
    return write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def as_json(value: Any) -> Any:
    """The value that ``read_json`` returns after ``write_json`` wrote this one."""
    return json.loads(json.dumps(_finite(value), allow_nan=False))


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(parts: Iterable[str | Tensor], known: Any = None) -> str:
    """A hash of texts and of the bytes of tensors, one after another, in hexadecimal digits: SHA-256 unless given."""
    known = hashlib.sha256() if known is None else known
    for part in parts:
        plain = part.encode() if isinstance(part, str) else part.detach().cpu().contiguous().reshape(-1)
        known.update(plain.view(torch.uint8).numpy() if isinstance(plain, Tensor) else plain)
    text: str = known.hexdigest()
    return text


def versions() -> dict[str, str]:
    """Versions of the software that made a result."""
    return {"intertwine": release(), "torch": str(torch.__version__), "python": platform.python_version()}


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    """Write tensors as safetensors, atomically; tied tensors are written once per name."""
    from safetensors.torch import save_file

    contents = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    said = {"intertwine": release(), **(metadata or {})}  # marks the file as ours

    def write(temporary: Path) -> None:
        save_file(contents, temporary, metadata=said)
        _sort_metadata(temporary)

    return write_atomically(path, write)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file alphabetically: the library writes it in random order."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        ordered = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
        text = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # the same characters in another order; spaces may follow
            file.seek(8)
            file.write(text.ljust(size))


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from safetensors, from GGUF, or from a torch file with ``weights_only=True``.

    Args:
        path: A ``.safetensors`` or ``.gguf`` file, or any file that ``torch.save`` wrote. A dictionary that holds the
            state dict under ``state_dict``, ``model`` or ``model_state_dict``, or only one at all, is opened.

    Raises:
        CheckpointError: If the file is missing, truncated, would need unsafe unpickling, or holds no state dict.
    """  # noqa: DOC502 - raised by what it calls
    from .._untrusted.weights import check_sizes, check_weights_file

    path = check_weights_file(path)
    if path.suffix == GGUF:
        return read_gguf(path)
    loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    found = _find_state_dict(loaded, path)
    check_sizes(found, path)
    return found


def tied_names(said: Any, held: Container[str]) -> dict[str, str]:
    """Names of tied tensors that are not held, each with the one that is, by the metadata of ``save_model``."""
    told = said.items() if isinstance(said, Mapping) else ()
    return {name: kept for name, kept in told if isinstance(kept, str) and kept in held and name not in held}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata()
        found: dict[str, Tensor] = load_file(path)
        return found | {name: found[kept] for name, kept in tied_names(said, found).items()}
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
    except Exception as error:  # what a damaged file makes the reader do may fail anywhere
        raise CheckpointError(
            f"checkpoint must be a complete torch or safetensors file. Got {str(path)!r}, which does not read "
            f"({_reason(path, error)}). Copy or download it again."
        ) from None


def _reason(path: Path, error: Exception) -> str:
    # torch says nothing about an empty file, and names only an opcode where there is no torch file at all
    if path.stat().st_size == 0:
        return "0 bytes"
    said = (str(error).splitlines() or [""])[0].partition(". ")[0]
    return said if " " in said else "no torch file"


def _find_state_dict(loaded: Any, path: Path) -> dict[str, Tensor]:
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            others = [repr(k) for k, v in loaded.items() if k != key and _is_state_dict(v)]
            if others:  # such as an average over the training
                said = f"{str(path)!r} holds {', '.join(others)} besides {key!r}, which is read"
                warnings.warn(f"{said}. Save the weights that you mean in a file of their own.", stacklevel=2)
            loaded = loaded[key]
    inner = [v for v in loaded.values() if _is_state_dict(v)] if isinstance(loaded, Mapping) else []
    loaded = inner[0] if len(inner) == 1 else loaded
    if not _is_state_dict(loaded):
        keys = f" of {listed(map(repr, loaded), 8)}" if isinstance(loaded, Mapping) and loaded else ""
        raise CheckpointError(
            f"checkpoint must hold a state dict (names to tensors). Got {type(loaded).__name__}{keys} in "
            f"{str(path)!r}. Save it with safetensors.torch.save_file(model.state_dict(), 'model.safetensors')."
        )
    return dict(loaded)


def _is_state_dict(value: Any) -> bool:
    named = lambda item: isinstance(item[0], str) and isinstance(item[1], Tensor)
    return isinstance(value, Mapping) and bool(value) and all(map(named, value.items()))


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
