"""Matching of two networks component by component, with the spaces that components share held still.

Shared spaces (residual streams) come first: their units are assigned by the profiles of all components, and their signs
follow from tensors that carry no other space. Every component is then matched by itself. If the result is not a copy,
the shared spaces are reassigned by the inner products with everything else in place, as in coordinate descent.
A network of one component is matched at once. Only one component of each network is in memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from .._io.lazy import State
from .._memory import give_back
from .._progress import silenced, track
from ..symmetry.action import moved
from ..symmetry.coupling import Components, components, narrowed, regrouped, restricted
from ..symmetry.gauge.canonical import Folded, fold
from ..symmetry.spaces import Fixed, Layout, Leaf
from ..symmetry.symmetry import Symmetry
from ..symmetry.transformation import Transformation, identity, with_parts
from .coordinates.networks import Balanced
from .coordinates.problem import Both, Problem, Row, add_to
from .costs import paired, sketched
from .element_fit.consensus import by_consensus
from .element_fit.units import FOUND, UNRELATED, monomial
from .judgement.agreement import unrelated
from .judgement.deviation import Deviation, above_quantile, combined, deviation, distance, halved, joined
from .solvers.steps import best_signs, monomial_step, profiles_of

_COARSE = 1e-3  # relative fall of the residual that justifies another round
_HARDLY = 5e-3  # the same before anything is found: a search on the right track explains more

Shared = Mapping[str, tuple[int, ...]]  # shared spaces -> their shared sign generators


@dataclass(frozen=True, eq=False)
class Matched:
    """Two networks, one of which was moved as close to the other as the search could."""

    sym: Symmetry  # The symmetry of both, batch norms folded
    g: Transformation  # The element that moves ``a``
    residual: float  # The residual after the move
    in_place: float  # The residual if nothing moves
    deviation: Deviation  # The deviation of single weights and tensors


@dataclass(frozen=True, eq=False)
class Pair:
    """Tensors to move and to meet, in components of at most ``limit`` weights, unless coupled tensors have more."""

    sym: Symmetry
    a: State
    b: State
    limit: int | None = None
    seed: int | None = None  # Of the unrelated network that replaces ``a``, if any
    # By component: the elements that bring each side into balanced coordinates
    _normal: tuple[dict[int, Transformation], ...] = field(default_factory=lambda: ({}, {}))

    @cached_property
    def cut(self) -> Components:
        """The components, and what they share."""
        return Components((tuple(self.sym.layouts),), {}) if self.limit is None else components(self.sym, self.limit)

    @cached_property
    def parts(self) -> list[Symmetry]:
        """The symmetry of every component."""
        return [restricted(self.sym, some) for some in self.cut.names] if len(self.cut.names) > 1 else [self.sym]

    @property
    def shared(self) -> Shared:
        """The spaces that components share, each with its shared sign generators."""
        return self.cut.shared

    def narrowed(self, names: Iterable[str]) -> "Pair":
        """The pair restricted to some of the tensors."""
        return Pair(narrowed(self.sym, names), self.a, self.b, self.limit)

    def unrelated(self, seed: int) -> "Pair":
        """The pair with an unrelated network in place of ``a`` (``chance``)."""
        return replace(self, seed=seed, _normal=({}, self._normal[1]))

    def each(self, doing: str) -> Iterator[int]:
        """The components in turn, with a progress bar for long work; the work on each shows none."""
        several = len(self.parts) > 1
        for index in track(range(len(self.parts)), doing, enabled=None if several else False):
            with silenced(several):
                yield index

    def read(self, index: int) -> tuple[Folded, Folded, frozenset[str]]:
        """One component of both networks, batch norms folded, and its tensors that hold numbers of half precision."""
        give_back()
        part = self.parts[index]
        a, b = ({name: state[name] for name in part.layouts if name in state} for state in (self.a, self.b))
        double = torch.float64 in {x.dtype for state in (a, b) for x in state.values()}
        left, right = (fold(part, state, torch.float64 if double else torch.float32) for state in (a, b))
        rounded = frozenset(n for n in left.sym.layouts if halved(a[n]) or halved(b[n]))
        if self.seed is not None:
            left = replace(left, state=unrelated(left.sym, left.state, self.seed + len(self.parts) * index))
        return left, right, rounded

    def normal(self, index: int, *sides: Folded) -> tuple[Balanced, ...]:
        """One component of some networks in balanced coordinates."""
        known = [(side, to.get(index)) for side, to in zip(sides, self._normal)]
        found = tuple(Balanced.normal(side) if to is None else Balanced(side, to) for side, to in known)
        for to, side in zip(self._normal, found):
            to[index] = side.to
        return found

    def in_place(self) -> float:
        """The distance if nothing moves."""
        distances, sizes = dict[int, float](), dict[int, int]()
        for index in self.each("Comparing with chance"):
            a, b, _ = self.read(index)
            distances[index], sizes[index] = distance(a.state, b.state), _count(b)
        return combined(distances, sizes)

    def agrees_in_place(self, limit: float) -> bool:
        """Whether 99.9 % of single weights deviate by no more than a limit if nothing moves."""
        beyond = weights = 0
        for index in self.each("Comparing in place"):
            a, b, _ = self.read(index)
            beyond += int((deviation(a, b, identity(self.parts[index]), count=self.count).largest > limit).sum())
            weights += _count(b)
            del a, b
            if beyond >= above_quantile(self.count):  # those in memory are only a part of all
                return False
        return beyond < above_quantile(weights)

    @property
    def count(self) -> int:
        """Number of weights and statistics of one network."""
        return sum(prod(layout.shape) for layout in self.sym.layouts.values())


def matched(pair: Pair) -> Matched:
    """The element that brings the first network of a pair closest to the second."""
    if not pair.shared:
        return _around(pair, identity(pair.sym))
    best = _descended(pair, _similar(pair))
    if best.residual >= FOUND and best.in_place < UNRELATED:
        best = min(best, _descended(pair, identity(pair.sym)), key=lambda m: m.residual)
    return best


def _similar(pair: Pair) -> Transformation:
    """Shared spaces matched by the profiles of their units, with signs from tensors that carry no other space."""
    near: dict[str, list[Both]] = {name: [] for name in pair.shared}
    inner: dict[str, dict[Row, list[Both]]] = {name: {} for name in pair.shared}
    for index in pair.each("Reading what parts share"):
        a, b, _ = pair.read(index)
        left, right = pair.normal(index, a, b)
        here = monomial(left.sym)
        stated = Problem.counted(here, meet=right.state, move=left.state)
        for name in pair.shared.keys() & {s.name for s in here.spaces}:
            near[name] += profiles_of(stated, name)
            for m in stated.members[name] if pair.shared[name] else ():
                clean = not any(odd for k, odd in enumerate(m.row) if k not in pair.shared[name])
                if clean and {*m.block.spaces} <= {name, None}:  # no other space can flip it
                    row = tuple(m.row[k] for k in pair.shared[name])
                    ours, theirs = (sketched(m.read(x)) for x in (stated.a, stated.b))
                    inner[name].setdefault(row, []).append((ours, theirs))
        del a, b, left, right, stated  # before the next component is read
    h = identity(pair.sym)
    for name, signs in pair.shared.items():
        order = paired(near[name])
        assert order is not None  # components carry what they share
        h = _put(h, name, order, _flips(inner[name], order, len(signs)), signs)
    return h


def _descended(pair: Pair, h: Transformation) -> Matched:
    """The result of rounds from a start of the shared spaces, for as long as they help."""
    best = _around(pair, h)
    while best.residual >= FOUND:
        step = _step(pair, best.g)
        if step.is_identity():
            break
        h = step @ h
        found = _around(pair, h)
        worth = _COARSE if best.residual < UNRELATED else _HARDLY
        helped = found.residual < (1 - worth) * best.residual
        best = min(best, found, key=lambda m: m.residual)
        if not helped:
            break
    return best


def _around(pair: Pair, h: Transformation) -> Matched:
    """Every component matched by itself, with shared spaces held where ``h`` puts them."""
    found, parts = identity(pair.sym), list[Deviation]()
    residuals, in_place, sizes = dict[int, float](), dict[int, float](), dict[int, int]()
    layouts: dict[str, Layout] = {}
    for index in pair.each("Matching part by part"):
        a, b, rounded = pair.read(index)
        in_place[index], sizes[index] = distance(a.state, b.state), _count(b)
        layouts |= a.sym.layouts
        left, right = _held(pair, index, a, b, h)
        del a, b  # the moved tensors take their place in memory
        g, residuals[index], apart = by_consensus(left, right, rounded, pair.count, part=len(pair.parts) > 1)
        del left, right
        parts = [joined([*parts, apart], pair.sym, pair.count)]  # keeping the largest of all parts would take memory
        found = _joined(found, g, pair.shared)
    sym = replace(pair.sym, layouts=layouts, batch_norms=())
    apart = joined(parts, sym, pair.count)
    return Matched(sym, found @ h, combined(residuals, sizes), combined(in_place, sizes), apart)


def _held(pair: Pair, index: int, a: Folded, b: Folded, h: Transformation) -> tuple[Balanced, ...]:
    """One component in balanced coordinates, with ``a`` moved by ``h`` and shared spaces held."""
    left, right = pair.normal(index, a, b)
    if not pair.shared:
        return left, right
    here = Transformation({s.name: h[s.name] for s in a.sym.spaces})
    held = _still(a.sym, pair.shared)
    to_a, to_b = (_projected(g, held, pair.shared) for g in (here @ left.to @ ~here, right.to))
    one = replace(a, sym=held, state={**a.state, **moved(a.sym, here, a.state)})
    other = replace(b, sym=held)
    return Balanced(one, to_a), Balanced(other, to_b)


def _projected(g: Transformation, held: Symmetry, shared: Shared) -> Transformation:
    """An element without permutations, as an element of the symmetry with shared spaces held."""
    found = identity(held)
    for name, e in g.elements.items():
        signs = e.signs[_local(e.signs, shared[name])] if name in shared else e.signs
        found = with_parts(found, name, scales=e.scales, signs=signs, linear=e.linear)
    return found


def _step(pair: Pair, g: Transformation) -> Transformation:
    """The best step of every shared space, by the inner products with everything else in place."""
    products: dict[str, dict[Row, Tensor]] = {name: {} for name in pair.shared}
    for index in pair.each("Matching what parts share"):
        a, b, _ = pair.read(index)
        to = pair.normal(index, a, b)[1].to
        here = Transformation({s.name: g[s.name] for s in a.sym.spaces})
        near = {**a.state, **moved(a.sym, to @ here, a.state)}
        normal = {**b.state, **moved(b.sym, to, b.state)}
        stated = Problem.counted(a.sym, meet=normal, move=near)
        del a, b, near, normal
        for name in pair.shared.keys() & stated.members.keys():
            for m in stated.members[name]:
                if m.block.spaces.count(name) == 1:
                    row = tuple(m.row[k] if m.row else 0 for k in pair.shared[name])
                    add_to(products[name], row, m.read(stated.a) @ m.read(stated.b).mT)
        del stated
    step = identity(pair.sym)
    for name, signs in pair.shared.items():
        order, flips = monomial_step(products[name], len(signs), permutable=True)
        step = _put(step, name, order, flips, signs)
    return step


def _flips(inner: Mapping[Row, list[Both]], order: Tensor, signs: int) -> Tensor:
    """Signs ``(k, n)`` that make the inner products of matched units positive, from their sketches."""
    products = {
        row: torch.stack([(x * y[order]).sum(1) for x, y in some]).sum(0)[:, None, None] for row, some in inner.items()
    }
    if not any(map(any, products)):
        return torch.ones(signs, len(order))
    return best_signs(products, signs)[1](torch.zeros(len(order), 1, dtype=torch.int64))[..., 0]


def _still(sym: Symmetry, shared: Shared) -> Symmetry:
    """The symmetry that remains with shared spaces held: of these, scales and signs of single components."""
    group = lambda s: s.group.reduced(permutes=False, signs=_local(range(s.group.signs), shared[s.name]))

    def leaf(old: Leaf) -> Leaf | Fixed:
        if old.space not in shared:
            return old
        sign = tuple(old.sign[k] for k in _local(old.sign, shared[old.space]))
        return replace(old, sign=sign) if any(sign) or any(old.scale) else Fixed(old.size, "held")

    return regrouped(sym, {s.name: group(s) for s in sym.spaces if s.name in shared}, leaf)


def _joined(g: Transformation, part: Transformation, shared: Shared) -> Transformation:
    """``g`` updated by one component: all of its own spaces, and scales and own signs of shared ones."""
    for name, e in part.elements.items():
        if name not in shared:
            g = Transformation({**g.elements, name: e}, g.certified)
            continue
        signs = g[name].signs.clone()
        signs[_local(signs, shared[name])] *= e.signs
        g = with_parts(g, name, scales=g[name].scales + e.scales, signs=signs)
    return g


def _local(signs: Sequence[int] | Tensor, shared: tuple[int, ...]) -> list[int]:
    """Numbers of sign generators that are not shared."""
    return [k for k in range(len(signs)) if k not in shared]


def _put(g: Transformation, name: str, order: Tensor, flips: Tensor, signs: tuple[int, ...]) -> Transformation:
    """``g`` with the permutation and the shared signs of one space."""
    every = torch.ones_like(g[name].signs)
    every[list(signs)] = flips.to(every)
    return with_parts(g, name, permutation=order, signs=every)


def _count(folded: Folded) -> int:
    return sum(x.numel() for x in folded.state.values())
