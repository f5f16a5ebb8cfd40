"""Locks that end with their process, and temporary files that the next process removes if they outlive their own."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import IntertwineError

_MARK = "~iw"  # ends the first part of every temporary name: nobody else's files have it
_LONGEST = 100  # characters of a name that a temporary name repeats: names may have 255 bytes
_PATTERN = re.compile(rf"^\.?.*{_MARK}(\d+)-[a-z0-9_]+(\..*)?$", re.DOTALL)


class BusyError(IntertwineError, RuntimeError):
    """A file or folder that another process holds."""


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold a folder, or a file that exists for the purpose, until the block or this process ends, however it ends.

    A folder is held without leaving anything in it; a file that is created for this is removed again.

    Raises:
        BusyError: If another process, or another block of this one, holds it.
    """
    handle = _opened(path)
    try:
        if handle is not None and not _taken(handle):
            raise BusyError(f"{str(path)!r} must be free. Got it held by another process. Wait for it, or stop it.")
        try:
            yield
        finally:
            if not path.is_dir():
                path.unlink(missing_ok=True)
    finally:
        if handle is not None:
            os.close(handle)


def _opened(path: Path) -> int | None:
    """The opened folder, or file, created if need be; ``None`` where folders cannot be opened: users see to it."""
    if not path.is_dir():
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    return os.open(path, os.O_RDONLY) if os.name == "posix" else None


class Scratch:
    """A temporary file or folder: its name says who owns it, and a lock says that it is still in use.

    Args:
        folder: Where to create it.
        name: Beginning of its name.
        suffix: End of its name.
        directory: Whether to create a folder.

    Attributes:
        path: Its path.
    """

    def __init__(self, folder: str | Path | None, name: str, suffix: str = "", directory: bool = False) -> None:
        place = Path(tempfile.gettempdir() if folder is None else folder)
        prefix = f"{name[:_LONGEST]}{_MARK}{os.getpid()}-"
        if directory:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            self._handle = os.open(self.path, os.O_RDONLY) if os.name == "posix" else None
        else:
            self._handle, made = tempfile.mkstemp(prefix=prefix, suffix=suffix[-_LONGEST:], dir=place)
            self.path = Path(made)
        if self._handle is not None:
            _taken(self._handle)

    def close(self) -> None:
        """Remove it, if it is still there under its name."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        _remove(self.path)


def sweep(folder: str | Path | None) -> list[Path]:
    """Remove the temporary files and folders that dead processes left in a folder, and nobody else's."""
    place, removed = Path(tempfile.gettempdir() if folder is None else folder), []
    for entry in os.scandir(place):
        found = _PATTERN.match(entry.name) if _MARK in entry.name else None
        if found and not _runs(int(found[1])) and _abandoned(Path(entry.path)):
            _remove(Path(entry.path))
            removed.append(Path(entry.path))
    return removed


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it exists, and belongs to another user
        return True
    return True


def _abandoned(path: Path) -> bool:
    """Whether nobody holds it: its process may run on another machine, behind a shared folder."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return _taken(handle)
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    """Whether the lock of an open file could be taken; without locks, as on Windows, users take care."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
