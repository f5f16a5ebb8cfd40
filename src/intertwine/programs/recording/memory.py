"""Memory shared by tensors: what makes in-place writes safe to follow."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import CaptureError

_LARGEST = 1 << 22  # elements of a storage that are compared one by one; larger ones are taken to overlap


@dataclass(frozen=True)
class Geometry:
    """Layout of a tensor in its storage: the elements that it shows, in order."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def geometry(tensor: Tensor) -> Geometry:
    """The geometry of a strided tensor."""
    return Geometry(int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def storage_key(tensor: Tensor) -> int:
    """A number that two tensors have in common exactly when they share storage, while both are alive."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        if tensor.layout != torch.strided:
            said = f"a sparse one ({tensor.layout}): use a dense one, or indices with index_add or scatter_add"
        else:
            said = (
                "one inside torch.vmap or torch.func.jvp, whose operations cannot be followed one by one: call the "
                "function on the whole batch"
            )
        raise CaptureError(f"model must run on plain tensors. Got {said} instead.") from None


def overlap(a: Geometry, b: Geometry) -> bool:
    """Whether two tensors on one storage have an element in common; ``True`` where it is too long to find out."""
    if 0 in a.shape or 0 in b.shape:
        return False
    if a.dtype != b.dtype:
        return True
    if _end(a) < b.offset or _end(b) < a.offset:
        return False
    size = max(_end(a), _end(b)) + 1
    if size > _LARGEST:
        return True
    shown = torch.zeros(size, dtype=torch.bool)
    shown[_elements(a, size)] = True
    return bool(shown[_elements(b, size)].any())


def covers(a: Geometry, b: Geometry) -> bool:
    """Whether ``a`` shows every element of ``b``; ``False`` where it is too long to find out."""
    if a.dtype != b.dtype or b.offset < a.offset or _end(b) > _end(a):
        return False
    if _fills(a):
        return True
    size = _end(a) + 1
    if size > _LARGEST:
        return False
    shown = torch.zeros(size, dtype=torch.bool)
    shown[_elements(a, size)] = True
    return bool(shown[_elements(b, size)].all())


def _fills(g: Geometry) -> bool:
    """Whether a tensor shows each element between its first and its last exactly once."""
    step = 1
    for stride, n in sorted((s, n) for s, n in zip(g.stride, g.shape) if n != 1):
        if stride != step:
            return False
        step *= n
    return True


def _end(g: Geometry) -> int:
    return g.offset + sum((n - 1) * s for n, s in zip(g.shape, g.stride))


def _elements(g: Geometry, size: int) -> Tensor:
    return torch.arange(size).as_strided(g.shape, g.stride, g.offset).flatten()
