"""Untrusted tensors: no larger than the file that holds them, and of the kind that the model has."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .._memory import check_fits
from ..errors import CheckpointError
from .files import regular_file

_SMALL = 2**20  # bytes up to which a tensor may be an expanded one
_OF_WEIGHTS = ("weight", "bias", "gamma", "beta")


def check_weights_file(path: str | Path) -> Path:
    """Refuse a file that would take more memory than it has bytes, or more than is free.

    torch writes its archives uncompressed, so a compressed record was not written by torch.

    Returns:
        ``path`` as a ``Path``.

    Raises:
        CheckpointError: If it is not a plain file, or too large when it is read.
    """
    path = regular_file(path, "checkpoint", CheckpointError)
    size = path.stat().st_size
    check_fits(size, "checkpoint", f"{str(path)!r}", "Use a machine with more memory.", error=CheckpointError)
    if path.suffix != ".safetensors" and zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                records = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return path  # torch reports what is wrong with it
        claimed = sum(record.file_size for record in records)
        if claimed > size or any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise CheckpointError(
                f"checkpoint must hold its tensors uncompressed, as torch.save writes them. Got {str(path)!r}, "
                f"{size:,} bytes that stand for {claimed:,}. Save it again with torch.save or as safetensors."
            )
    return path


def check_sizes(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that repeat a few stored numbers many times: a copy of them would take far more memory."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta:
            continue
        size, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
        if size > max(stored, _SMALL):
            raise CheckpointError(
                f"checkpoint must hold every number of its tensors. Got {name!r} in {str(path)!r}, of shape "
                f"{tuple(tensor.shape)}, with {stored:,} bytes for {size:,}. Save it with .contiguous() tensors."
            )


def check_kinds(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: str) -> None:
    """Refuse numbers whose kind would have to change to the model's: complex to real, whole or truth values to real.

    Precisions of one kind are cast to each other, as torch does.

    Raises:
        CheckpointError: If kinds differ.
    """
    for name, tensor in tensors.items():
        if name in wanted:
            expected = _kind(wanted[name].dtype)
        elif name.endswith(_OF_WEIGHTS) or tensor.is_complex():  # under another name in the file: weights all the same
            expected = "real"
        else:
            continue
        found = _kind(tensor.dtype)
        if found != expected and (found, expected) != ("truth values", "whole"):
            raise CheckpointError(
                f"checkpoint must hold {expected} numbers in {name}. Got {str(tensor.dtype).removeprefix('torch.')} in "
                f"{source}: casting would change them silently. Convert them yourself if that is what you want."
            )


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "complex"
    if dtype.is_floating_point:
        return "real"
    return "truth values" if dtype == torch.bool else "whole"
