"""Description of a symmetry group: spaces, and how the axes of every tensor are made of them.

The size of the group: dimension of its continuous part and size of its discrete part, overlaps counted once.

A generator on a space with parents is one number for every unit and every unit of the parents: a function on a
product of finite sets. Over any field, functions on a set are the constants plus those that vanish at the first unit,
so functions on a product split into one component for each subset ``U`` of the factors, of size ``prod_{u in U} (n_u
- 1)``. The action on tensors respects the split, so the number of independent directions is

    sum_U  rank(M_U) * prod_{u in U} (n_u - 1)

where ``M_U`` has a column for every generator whose factors include ``U`` and a row for every place in every tensor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations
from math import log, prod

import torch

from .._attributes import Cache
from .._words import counted, near
from ..groups import Permutation
from ..programs import Vertex
from .blocks import blocks, parent_dims
from .detection.equations import BinaryEquations, RationalEquations
from .spaces import UNREAD, BatchNormTensors, FixedAxis, Layout, Leaf, Space
from .titles import titles

__all__ = ["Description"]

_SHOWN = 6  # names of spaces in an error


@dataclass(frozen=True, repr=False)
class Description:
    """Fields of a ``Symmetry``, and what follows from them alone.

    Attributes:
        spaces: The hidden spaces that the group moves.
        layouts: For every parameter and every buffer that moves, by state-dict name, how its axes are made of spaces.
        fixed: Every parameter axis, or part of one, that stays where it is, and why.
        batch_norms: Normalisation calls whose variance follows ``a^2 (v + eps) - eps``.
        aliases: Tied names to the name under which the shared tensor is described.
        dtype: Lowest floating-point precision seen while the model ran; tolerances follow from it.
        path_only: Whether a number was taken out of an activation, so that only the path that was run is certified.
        notes: What a reader should know, such as the line that read a number.
        unknown_ops: Operations without a rule; everything they touched is fixed.
        caches: Where the model keeps tensors that a run computed; ``act`` leaves them out of the twin.
        features: For every module whose output moves, by tap name, how its axes are made of spaces (at the example's
            shapes). Outputs of which a run says too little are left out.
        gates: The same for every ReLU, by the name that ``iw.gates.gate_patterns`` gives it; not for ``|q|``, whose
            gates follow the signs of units.
        graph: Modules and what joins them, in order of the run, with the spaces of the tensors between them; to draw.
    """

    spaces: tuple[Space, ...]
    layouts: Mapping[str, Layout]
    fixed: tuple[FixedAxis, ...] = ()
    batch_norms: tuple[BatchNormTensors, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    path_only: bool = False
    notes: tuple[str, ...] = ()
    unknown_ops: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    features: Mapping[str, Layout] = field(default_factory=dict)
    gates: Mapping[str, Layout] = field(default_factory=dict)
    graph: tuple[Vertex, ...] = field(default=(), compare=False)

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """What people call each space, such as ``"layer 3: MLP units"``, by its name."""
        return titles(self.spaces, self.layouts)

    @cached_property
    def carriers(self) -> Mapping[str, tuple[str, ...]]:
        """For every space the names of the tensors that carry it."""
        return {s.name: tuple(n for n, layout in self.layouts.items() if s.name in layout.spaces) for s in self.spaces}

    @property
    def unread(self) -> tuple[str, ...]:
        """Parameters and buffers that the outputs do not depend on, in the runs that were captured."""
        every = {(f.tensor, f.axis) for f in self.fixed if f.reason == UNREAD}
        return tuple(n for n, lay in self.layouts.items() if all((n, d) in every for d in range(len(lay.axes))))

    @property
    def certified(self) -> str:
        """For which inputs the function is the same, in words."""
        if not self.path_only:
            return "every input of the example's shapes"
        unread = f"; {counted(len(self.unread), 'tensor')} not read there" if self.unread else ""
        return f"inputs that take the path of the example{unread}"

    @property
    def dim(self) -> int:
        """Dimension of the continuous part: scalings, orthogonal and general linear maps, overlaps counted once."""
        return continuous(self.spaces, self.layouts)

    @property
    def log_size(self) -> float:
        """Natural logarithm of the number of discrete elements: permutations and signs."""
        return log_discrete(self.spaces, self.layouts)

    def space(self, name: str) -> Space:
        """The space of that name.

        Raises:
            ValueError: If there is none.
        """
        for space in self.spaces:
            if space.name == name:
                return space
        names = [space.name for space in self.spaces]
        shown = f"{', '.join(map(repr, names[:_SHOWN]))}{', ...' if len(names) > _SHOWN else ''}"
        raise ValueError(f"name must be one of the {len(names)} spaces: {shown}. Got {name!r}.{near(name, names)}")


def continuous(spaces: Sequence[Space], layouts: Mapping[str, Layout]) -> int:
    """Dimension of the continuous part: positive scales, O(n) and GL(n)."""
    sizes = {s.name: s.size for s in spaces}
    linear = [(s, s.group.linear) for s in spaces if s.group.linear is not None]
    # the diagonal of a general matrix overlaps with the scales: it is counted among them
    mixing = sum((m.dim - m.n * s.group.is_general) * prod(sizes[p] for p in s.parents) for s, m in linear)

    def exponents(space: Space, leaf: Leaf) -> list[Fraction]:
        diagonal = [Fraction(leaf.variance)] if space.group.is_general else []
        return [*leaf.scale, *diagonal]

    def rank(rows: list[dict]) -> int:
        equations = RationalEquations()
        for row in rows:
            equations.add(row)
        return equations.rank

    return mixing + _independent(spaces, layouts, exponents, rank)


def log_discrete(spaces: Sequence[Space], layouts: Mapping[str, Layout]) -> float:
    """Natural logarithm of the number of permutations and independent signs outside O(n) and GL(n)."""
    sizes = {s.name: s.size for s in spaces}
    monomial = [s for s in spaces if s.group.permutes and not s.group.mixes]
    permutations = sum(Permutation(s.size).log_components * prod(sizes[p] for p in s.parents) for s in monomial)

    def exponents(space: Space, leaf: Leaf) -> list[Fraction]:
        return [] if space.group.mixes else [Fraction(e % 2) for e in leaf.sign]

    def rank(rows: list[dict]) -> int:
        equations = BinaryEquations()
        for row in rows:
            equations.add({v for v, c in row.items() if c % 2})
        return equations.rank

    return permutations + log(2) * _independent(spaces, layouts, exponents, rank)


def _independent(
    spaces: Sequence[Space],
    layouts: Mapping[str, Layout],
    exponents: Callable[[Space, Leaf], list[Fraction]],
    rank: Callable[[list[dict]], int],
) -> int:
    by_name = {s.name: s for s in spaces}
    matrices: dict[frozenset[str], dict[tuple, dict]] = {}
    for tensor, layout in layouts.items():
        for b, block in enumerate(blocks(layout)):
            for slot, leaf in block.carried:
                space = by_name[leaf.space]
                place = dict(zip((*space.parents, space.name), parent_dims(space, slot, block.spaces)))
                factors = tuple(place)
                for k, e in enumerate(exponents(space, leaf)):
                    for chosen in chain.from_iterable(combinations(factors, r) for r in range(len(factors) + 1)):
                        at = tuple(sorted(place[name] for name in chosen))
                        row = matrices.setdefault(frozenset(chosen), {}).setdefault((tensor, b, at), {})
                        column = (space.name, k)
                        row[column] = row.get(column, Fraction(0)) + e
    sizes = {s.name: s.size for s in spaces}
    return sum(rank(list(rows.values())) * prod(sizes[u] - 1 for u in chosen) for chosen, rows in matrices.items())
