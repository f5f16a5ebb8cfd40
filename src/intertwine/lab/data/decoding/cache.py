"""The place of data on this machine, and decoded images that need not be decoded twice."""

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from ...._io import read_tensors, write_tensors
from ....errors import CheckpointError

_VERSION = 2  # of how images become numbers
_HOME = Path("~/.cache/intertwine")


def data_roots() -> list[Path]:
    """Folders that may hold data sets: ``$INTERTWINE_DATA`` if set, then ``~/.cache/intertwine``."""
    named = os.environ.get("INTERTWINE_DATA")
    return [*([Path(named).expanduser()] if named else []), _HOME.expanduser()]


def cached_tensors(sources: Iterable[Path], decode: Callable[[], dict[str, Tensor]], purpose: str) -> dict[str, Tensor]:
    """Decode ``sources`` once; a changed size or modification time of any of them decodes again.

    Decoded tensors lie under ``$INTERTWINE_CACHE`` or ``~/.cache/intertwine/decoded``. A folder that cannot be written
    only costs the time to decode again.
    """
    folder = Path(os.environ.get("INTERTWINE_CACHE") or _HOME / "decoded").expanduser()
    path = folder / f"{_key(sources, purpose)}.safetensors"
    if path.is_file():
        with suppress(CheckpointError):  # a damaged cache file is decoded again and replaced
            return read_tensors(path)
    tensors = decode()
    with suppress(OSError):
        write_tensors(path, tensors)
    return tensors


def _key(sources: Iterable[Path], purpose: str) -> str:
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    return hashlib.sha256(repr((_VERSION, purpose, stats)).encode()).hexdigest()[:24]
