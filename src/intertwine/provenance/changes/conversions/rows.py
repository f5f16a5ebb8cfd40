"""Rows of tensors: where those of one tensor lie among the tensors of another checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_LEAST = 1e-30


@dataclass(frozen=True)
class Reading:
    """One way to read a tensor as rows.

    Attributes:
        name: Name of the tensor.
        how: ``"rows"`` along its first axis; ``"columns"`` of a matrix; ``"last"``, along its last axis.
    """

    name: str
    how: str


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor made of rows of others."""

    views: tuple[Reading, ...]  # What holds the rows, one after the other
    order: Tensor | None  # Which of them it takes, in its own order; ``None`` for all as they lie
    shape: tuple[int, ...]  # Its shape
    how: str = "rows"  # How its own rows are read

    def make(self, state: Mapping[str, Tensor]) -> Tensor:
        """The tensor, from those of the other checkpoint."""
        if len(self.shape) <= 1 or self.views[0].how == "whole":
            x = torch.cat([state[v.name].reshape(-1) for v in self.views])
            return (x if self.order is None else x[self.order]).reshape(self.shape)
        x = torch.cat([view(state[v.name], v.how) for v in self.views])
        x = x if self.order is None else x[self.order]
        return (x.mT if self.how == "columns" else x).reshape(self.shape)


def view(x: Tensor, how: str) -> Tensor:
    """A tensor as rows; axes of size one are left out."""
    x = x.squeeze() if x.ndim > 2 else x
    x = x if x.ndim > 1 else x.reshape(1, -1)
    if how == "columns":
        return x.mT
    return x.flatten(1) if how == "rows" else x.reshape(-1, x.shape[-1])


def ways(shape: tuple[int, ...]) -> Iterator[tuple[str, int, int]]:
    """Views that tell of a tensor of some shape: how, number of rows, entries of each."""
    sizes = [n for n in shape if n > 1] if len(shape) > 2 else list(shape)
    if len(sizes) < 2:
        return
    yield "rows", sizes[0], prod(sizes[1:])
    if len(sizes) == 2:
        yield "columns", sizes[1], sizes[0]
    else:
        yield "last", prod(sizes[:-1]), sizes[-1]


def unit_rows(x: Tensor) -> Tensor:
    """Rows of length one; rows of zeros stay."""
    x = x.float()
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(_LEAST)


def signature(x: Tensor) -> Tensor:
    """Rows as sorted absolute values: the same whatever permutes their entries or flips signs."""
    return x.float().abs().sort(-1).values
