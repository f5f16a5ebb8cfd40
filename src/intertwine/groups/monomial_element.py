"""Elements that are an index and a scale."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from .group import Group, MatrixElement

__all__ = ["MonomialElement"]

_SHOWN = 8  # longest element whose repr lists its numbers


class MonomialElement(MatrixElement):
    """``(g x)_i = scale_i x_{index_i}``: a permutation, and a scale unless all scales are one.

    Attributes:
        group: The group it belongs to.
        index: int64 ``(n,)``, a permutation of ``0 .. n-1``.
        scale: ``(n,)`` without zeros, or ``None`` where all scales are one.
    """

    __slots__ = ("group", "index", "scale")

    def __init__(self, group: Group, index: Tensor, scale: Tensor | None) -> None:
        self.group: Group = group
        self.index = index
        self.scale = scale

    def matrix(self, dtype: torch.dtype | None = None) -> Tensor:
        """The dense matrix, ``A[i, index[i]] = scale[i]``; float64 by default for a permutation."""
        dtype = dtype or (torch.float64 if self.scale is None else self.scale.dtype)
        a = torch.zeros(self.n, self.n, dtype=dtype, device=self.index.device)
        rows = torch.arange(self.n, device=self.index.device)
        a[rows, self.index] = 1 if self.scale is None else self.scale.to(dtype)
        return a

    def scales(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The scale of every output channel, ones included."""
        if self.scale is None:
            return torch.ones(self.n, dtype=dtype, device=self.index.device)
        return self.scale.to(dtype)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same element with its numbers on another device or in another floating dtype."""
        scale = None if self.scale is None else self.scale.to(device=device, dtype=dtype)
        return type(self)(self.group, self.index.to(device), scale)

    def _act(self, tensor: Tensor) -> Tensor:
        moved = tensor.index_select(0, self.index.to(tensor.device))
        if self.scale is None:
            return moved
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise TypeError(f"tensor must be floating point for an element with scales. Got {tensor.dtype}.")
        scale = self.scale.to(tensor.device, tensor.dtype)
        return moved * scale.view(-1, *[1] * (tensor.ndim - 1))

    def __matmul__(self, other: MatrixElement) -> MatrixElement:
        if not isinstance(other, MonomialElement):
            return super().__matmul__(other)
        group = self.group.join(other.group)
        theirs = other.to(self.index.device)
        scale = None
        if self.scale is not None or theirs.scale is not None:
            dtypes = [e.scale.dtype for e in (self, theirs) if e.scale is not None]
            widest = torch.promote_types(dtypes[0], dtypes[-1])
            scale = self.scales(widest) * theirs.scales(widest)[self.index]
        return MonomialElement(group, theirs.index[self.index], scale)

    def __invert__(self) -> MonomialElement:
        back = torch.argsort(self.index)
        return MonomialElement(self.group, back, None if self.scale is None else 1 / self.scale[back])

    @property
    def _content(self) -> tuple[object, ...]:
        return tuple(self.index.tolist()), tuple(self.scales().tolist())

    def __repr__(self) -> str:
        if self.n > _SHOWN:
            return f"<element of {self.group!r}>"
        scale = "" if self.scale is None else f", {self.scale.tolist()}"
        return f"{self.group!r}.element({self.index.tolist()}{scale})"
