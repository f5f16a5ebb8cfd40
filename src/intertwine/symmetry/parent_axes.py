"""Tensors that carry nested spaces: which axes belong to the units of the parents, and how entries follow them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..groups import Element
from .blocks import align
from .spaces import Space


def permuted(x: Tensor, spaces: Sequence[str | None], elements: Mapping[str, Element]) -> Tensor:
    """Gather every dimension of ``x`` by the permutation of the space that it carries, outer spaces first.

    ``spaces`` names one for each dimension, or ``None``. Entries move bit for bit; ``x`` itself where no unit moves.
    """
    present = sorted({s for s in spaces if s is not None}, key=lambda s: len(elements[s].parents))
    for name in present:
        e = elements[name]
        if not e.displaced:
            continue
        index = e.permutation.to(x.device)
        for dim, space in enumerate(spaces):
            if space != name:
                continue
            if index.ndim == 1:
                x = x.index_select(dim, index)
            else:
                x = torch.take_along_dim(x, align(index, parent_dims(e, dim, spaces), x.ndim), dim)
    return x


def parent_dims(inner: Space | Element, dim: int, spaces: Sequence[str | None]) -> list[int]:
    """Dimensions of a block to which the axes of a space's arrays belong: the parents' ones, then its own.

    Where a parent occurs more than once, the last one before the space is meant: it is on the same axis.

    Raises:
        ValueError: If a parent does not occur.
    """
    dims = []
    for parent in inner.parents:
        places = [d for d, s in enumerate(spaces) if s == parent]
        places = places if len(places) == 1 else [d for d in places if d < dim]
        if not places:
            raise ValueError(f"parent must occur before {spaces[dim]!r}, or once. Got {parent!r} in {spaces}.")
        dims.append(places[-1])
    return [*dims, dim]
