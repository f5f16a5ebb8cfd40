"""Alignment by weights as a problem: maximise ``Σ <a, g b>`` over the elements ``g`` of the remaining group.

Scales and general bases are removed first (``balanced``), so that ``g`` consists of permutations, signs and orthogonal
matrices. All of these keep norms, so that the largest inner product gives the smallest distance ``|a - g b|``.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..._io.lazy import State
from ...groups import Orthogonal, Semidirect, SpaceGroup, Trivial
from ...groups.dense import polar_factor
from ...symmetry.action import transform_block
from ...symmetry.blocks import Member, blocks, carrying, inner_products
from ...symmetry.coupling import narrowed, regrouped
from ...symmetry.spaces import Layout, Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts

Row = tuple[int, ...]  # parity of each sign generator of a space
Both = tuple[Tensor, Tensor]  # of the network that stays, and of the network that moves


def members(sym: Symmetry) -> dict[str, tuple[Member, ...]]:
    """The block dimensions that carry each space, tensor by tensor."""
    return {space.name: tuple(carrying(sym.layouts, space)) for space in sym.spaces}


def add_to(found: dict[Row, Tensor], row: Row, product: Tensor) -> None:
    """Add a product to the sum for its parities."""
    found[row] = found[row] + product if row in found else product


@dataclass(frozen=True, eq=False)
class Problem:
    """Two networks in balanced coordinates, and the part of the group that is searched."""

    sym: Symmetry  # The group that acts on the coordinates: permutations, signs and orthogonal matrices
    a: State  # Tensors to meet
    b: State  # Tensors to move
    to_a: Transformation  # The element that brought ``a`` into these coordinates
    to_b: Transformation  # The element that brought ``b`` into them
    full: Symmetry  # The symmetry of the networks themselves, to which ``to_a`` and ``to_b`` belong

    @classmethod
    def plain(cls, sym: Symmetry, a: State, b: State, full: Symmetry | None = None) -> "Problem":
        """The problem of networks compared in their own coordinates."""
        still = identity(full or sym)
        return cls(sym, a, b, still, still, full or sym)

    @classmethod
    def counted(
        cls,
        sym: Symmetry,
        *,
        meet: State,
        move: State,
        votes: Mapping[str, float] | None = None,
        dtype: torch.dtype | None = None,
    ) -> "Problem":
        """The problem in which each tensor to ``meet`` has its number of entries, times its vote, as squared norm."""
        means = {name: float(meet[name].square().mean()) for name in sym.layouts}
        factors = {n: ((1.0 if votes is None else votes[n]) / (mean or 1.0)) ** 0.5 for n, mean in means.items()}
        scaled = lambda state: {n: (state[n] * x).to(dtype or state[n].dtype) for n, x in factors.items()}
        return cls.plain(sym, scaled(meet), scaled(move))

    @cached_property
    def members(self) -> dict[str, tuple[Member, ...]]:
        """The block dimensions that carry each space."""
        return members(self.sym)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The precision of the tensors."""
        return next((t.dtype for t in self.a.values()), torch.float64)

    @cached_property
    def size(self) -> float:
        """``|a| |b|``, the largest possible objective."""
        ours, theirs = (sum(float(torch.linalg.vector_norm(x)) ** 2 for x in s.values()) for s in (self.a, self.b))
        return (ours * theirs) ** 0.5

    def objective(self, g: Transformation) -> float:
        """``Σ <a, g b>``, summed in float64."""
        inner = lambda x, y: float(inner_products(x, y, range(x.ndim)))  # holds no tensor while others are read
        return sum(
            inner(block.read(self.a[name]), transform_block(block.read(self.b[name]), block, g))
            for name, layout in self.sym.layouts.items()
            if name in self.a
            for block in blocks(layout)
        )

    def turning(self, ones: Collection[str]) -> "Problem":
        """The problem with rotating streams, some of which must keep the vector of ones.

        The mean along these streams, which no such rotation changes, is subtracted from all tensors. Every tensor is
        divided by the root of its norm, so that no few tensors outvote all others. A tensor of ones is then added to
        each of these streams, so that the closest rotation keeps it.
        """
        ones = {s.name for s in self.sym.spaces if s.name in ones and s.group.mixes}
        layouts = dict(self.sym.layouts)

        def even(name: str, x: Tensor) -> Tensor:
            x = _centred(x, layouts[name], ones) if layouts[name].spaces & ones else x
            norm = float(torch.linalg.vector_norm(x))
            return x * (norm**-0.5 if norm else 1.0)

        a, b = ({name: even(name, x) for name, x in state.items()} for state in (self.a, self.b))
        evened = replace(self, a=a, b=b)
        size = 0.1 * max(evened.size, 1e-300) ** 0.5
        for space in ones:
            leaf = next(carrying(self.sym.layouts, self.sym.space(space))).leaf
            layouts[f"ones of {space}"] = Layout((replace(leaf, variance=1),))
            like = next(iter(a.values()))
            a[f"ones of {space}"] = b[f"ones of {space}"] = like.new_full((leaf.size,), size * leaf.size**-0.5)
        return replace(evened, sym=replace(self.sym, layouts=layouts), a=a, b=b)

    def lift(self, g: Transformation) -> Transformation:
        """The element that moves the network ``b`` into the basis of ``a``, from an element of these coordinates."""
        return ~self.to_a @ (within(g, self.full) @ self.to_b)


def _centred(x: Tensor, layout: Layout, spaces: Collection[str]) -> Tensor:
    """A tensor without its mean along some spaces."""
    x = x.clone()
    for block in blocks(layout):
        piece = block.read(x)
        for dim, leaf in block.carried:
            if leaf.space in spaces:
                piece = piece - piece.mean(dim, keepdim=True)
        x = block.write(x, piece)
    return x


def keeping(matrix: Tensor) -> Tensor:
    """The closest rotation ``(n, n)`` that keeps the vector of ones."""
    centre = torch.eye(len(matrix)).to(matrix) - 1 / len(matrix)
    return polar_factor(centre @ matrix @ centre + 1 / len(matrix))


def within(g: Transformation, sym: Symmetry) -> Transformation:
    """A searched element as one of the whole symmetry: without scales, and with signs only if all were searched."""
    full = identity(sym)
    for name, e in g.elements.items():
        signs = e.signs if e.signs.shape == full[name].signs.shape else full[name].signs
        full = with_parts(full, name, permutation=e.permutation, signs=signs, linear=e.linear)
    return full


def searched(sym: Symmetry, kinds: Collection[str]) -> Symmetry:
    """The symmetry to search in balanced coordinates: no scales, rotations for bases, no batch-norm statistics."""
    linear = sym.mixing if "linear" in kinds else frozenset()
    signs = None if "sign" in kinds else 0

    def group(s: Space) -> SpaceGroup:
        if s.name in linear:
            return Semidirect(Orthogonal(s.size, special=s.group.turns), Trivial(s.size))
        return s.group.reduced(permutes="permutation" in kinds, scales=0, signs=signs, mixes=False)

    groups = {s.name: group(s) for s in sym.spaces}
    weights = narrowed(sym, sym.layouts.keys() - sym.statistics)
    return replace(regrouped(weights, groups, lambda leaf: unscaled(leaf, groups[leaf.space])), batch_norms=())


def single_spaces(sym: Symmetry) -> list[Space]:
    """Spaces whose units permute singly: they have no parents or children, and no basis mixes their units."""
    whole = [s for s in sym.spaces if not s.parents and s.name not in sym.outer]
    return [s for s in whole if s.group.permutes and not s.group.mixes]


def unscaled(leaf: Leaf, group: SpaceGroup) -> Leaf:
    """A leaf under the searched part of its space's group: no scales, and rotations acting in one way only."""
    if group.mixes:
        return replace(leaf, scale=(), sign=(), variance=1)
    return replace(leaf, scale=(), sign=leaf.sign if group.signs else (), variance=0)
