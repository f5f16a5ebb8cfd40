"""Memory shared by tensors, so that in-place writes can be followed safely; constants on the meta device, by value."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._nested import map_leaves, tensors_in
from ...errors import CaptureError

_MOST_COMPARED = 1 << 22  # elements of a storage that are compared one by one; larger ones are taken to overlap


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
    """A number that two tensors have in common exactly if they share storage, while both are alive."""
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
    """Whether two tensors on one storage have an element in common; ``True`` if it takes too long to find out."""
    if 0 in a.shape or 0 in b.shape:
        return False
    if a.dtype != b.dtype:
        return True
    if _end(a) < b.offset or _end(b) < a.offset:
        return False
    size = max(_end(a), _end(b)) + 1
    if size > _MOST_COMPARED:
        return True
    return bool(_seen_of(b, a, size).any())


def covers(a: Geometry, b: Geometry) -> bool:
    """Whether ``a`` shows every element of ``b``; ``False`` if it takes too long to find out."""
    if a.dtype != b.dtype or b.offset < a.offset or _end(b) > _end(a):
        return False
    if _fills(a):
        return True
    size = _end(a) + 1
    if size > _MOST_COMPARED:
        return False
    return bool(_seen_of(b, a, size).all())


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


def _seen_of(b: Geometry, a: Geometry, size: int) -> Tensor:
    """For each element that ``b`` shows in a storage of ``size``, whether ``a`` shows it too."""
    shown = torch.zeros(size, dtype=torch.bool)
    shown.as_strided(a.shape, a.stride, a.offset).fill_(True)
    return shown.as_strided(b.shape, b.stride, b.offset)


# operations that give memory without contents
UNWRITTEN = {"aten::empty", "aten::empty_strided", "aten::empty_permuted", "aten::empty_like", "aten::new_empty",
             "aten::new_empty_strided"}  # fmt: skip

_MOST_COMPUTED = 1 << 22  # elements up to which a constant is computed


class MetaConstants:
    """Real tensors behind the meta tensors that are constant."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # id -> the meta tensor, kept alive, and its values

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor: its own, or those behind it; ``None`` where they are unknown."""
        if not tensor.is_meta:
            return tensor
        entry = self._known.get(id(tensor))
        return None if entry is None else entry[1]

    def follow(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Repeat an operation on constants with their values, and keep the results behind ``result``."""
        made = list(tensors_in(result))
        if not any(t.is_meta for t in made) or any(t.numel() > _MOST_COMPUTED for t in made):
            return
        values = self.values(func, args, kwargs)
        if values is not None:
            if func._schema.name in UNWRITTEN:
                values.zero_()
            for meta, value in zip(made, tensors_in(values)):
                self._known[id(meta)] = (meta, value)

    def values(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Result of an operation on the values of its arguments; ``None`` if some are unknown."""
        if any(self.of(t) is None for t in tensors_in([args, kwargs])):
            return None
        real = lambda x: (
            self.of(x) if isinstance(x, Tensor) else torch.device("cpu") if isinstance(x, torch.device) else x
        )
        try:
            return func(*map_leaves(args, real), **map_leaves(kwargs, real))
        except (RuntimeError, TypeError, NotImplementedError):  # an operation that only runs on meta tensors
            return None
