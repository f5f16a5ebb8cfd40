r"""The size of the group: dimension of its continuous part and size of its discrete part, overlaps counted once.

A generator on a space with parents is one number for every unit and every unit of the parents: a function on a
product of finite sets. Over any field, functions on a set are the constants plus those that vanish at the first unit,
so functions on a product split into one component for each subset ``U`` of the factors, of size ``prod_{u in U} (n_u
- 1)``. The action on tensors respects the split, so the number of independent directions is

    sum_U  rank(M_U) * prod_{u in U} (n_u - 1)

where ``M_U`` has a column for every generator whose factors include ``U`` and a row for every place in every tensor.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import chain, combinations
from math import log, prod

from ...groups import Permutation
from ..blocks import blocks
from ..detection.linear_equations import BinaryEquations, RationalEquations
from ..parent_axes import parent_dims
from ..spaces import Layout, Leaf, Space


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
