"""Groups made of groups: blocks side by side, and equal blocks that may also change places."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, product
from typing import ClassVar, Self

import torch
from torch import Tensor

from .assignment import assign
from .group import Group, MatrixElement, Objective, Unattained, log_factorial
from .monomial import Trivial

__all__ = ["BlockElement", "Product", "Wreath"]


class BlockElement(MatrixElement):
    """Block ``i`` of the output is ``blocks[i]`` applied to block ``order[i]`` of the input.

    Attributes:
        group: A ``Product`` (its order is 0, 1, 2, ...) or a ``Wreath``.
        order: Which input block each output block reads.
        blocks: One element for every *output* block.
    """

    __slots__ = ("blocks", "group", "order")

    def __init__(self, group: BlockGroup, order: tuple[int, ...], blocks: tuple[MatrixElement, ...]) -> None:
        self.group: BlockGroup = group
        self.order = order
        self.blocks = blocks

    def matrix(self, dtype: torch.dtype | None = None) -> Tensor:
        """The dense matrix."""
        parts = [b.matrix(dtype) for b in self.blocks]
        a = torch.zeros(self.n, self.n, dtype=parts[0].dtype, device=parts[0].device)
        for rows, source, part in zip(self.group.slices, self.order, parts, strict=True):
            a[rows, self.group.slices[source]] = part.to(a.dtype)
        return a

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same element on another device or in another floating dtype."""
        return type(self)(self.group, self.order, tuple(b.to(device, dtype) for b in self.blocks))

    def _act(self, tensor: Tensor) -> Tensor:
        pieces = [tensor[s] for s in self.group.slices]
        return torch.cat([b.apply(pieces[j], dim=0) for b, j in zip(self.blocks, self.order, strict=True)])

    def __matmul__(self, other: MatrixElement) -> MatrixElement:
        if not isinstance(other, BlockElement) or other.group != self.group:
            return super().__matmul__(other)
        blocks = tuple(b @ other.blocks[j] for b, j in zip(self.blocks, self.order, strict=True))
        return BlockElement(self.group, tuple(other.order[j] for j in self.order), blocks)

    def __invert__(self) -> BlockElement:
        back = tuple(self.order.index(j) for j in range(len(self.order)))
        return BlockElement(self.group, back, tuple(~self.blocks[i] for i in back))

    @property
    def _content(self) -> tuple[object, ...]:
        return self.order, self.blocks

    def __repr__(self) -> str:
        return f"<element of {self.group!r}: blocks read {list(self.order)}>"


class BlockGroup(Group):
    """Base of the groups whose elements are made of blocks, each with a group of its own."""

    exchanges: ClassVar[bool]  # Whether blocks may change places

    @property
    @abstractmethod
    def parts(self) -> tuple[Group, ...]:
        """The group of every block, in order."""

    @property
    def slices(self) -> tuple[slice, ...]:
        """The channels of each block."""
        ends = list(accumulate(part.n for part in self.parts))
        return tuple(slice(end - part.n, end) for end, part in zip(ends, self.parts, strict=True))

    @property
    def closed(self) -> Group:
        """The smallest kind that holds every block and is closed under direct sums and permutations of blocks."""
        return reduce(Group.join, (part.closed.on(self.n) for part in self.parts))

    @property
    def above(self) -> tuple[Group, ...]:
        """The closed one."""
        return (self.closed,)

    @property
    def _on_one_channel(self) -> tuple[bool, bool]:
        return self.parts[0]._on_one_channel

    @property
    def dim(self) -> int:
        """Sum over blocks."""
        return sum(part.dim for part in self.parts)

    @property
    def log_components(self) -> float:
        """Sum over blocks."""
        return sum(part.log_components for part in self.parts)

    def identity(self, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> BlockElement:
        """The element that changes nothing."""
        return self._join([part.identity(dtype, device) for part in self.parts])

    def _random(self, source: torch.Generator | None) -> BlockElement:
        """Independent random elements in the blocks, and where these may change places a uniform order of them."""
        device = source.device if source is not None else None
        order = torch.randperm(len(self.parts), generator=source, device=device).tolist() if self.exchanges else None
        return self._join([part._random(source) for part in self.parts], order)

    def contains(self, matrix: Tensor, tol: float = 1e-6) -> bool:
        """Whether in every block row and column one block, in its place, is not negligible and belongs to its group.

        Negligible are blocks without an entry above ``tol`` times the largest of their block row.
        """
        a = self._check(matrix)
        if not bool(torch.isfinite(a).all()):
            return False
        size = self._sizes(a)
        support = size > tol * size.amax(1, keepdim=True)
        order = self._order(size)
        if not torch.equal(support, torch.eye(len(size), dtype=torch.bool, device=a.device)[order]):
            return False
        blocks = zip(self.parts, self.slices, order, strict=True)
        return len(set(order)) == len(order) and all(g.contains(a[s, self.slices[j]], tol) for g, s, j in blocks)

    def dense(self, matrix: Tensor) -> BlockElement:
        """The element with this matrix, which is not checked."""
        order = self._order(self._sizes(matrix))
        blocks = zip(self.parts, self.slices, order, strict=True)
        return self._join([g.dense(matrix[s, self.slices[j]]) for g, s, j in blocks], order)

    def project(self, matrix: Tensor) -> BlockElement:
        """The nearest element: the best one for every pair of blocks that may meet, then the best pairing of blocks.

        What lies outside the blocks is lost whatever the element.

        Args:
            matrix: ``(n, n)``.
        """
        m, slices = self._check_finite(matrix), self.slices

        def fit(i: int, j: int) -> tuple[MatrixElement, float]:
            block = m[slices[i], slices[j]]
            best = self.parts[i].project(block)
            return best, float(block.square().sum() - (block - best.matrix(m.dtype)).square().sum())

        return self._pair(fit, m.device)

    def procrustes(
        self, xy: Tensor, xx: Tensor | None = None, yy: Tensor | None = None, *, objective: Objective = "least_squares"
    ) -> BlockElement:
        """The element with the least ``sum |y - g x|^2``: the best one for every pair of blocks, then the best pairing.

        The residual is a sum over blocks.

        Args:
            xy: ``(n, n)``, ``x.T @ y``.
            xx: ``(n, n)``, ``x.T @ x``, or its diagonal where the groups of blocks need no more; always needed where
                blocks that change places scale.
            yy: As the groups of blocks need it; not where these change places.
            objective: ``"least_squares"``; what the groups of blocks know where these keep their places.

        Raises:
            ValueError: If ``objective`` is another.
        """
        if self.exchanges and objective != "least_squares":
            raise ValueError(f"objective must be 'least_squares' for {self!r}. Got {objective!r}.")
        xy, slices = self._check_finite(xy, "xy"), self.slices

        def fit(i: int, j: int) -> tuple[MatrixElement, float]:
            cross, energy = xy[slices[j], slices[i]], _block(xx, slices[j])
            best = self.parts[i].procrustes(cross, energy, _block(yy, slices[i]), objective=objective)
            # a group without scales keeps |g x|^2, so that term is common to all pairings
            none = torch.zeros(best.n, dtype=xy.dtype, device=xy.device)
            return best, -self.parts[i]._residual(best, cross, none if energy is None else energy.to(xy))

        return self._pair(fit, xy.device)

    def _pair(self, fit: Callable[[int, int], tuple[MatrixElement, float]], device: torch.device) -> BlockElement:
        """Blocks with the largest sum of what ``fit`` says that each gains, in the places that they may have."""
        places = range(len(self.parts))
        if not self.exchanges:
            return self._join([fit(i, i)[0] for i in places])
        gain = torch.full((len(places), len(places)), -torch.inf, dtype=torch.float64, device=device)
        best: dict[tuple[int, int], MatrixElement] = {}
        for i, j in product(places, places):
            with suppress(Unattained):
                best[i, j], gain[i, j] = fit(i, j)
        try:
            order = assign(gain).tolist()
        except ValueError:
            raise Unattained(
                f"each block of some pairing must have a best element of {self.parts[0]!r}. Got none."
            ) from None
        return self._join([best[i, j] for i, j in enumerate(order)], order)

    def _sizes(self, matrix: Tensor) -> Tensor:
        """The largest entry of every block, by its row and column of blocks."""
        return torch.stack([torch.stack([matrix[r, c].abs().amax() for c in self.slices]) for r in self.slices])

    def _order(self, sizes: Tensor) -> list[int]:
        """Which input block each output block reads."""
        return sizes.argmax(1).tolist() if self.exchanges else list(range(len(sizes)))

    def _join(self, blocks: Sequence[MatrixElement], order: Sequence[int] | None = None) -> BlockElement:
        return BlockElement(self, tuple(range(len(blocks)) if order is None else order), tuple(blocks))


@dataclass(frozen=True, init=False, repr=False)
class Product(BlockGroup):
    """The direct product ``G_1 x ... x G_k`` as block-diagonal matrices: concatenated channels with a group each.

    Args:
        *factors: The groups, first block first.

    Examples:
        >>> from intertwine.groups import Permutation, PositiveMonomial
        >>> g = Product(Permutation(2), PositiveMonomial(3))
        >>> g.n, g.dim
        (5, 3)
    """

    exchanges = False
    factors: tuple[Group, ...] = ()

    def __init__(self, *factors: Group) -> None:
        if not factors or not all(isinstance(f, Group) for f in factors):
            raise TypeError(f"factors must be groups, at least one. Got {factors!r}.")
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "n", sum(f.n for f in factors))

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.factors))})"

    @property
    def parts(self) -> tuple[Group, ...]:
        """The factors."""
        return self.factors

    def _holds(self, inner: Group) -> bool:
        if not isinstance(inner, Product):
            return inner == Trivial(self.n)
        same = [f.n for f in inner.factors] == [f.n for f in self.factors]
        return same and all(a.is_subgroup_of(b) for a, b in zip(inner.factors, self.factors, strict=True))

    @property
    def words(self) -> str:
        """In words."""
        return "block-diagonal matrices: " + "; ".join(f.words for f in self.factors)

    def element(self, *blocks: MatrixElement) -> BlockElement:
        """The element with one element of each factor.

        Raises:
            ValueError: If the elements do not belong to the factors, in order.
        """
        if [b.group for b in blocks] != list(self.factors):
            raise ValueError(f"blocks must be elements of {self.factors}. Got {[b.group for b in blocks]}.")
        return self._join(blocks)


@dataclass(frozen=True, init=False, repr=False)
class Wreath(BlockGroup):
    """The wreath product ``G wr S_k``: ``k`` blocks that change places, each with its own element of ``G``.

    Attention heads whose bases are free, and the groups of a grouped convolution. ``Wreath(Trivial(1), k)`` is
    ``Permutation(k)``, ``Wreath(PositiveMonomial(1), k)`` is ``PositiveMonomial(k)``.

    Args:
        base: The group of one block.
        k: Number of blocks.

    Examples:
        >>> from intertwine.groups import Orthogonal
        >>> Wreath(Orthogonal(4), 3).dim
        18
    """

    exchanges = True
    base: Group = None  # type: ignore[assignment]
    k: int = 1

    def __init__(self, base: Group, k: int) -> None:
        if not isinstance(base, Group):
            raise TypeError(f"base must be a group. Got {base!r}.")
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a positive integer. Got {k!r}.")
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "n", base.n * k)

    def __repr__(self) -> str:
        return f"Wreath({self.base!r}, {self.k})"

    @property
    def parts(self) -> tuple[Group, ...]:
        """The base, for every block."""
        return (self.base,) * self.k

    def _holds(self, inner: Group) -> bool:
        if isinstance(inner, Wreath):
            return inner.k == self.k and inner.base.is_subgroup_of(self.base)
        if isinstance(inner, Product):
            return len(inner.factors) == self.k and all(f.is_subgroup_of(self.base) for f in inner.factors)
        return inner == Trivial(self.n)

    @property
    def words(self) -> str:
        """In words."""
        return f"{self.k} blocks permuted as wholes, in each: {self.base.words}"

    @property
    def log_components(self) -> float:
        """``log k!`` and that of every block."""
        return log_factorial(self.k) + super().log_components

    def element(self, order: list[int], blocks: list[MatrixElement]) -> BlockElement:
        """The element whose output block ``i`` is ``blocks[i]`` of input block ``order[i]``.

        Raises:
            ValueError: If ``order`` is no permutation of ``k`` blocks or a block is not of ``base``.
        """
        if sorted(order) != list(range(self.k)):
            raise ValueError(f"order must be a permutation of 0 .. {self.k - 1}. Got {order}.")
        if len(blocks) != self.k or any(b.group != self.base for b in blocks):
            raise ValueError(f"blocks must be {self.k} elements of {self.base!r}. Got {[b.group for b in blocks]}.")
        return self._join(blocks, order)


def _block(moment: Tensor | None, s: slice) -> Tensor | None:
    if moment is None:
        return None
    return moment[s, s] if moment.ndim == 2 else moment[s]
