"""Two networks matched component by component, while the spaces that components share are held still.

Shared spaces (residual streams) come first: their units are assigned by the profiles of all components, their signs
follow from tensors that carry nothing else. Every component is then matched by itself. Where that does not end in a
copy, the shared spaces are assigned anew by the inner products with everything else in place, as in coordinate descent.
A network of one component is matched at once. One component of each network is in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from .._memory import give_back
from .._progress import silenced, track
from ..symmetry.action import moved
from ..symmetry.blocks import map_leaves
from ..symmetry.coupling import Components, components, restricted
from ..symmetry.gauge.canonical import Folded, fold
from ..symmetry.spaces import Fixed, Layout, Leaf, Space, axis_size
from ..symmetry.symmetry import Symmetry
from ..symmetry.transformation import Transformation, identity, with_parts
from .coordinates.networks import Balanced
from .coordinates.problem import Both, Problem, Row, add_to
from .costs import paired, sketched
from .element_fit.consensus import by_consensus
from .element_fit.units import FOUND, UNRELATED, monomial
from .judgement.agreement import unrelated
from .judgement.deviation import HALVES, Deviation, above_quantile, constant, deviation, distance, joined
from .solvers.steps import best_signs, monomial_step, profiles_of

_COARSE = 1e-3  # relative fall of the residual that is worth another round
_HARDLY = 5e-3  # the same where nothing was found yet: a search that finds its way explains more
_PIECE = 1 << 20  # entries that are looked at at once

Shared = Mapping[str, tuple[int, ...]]  # spaces that components share -> their sign generators that they share


@dataclass(frozen=True, eq=False)
class Matched:
    """Two networks of which one was moved as close to the other as was found."""

    sym: Symmetry  # Theirs, batch norms folded
    g: Transformation  # The element that moves ``a``
    residual: float  # What is left then
    in_place: float  # What is left where nothing moves
    deviation: Deviation  # How far single weights and tensors are apart


class Pair:
    """Tensors to move and to meet, by components of at most ``limit`` weights where coupled tensors are not more."""

    def __init__(
        self, sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], limit: int | None = None
    ) -> None:
        self.sym, self.a, self.b, self.limit = sym, a, b, limit
        self.cut = Components((tuple(sym.layouts),), {}) if limit is None else components(sym, limit)
        whole = len(self.cut.names) == 1
        self.parts = [sym] if whole else [restricted(sym, names) for names in self.cut.names]
        self._seed: int | None = None
        # By component the elements that bring each side into balanced coordinates
        self._normal: tuple[dict[int, Transformation], dict[int, Transformation]] = {}, {}

    def unrelated(self, seed: int) -> "Pair":
        """The same with an unrelated network in the place of ``a`` (``chance``)."""
        other = Pair(self.sym, self.a, self.b, self.limit)
        other._seed, other._normal = seed, ({}, self._normal[1])
        return other

    def each(self, doing: str) -> Iterator[int]:
        """The components, one after the other, with a bar for long work; what is done with each shows none."""
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
        rounded = frozenset(n for n in left.sym.layouts if _halved(a[n]) or _halved(b[n]))
        if self._seed is not None:
            seed = self._seed + len(self.parts) * index
            left = replace(left, state=unrelated(left.sym, left.state, seed))
        return left, right, rounded

    def normal(self, index: int, *sides: Folded) -> tuple[Balanced, ...]:
        """One component of some networks in balanced coordinates."""
        known = [(side, to.get(index)) for side, to in zip(sides, self._normal)]
        found = tuple(Balanced.normal(side) if to is None else Balanced(side, to) for side, to in known)
        for to, side in zip(self._normal, found):
            to[index] = side.to
        return found

    def in_place(self) -> float:
        """The distance where nothing moves."""
        squares, weights = 0.0, 0
        for index in self.each("Comparing with chance"):
            a, b, _ = self.read(index)
            size = _count(b)
            squares, weights = squares + size * distance(a.state, b.state) ** 2, weights + size
        return (squares / max(weights, 1)) ** 0.5

    def agrees_in_place(self, limit: float) -> bool:
        """Whether 99.9 % of single weights deviate by no more than a limit where nothing moves."""
        beyond = weights = 0
        for index in self.each("Comparing in place"):
            a, b, _ = self.read(index)
            beyond += int((deviation(a, b, identity(self.parts[index]), count=self.count).largest > limit).sum())
            weights += _count(b)
            del a, b
            if beyond >= above_quantile(self.count):  # of which those in memory are a part
                return False
        return beyond < above_quantile(weights)

    @property
    def count(self) -> int:
        """Number of weights and statistics of one network."""
        return sum(prod(axis_size(axis) for axis in layout.axes) for layout in self.sym.layouts.values())


def matched(pair: Pair) -> Matched:
    """The element that brings the first network of a pair closest to the second."""
    search = _Rounds(pair)
    if not pair.cut.shared:
        return search.around(identity(pair.sym))
    best = search.descended(search.similar())
    if best.residual >= FOUND and best.in_place < UNRELATED:
        best = min(best, search.descended(identity(pair.sym)), key=lambda m: m.residual)
    return best


class _Rounds:
    """Rounds over all components of a pair."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.shared = pair, pair.cut.shared

    def similar(self) -> Transformation:
        """Shared spaces matched by the profiles of their units; their signs by tensors that carry nothing else."""
        near: dict[str, list[Both]] = {name: [] for name in self.shared}
        inner: dict[str, dict[Row, list[Both]]] = {name: {} for name in self.shared}
        for index in self.pair.each("Reading what parts share"):
            a, b, _ = self.pair.read(index)
            left, right = self.pair.normal(index, a, b)
            here = monomial(left.sym)
            stated = Problem.counted(here, meet=right.state, move=left.state)
            for name in self.shared.keys() & {s.name for s in here.spaces}:
                near[name] += profiles_of(stated, name)
                for m in stated.members[name] if self.shared[name] else ():
                    clean = not any(odd for k, odd in enumerate(m.row) if k not in self.shared[name])
                    if clean and {*m.block.spaces} <= {name, None}:  # nothing else can flip it
                        row = tuple(m.row[k] for k in self.shared[name])
                        ours, theirs = (sketched(m.read(x)) for x in (stated.a, stated.b))
                        inner[name].setdefault(row, []).append((ours, theirs))
            del a, b, left, right, stated  # before the next ones are read
        h = identity(self.pair.sym)
        for name, signs in self.shared.items():
            order = paired(near[name])
            assert order is not None  # components carry what they share
            h = _put(h, name, order, _flips(inner[name], order, len(signs)), signs)
        return h

    def descended(self, h: Transformation) -> Matched:
        """Rounds from a start of the shared spaces, as long as they help."""
        best = self.around(h)
        while best.residual >= FOUND:
            step = self._step(best.g)
            if step.is_identity():
                break
            h = step @ h
            found = self.around(h)
            worth = _COARSE if best.residual < UNRELATED else _HARDLY
            helped = found.residual < (1 - worth) * best.residual
            best = min(best, found, key=lambda m: m.residual)
            if not helped:
                break
        return best

    def around(self, h: Transformation) -> Matched:
        """Every component matched by itself, shared spaces held where ``h`` puts them."""
        pair, found, parts = self.pair, identity(self.pair.sym), list[Deviation]()
        squares = standing = 0.0
        layouts: dict[str, Layout] = {}
        for index in pair.each("Matching part by part"):
            a, b, rounded = pair.read(index)
            size = _count(b)
            standing += size * distance(a.state, b.state) ** 2
            layouts |= a.sym.layouts
            left, right = self._held(index, a, b, h)
            del a, b  # what was moved takes their place in memory
            g, residual, apart = by_consensus(left, right, rounded, pair.count, part=len(pair.parts) > 1)
            squares += size * residual**2
            del left, right
            parts = [joined([*parts, apart], pair.sym, pair.count)]  # all parts' largest would take memory
            found = _joined(found, g, self.shared)
        sym = replace(pair.sym, layouts=layouts, batch_norms=())
        apart = joined(parts, sym, pair.count)
        residual, in_place = ((x / max(apart.weights, 1)) ** 0.5 for x in (squares, standing))
        return Matched(sym, found @ h, residual, in_place, apart)

    def _held(self, index: int, a: Folded, b: Folded, h: Transformation) -> tuple[Balanced, ...]:
        """One component in balanced coordinates, ``a`` moved by ``h``, with nothing left to move of shared spaces."""
        left, right = self.pair.normal(index, a, b)
        if not self.shared:
            return left, right
        here = Transformation({s.name: h[s.name] for s in a.sym.spaces})
        held = _still(a.sym, self.shared)
        to_a, to_b = (self._projected(g, held) for g in (here @ left.to @ ~here, right.to))
        one = replace(a, sym=held, state={**a.state, **moved(a.sym, here, a.state)})
        other = replace(b, sym=held)
        return Balanced(one, to_a), Balanced(other, to_b)

    def _projected(self, g: Transformation, held: Symmetry) -> Transformation:
        """An element without permutations as one of the symmetry in which shared spaces are held."""
        found = identity(held)
        for name, e in g.elements.items():
            signs = e.signs[_local(e.signs, self.shared[name])] if name in self.shared else e.signs
            parts = {"scales": e.scales, "signs": signs} | ({} if e.linear is None else {"linear": e.linear})
            found = with_parts(found, name, **parts)
        return found

    def _step(self, g: Transformation) -> Transformation:
        """The best step of every shared space by the inner products with everything else in place."""
        products: dict[str, dict[Row, Tensor]] = {name: {} for name in self.shared}
        for index in self.pair.each("Matching what parts share"):
            a, b, _ = self.pair.read(index)
            to = self.pair.normal(index, a, b)[1].to
            here = Transformation({s.name: g[s.name] for s in a.sym.spaces})
            near = {**a.state, **moved(a.sym, to @ here, a.state)}
            normal = {**b.state, **moved(b.sym, to, b.state)}
            stated = Problem.counted(a.sym, meet=normal, move=near)
            del a, b, near, normal
            for name in self.shared.keys() & stated.members.keys():
                for m in stated.members[name]:
                    if m.block.spaces.count(name) == 1:
                        row = tuple(m.row[k] if m.row else 0 for k in self.shared[name])
                        add_to(products[name], row, m.read(stated.a) @ m.read(stated.b).mT)
            del stated
        step = identity(self.pair.sym)
        for name, signs in self.shared.items():
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
    """What is left of a symmetry where shared spaces are held: their scales, and the signs of one component alone."""

    def space(s: Space) -> Space:
        if s.name not in shared:
            return s
        return replace(s, group=s.group.reduced(permutes=False, signs=_local(range(s.group.signs), shared[s.name])))

    def leaf(old: Leaf) -> Leaf | Fixed:
        if old.space not in shared:
            return old
        sign = tuple(old.sign[k] for k in _local(old.sign, shared[old.space]))
        return replace(old, sign=sign) if any(sign) or any(old.scale) else Fixed(old.size, "held")

    layouts = {name: map_leaves(layout, leaf) for name, layout in sym.layouts.items()}
    return replace(sym, spaces=tuple(space(s) for s in sym.spaces), layouts=layouts)


def _joined(g: Transformation, part: Transformation, shared: Shared) -> Transformation:
    """``g`` with what one component says: all of its own spaces, scales and own signs of shared ones."""
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


def _halved(x: Tensor) -> bool:
    """Whether a tensor holds numbers of half precision only."""
    if constant(x) or x.dtype in HALVES:
        return not constant(x)
    pieces = x.flatten().split(_PIECE)
    return any(all(torch.equal(y, y.to(half).to(y.dtype)) for y in pieces) for half in HALVES)
