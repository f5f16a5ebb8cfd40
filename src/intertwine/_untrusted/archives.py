"""Untrusted archives: what they will unpack to is known, or limited, before they are unpacked."""

import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np


@dataclass(frozen=True)
class Header:
    """What an array in an archive says about itself."""

    shape: tuple[int, ...]  # Its shape
    dtype: np.dtype[Any]  # Type of its entries

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return prod(self.shape) * self.dtype.itemsize


def array_headers(path: Path) -> dict[str, Header]:
    """Shapes and types of the arrays of a ``.npz`` file, without unpacking them."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(".npy"):
                continue
            with archive.open(entry) as stream:
                header = _header(stream)
                start = stream.tell()
            if header.dtype.hasobject:
                raise ValueError(f"{entry.filename} is pickled")
            if header.size != entry.file_size - start:
                raise ValueError(f"{entry.filename} says {header.size:,} bytes and has {entry.file_size - start:,}")
            found[entry.filename.removesuffix(".npy")] = header
    return found


def _header(stream: IO[bytes]) -> Header:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return Header(shape, dtype)


class _Limited(io.RawIOBase):
    """The bytes of a stream, of which only a limited number may be read."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._left, self._most = stream, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``."""
        some = self._stream.read(len(buffer))
        self._left -= len(some)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {self._most:,} bytes")
        buffer[: len(some)] = some
        return len(some)


@contextmanager
def limited_stream(path: Path, most: int) -> Iterator[IO[bytes]]:
    """A file, unpacked if it is gzipped, that raises an error after so many bytes.

    Yields:
        The stream; reading beyond these bytes raises ``ValueError``.
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]
        yield io.BufferedReader(_Limited(stream, most))
