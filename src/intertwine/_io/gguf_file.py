"""Tensors of GGUF files, dequantised when they are read; names, shapes and order are those of the file."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import repeat
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from .._memory import check_fits
from .._untrusted.files import regular_file
from ..errors import CheckpointError, MissingExtraError

GGUF = ".gguf"
_VERSIONS, _STRING, _ARRAY, _DIMENSIONS = (2, 3), 8, 9, 4
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of each type of values
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
          "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64}  # fmt: skip
_COST = 512  # most bytes of Python's objects for each entry of a list that the library reads


@dataclass(frozen=True)
class Stored:
    """A tensor in a GGUF file."""

    path: Path  # The file
    start: int  # Byte at which it begins
    size: int  # Its size there in bytes
    shape: tuple[int, ...]  # Its shape, the fastest axis last
    format: str  # What the file calls the format of its entries, such as ``Q4_K``

    @property
    def dtype(self) -> torch.dtype:
        """Type of the entries once they are read: float32 if they are quantised."""
        return _PLAIN.get(self.format, torch.float32)

    def read(self) -> Tensor:
        """The tensor, dequantised.

        Raises:
            CheckpointError: If the library cannot dequantise its format.
        """
        import numpy as np

        raw = np.fromfile(self.path, np.uint8, self.size, offset=self.start)
        if self.format in _PLAIN:
            return torch.from_numpy(raw).view(self.dtype).reshape(self.shape)
        gguf = library()
        kind = gguf.GGMLQuantizationType[self.format]
        rows = raw.reshape(gguf.quants.quant_shape_to_byte_shape(self.shape, kind))
        try:
            with np.errstate(all="ignore"):  # scales of any bits
                return torch.from_numpy(gguf.quants.dequantize(rows, kind)).reshape(self.shape)
        except NotImplementedError:
            raise CheckpointError(
                f"checkpoint must hold tensors that gguf {gguf.__version__} dequantises. Got one in {self.format} in "
                f"{str(self.path)!r}. Convert it with llama-quantize --allow-requantize to F16."
            ) from None


def gguf_tensors(path: Path) -> dict[str, Stored]:
    """Tensors in a GGUF file, by its header, which is walked with every length checked.

    The library reads headers of any length; one that has been walked here is safe to give it.

    Raises:
        CheckpointError: If the file is cut off or damaged, stands for more than memory holds, or is of other versions.
    """
    regular_file(path, "checkpoint", CheckpointError)
    gguf = library()
    try:
        with path.open("rb") as file:
            return dict(_Walk(path, file, path.stat().st_size).tensors(gguf))
    except (_Damaged, struct.error, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, _Damaged) else "its header is cut off or damaged"
        raise CheckpointError(
            f"checkpoint must be a complete GGUF file. Got {str(path)!r}, {path.stat().st_size:,} bytes, which does "
            f"not read ({reason}). Copy or download it again."
        ) from None


def read_gguf(path: Path) -> dict[str, Tensor]:
    """All tensors of a GGUF file in memory.

    Raises:
        CheckpointError: If they do not fit, or the file is damaged.
    """  # noqa: DOC502 - raised by the checks
    found = gguf_tensors(path)
    size = sum(prod(tensor.shape) * tensor.dtype.itemsize for tensor in found.values())
    check_fits(size, "checkpoint", f"{len(found)} tensors", "Read one at a time.", error=CheckpointError)
    return {name: tensor.read() for name, tensor in found.items()}


def library() -> Any:
    """The package published by the format's authors.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        gguf = import_module("gguf")
    except ImportError:
        raise MissingExtraError("gguf", "gguf") from None
    import_module("gguf.quants")
    return gguf


class _Damaged(Exception):
    """What is wrong with a header, in words."""


class _Walk:
    """A walk through the parts of a GGUF file, none of which may be longer than the file."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self._path, self._file, self._size = path, file, size

    def tensors(self, gguf: Any) -> Iterator[tuple[str, Stored]]:
        if self._file.read(4) != b"GGUF":
            raise _Damaged("no GGUF file")
        version, count, pairs = self._numbers("<IQQ")
        if version not in _VERSIONS:
            raise _Damaged(f"version {version}, and {' and '.join(map(str, _VERSIONS))} are known, little-endian")
        align = gguf.GGUF_DEFAULT_ALIGNMENT
        for _ in repeat(None, self._counted(pairs, 12)):
            name, (kind,) = self._text(), self._numbers("<I")
            place = self._file.tell()
            self._skip(kind)
            if name == "general.alignment":
                self._file.seek(place)
                (align,) = self._numbers("<I")
        said = [self._said() for _ in repeat(None, self._counted(count, 24))]
        if not said:
            raise _Damaged("no tensor")
        if align < 1 or align & (align - 1):
            raise _Damaged(f"alignment {align}")
        begin = -(-self._file.tell() // align) * align
        total = 0
        for name, shape, number, offset in said:
            try:
                kind = gguf.GGMLQuantizationType(number)
            except ValueError:
                raise _Damaged(f"{name!r} is of format {number}, which gguf does not know") from None
            block, width = gguf.GGML_QUANT_SIZES[kind]
            size = prod(shape) * width // block
            total += size
            if (shape and shape[-1] % block) or begin + offset + size > self._size or total > self._size:
                raise _Damaged(f"{name!r} of shape {shape} in {kind.name} does not lie within it")
            yield name, Stored(self._path, begin + offset, size, shape, kind.name)

    def _said(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, format and place of the next tensor."""
        name, (axes,) = self._text(), self._numbers("<I")
        if axes > _DIMENSIONS:
            raise _Damaged(f"{name!r} has {axes:,} axes")
        *shape, kind, offset = self._numbers(f"<{axes}QIQ")
        return name, tuple(shape[::-1]), kind, offset

    def _skip(self, kind: int, within: bool = False) -> None:
        """Skip a value of a type."""
        if kind == _STRING:
            self._pass(self._numbers("<Q")[0])
        elif kind == _ARRAY and not within:
            of, count = self._numbers("<IQ")
            check_fits(_COST * self._counted(count, 1), "checkpoint", f"a list of {count:,} in {str(self._path)!r}",
                       "Check that it is the right file.", error=CheckpointError)  # fmt: skip
            if of in _SCALARS:
                self._pass(count * _SCALARS[of])
            else:
                for _ in repeat(None, count):
                    self._skip(of, within=True)
        elif kind in _SCALARS:
            self._pass(_SCALARS[kind])
        else:
            raise _Damaged(f"a value of type {kind}{' in a list' * within}")

    def _text(self) -> str:
        (length,) = self._numbers("<Q")
        return self._file.read(self._counted(length, 1)).decode()

    def _pass(self, count: int) -> None:
        self._file.seek(self._counted(count, 1), 1)

    def _counted(self, count: int, each: int) -> int:
        """A count of items of at least ``each`` bytes, for which the rest of the file must have room."""
        if count * each > self._size - self._file.tell():
            raise _Damaged(f"its header says {count:,} where {self._size - self._file.tell():,} bytes are left")
        return count

    def _numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._file.read(struct.calcsize(layout)))
