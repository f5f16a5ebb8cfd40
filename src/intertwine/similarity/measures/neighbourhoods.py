"""Nearest neighbours of every example, ties shared between those that are equally near."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from .._features import check_distinct, check_same_examples
from .._sides import living_channels
from ..hsic import center_gram
from ..kernels.linear import square_distances_of, unit_gram

_TIE = 1e-13  # share of the largest squared distance that is rounding


@dataclass(frozen=True)
class NeighbourSide:
    """One side as the neighbourhoods of its examples."""

    # Gram matrix of the features, centred over the examples that it was made of, ``(N, N)`` in float64
    products: Tensor = field(repr=False)
    k: int  # Number of neighbours
    # How much ``j`` is one of the ``k`` nearest of ``i``, ``(N, N)``; ``None`` with ``k`` examples or fewer
    near: Tensor | None = field(repr=False)
    channels: int  # Number of channels, dead ones included
    dead: int  # Number of constant channels, left out
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.products)

    @cached_property
    def centred(self) -> Tensor:
        """The U-centred Gram matrix, ``(N, N)``."""
        return center_gram(self.products)

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``; neighbours in a subsample are found anew."""
        index = index.to(self.products.device)
        everything = check_distinct(index, self.n)
        products = self.products[index][:, index]
        if everything and self.near is not None:
            near: Tensor | None = self.near[index][:, index]
        else:
            near = _near(products, self.k)
        return type(self)(products, self.k, near, self.channels, self.dead, self.details)


def neighbour_side(x: Tensor, channel_dim: int, k: int) -> NeighbourSide:
    """Check the features and find the neighbours of every example by the Euclidean distance over channels and space."""
    x, m, dead = living_channels(x, channel_dim)
    products = unit_gram(x, m)
    return NeighbourSide(products, k, _near(products, k), x.shape[1] + dead, dead)


def check_neighbours(a: NeighbourSide, b: NeighbourSide) -> tuple[Tensor, Tensor]:
    """Return the neighbourhoods of two sides."""
    check_same_examples(a.n, b.n)
    if a.near is None or b.near is None:
        raise ValueError(f"examples must be more than k = {a.k}. Got {a.n}. Use a smaller k, such as MutualKNN(k=...).")
    return a.near, b.near


def neighbourhoods(distances: Tensor, k: int) -> Tensor:
    """How much ``j`` is one of the ``k`` nearest of ``i``: rows of weights from 0 to 1 that sum to ``k``.

    Examples that are equally far share the places that are left, so that the order of the examples decides nothing: a
    layer that gives most examples the same features would seem to agree with any other such layer.

    Examples:
        >>> import torch
        >>> x = torch.tensor([0.0, 1.0, 1.0, 5.0])
        >>> neighbourhoods((x[:, None] - x) ** 2, 1)
        tensor([[0.0000, 0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 1.0000, 0.0000],
                [0.0000, 1.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000, 0.0000]])
    """
    rounding = _TIE * distances.max()
    distances = distances.clone().fill_diagonal_(torch.inf)
    last = distances.kthvalue(k, dim=1, keepdim=True).values
    nearer, tied = distances < last - rounding, (distances - last).abs() <= rounding
    left = k - nearer.sum(1, keepdim=True)
    return nearer.float() + tied.float() * (left / tied.sum(1, keepdim=True))


def _near(products: Tensor, k: int) -> Tensor | None:
    return neighbourhoods(square_distances_of(products), k) if len(products) > k else None
