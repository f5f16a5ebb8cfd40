"""The element that brings one network closest to another: units matched in balanced coordinates, then all is fitted."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._memory import give_back
from ..._progress import track
from ...groups import Representation, SignedPermutation
from ...symmetry.action import moved, transform
from ...symmetry.blocks import inner_products, map_leaves
from ...symmetry.coupling import narrowed
from ...symmetry.gauge.canonical import arranged
from ...symmetry.gauge.signs import signing
from ...symmetry.spaces import Fixed, Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.balanced import Balanced
from ..coordinates.problem import Problem
from ..judgement.deviation import combined, distance, sine
from ..solvers.coordinate_descent import CoordinateDescent, descend
from ..solvers.starts import profiles
from .refit import Fit

_STARTS = 3
FOUND = 1e-2  # residual at which copies are found, and only rounding remains
_LARGE = 100_000  # weights above which costs are float32
APART = 0.97  # residual in place of networks whose units have nothing in common there
_UNRELATED = 0.8  # residual above which small gains are not pursued
_COARSE = 1e-3  # relative gain of a sweep that is small
_CLOSE = 0.98  # squared cosine of tensors that all count alike
_RIDGE = 0.01  # squared sine of tensors that get half the weight of equal ones
FITS = 40  # rounds of bases and scales in turn: copies need one or two, bases that meet in one tensor dozens
_HELPS = 0.99  # share of the residual that a fit must fall below to be followed by another


class UnitMatch(NamedTuple):
    """Matched units."""

    g: Transformation  # The element of permutations and signs that moves ``a``
    residual: float  # ``distance`` of the moved ``a`` from ``b``


def monomial(sym: Symmetry) -> Symmetry:
    """The symmetry that is left in normal bases: linear spaces keep permutations and one sign per unit.

    What neither changes places nor signs is fixed, unless units of other spaces lie in it.
    """
    linear = {s.name for s in sym.spaces if s.group.mixes}
    outer = {parent for s in sym.spaces for parent in s.parents}

    def space(s: Space) -> Space:
        return replace(s, group=SignedPermutation(s.size) if s.name in linear else s.group.reduced(scales=0))

    spaces = tuple(space(s) for s in sym.spaces)
    still = {s.name for s in spaces if not s.group.permutes and not s.group.signs and s.name not in outer}

    def leaf(old: Leaf) -> Leaf | Fixed:
        if old.space in still:
            return Fixed(old.size, "neither permuted nor flipped")
        return replace(old, scale=(), sign=(1,) if old.space in linear else old.sign, variance=0)

    layouts = {name: map_leaves(layout, leaf) for name, layout in sym.layouts.items()}
    return replace(sym, spaces=spaces, layouts=layouts)


def match_units(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    votes: Mapping[str, float] | None = None,
    start: Transformation | None = None,
) -> UnitMatch:
    """Permutations and signs that bring the weights ``a`` close to ``b``, by coordinate descent from several starts.

    Starts, until one is good enough: the canonical forms of both, which meet for copies; similar weight profiles, with
    all signs solved together; units in place, as fine-tuning leaves them. Costs are float32 in networks of more than
    100,000 weights; residuals are always float64. The answer is the best local optimum, exact for copies with distinct
    units. Coordinates are balanced, without scales and matrices (``monomial``); ``votes`` weight each tensor's entries
    in the costs, all alike by default; ``start`` is the only one where it is known.
    """
    search = _Search(sym, a, b, votes)
    if start is not None:
        return search.descended(start)
    best = search.judged(identity(sym))
    if not search.sym.layouts:
        return best
    for candidate in track(search.candidates(in_place=best.residual), "Matching units", _STARTS, enabled=None):
        best = min(best, candidate(), key=lambda m: m.residual)
        if best.residual < FOUND:
            break
    return best


class _Search:
    """Searches of one pair of networks; tensors that the symmetry does not move are compared, and not searched."""

    def __init__(
        self, sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], votes: Mapping[str, float] | None
    ) -> None:
        self.a, self.b = a, b
        self.sym = narrowed(sym, {n for n, layout in sym.layouts.items() if layout.spaces})
        self.votes = dict.fromkeys(sym.layouts, 1.0) if votes is None else votes
        self.large = sum(b[name].numel() for name in sym.layouts) > _LARGE
        self._posed: tuple[Mapping[str, float], Problem] | None = None

    def judged(self, g: Transformation) -> UnitMatch:
        """An element with its residual."""
        if self.large:
            give_back()  # the moved tensors take the most memory
        return UnitMatch(g, distance(self._near(g), self.b))

    def candidates(self, in_place: float) -> Iterator[Callable[[], UnitMatch]]:
        """Starts and what descent makes of them, to be computed one after the other.

        Where signs alone are free, they follow from products in place. Large networks start in place only where their
        units share something there: ``in_place`` is that residual.
        """
        if not any(s.group.permutes or s.group.mixes or s.parents for s in self.sym.spaces):
            yield lambda: self.judged(self._agreeing(identity(self.sym)))
            return
        yield lambda: self.judged(~arranged(self.sym, self.b) @ arranged(self.sym, self.a))
        yield lambda: self.descended(self._agreeing(profiles(self._problem(self.votes))))
        if in_place < APART or not self.large:
            yield lambda: self.descended(identity(self.sym))

    def descended(self, start: Transformation) -> UnitMatch:
        """The local optimum; where the networks are unrelated, close to it.

        A second descent weights every tensor by how well it agrees after the first one, and is kept if the residual is
        smaller: so tensors that were replaced do not outvote the others.
        """
        generator = torch.Generator().manual_seed(0)
        votes = self.votes
        found = descend(self._problem(votes), start, generator, CoordinateDescent(tolerance=_COARSE))
        first = self.judged(found.g)
        if found.history[-1] < (1 - _UNRELATED**2) ** 0.5 * self._problem(votes).size:
            return first
        near = self._near(first.g)
        squares = {n: max(_cosine(near[n], self.b[n]), 0.0) ** 2 for n in self.sym.layouts}  # 0 beyond a right angle
        del near
        if min(squares.values(), default=1.0) < _CLOSE:
            votes = {n: self.votes[n] * c / (1 - c + _RIDGE) for n, c in squares.items()}
        again = self.judged(descend(self._problem(votes), first.g, generator).g)
        return min(first, again, key=lambda m: m.residual)

    def _problem(self, votes: Mapping[str, float]) -> Problem:
        """The problem in which the squared norm of every tensor of ``b`` is its number of entries, times its vote.

        Of several only that of the last votes is kept: it holds copies of both networks.
        """
        if self._posed is not None and self._posed[0] == votes:
            return self._posed[1]
        self._posed = None
        give_back()
        names = self.sym.layouts
        dtype = torch.float32 if self.large else torch.float64
        means = {name: float(self.b[name].square().mean()) for name in names}
        factors = {name: (votes[name] / mean if mean > 0 else votes[name]) ** 0.5 for name, mean in means.items()}
        sides = [{name: (state[name] * factors[name]).to(dtype) for name in names} for state in (self.b, self.a)]
        self._posed = votes, Problem.plain(self.sym, sides[0], sides[1])
        return self._posed[1]

    def _near(self, g: Transformation) -> dict[str, Tensor]:
        return {**self.a, **moved(self.sym, g, self.a)}

    def _agreeing(self, g: Transformation) -> Transformation:
        """``g`` with the signs that make its products with ``b`` positive, largest first.

        Tensors of spaces that lie in or around others, which ``profiles`` leaves in place, tell nothing yet.
        """
        if not any(s.group.signs for s in self.sym.spaces):
            return g
        self._posed = None  # it holds copies of both networks
        near = self._near(g)
        left = {name for s in self.sym.spaces if s.parents for name in (s.name, *s.parents)}
        told = [n for n, x in self.sym.layouts.items() if not left & x.spaces]
        return signing(narrowed(self.sym, told), {n: near[n] * self.b[n] for n in told}, power=1) @ g


def _cosine(x: Tensor, y: Tensor) -> float:
    norms = float(x.norm() * y.norm())
    return float(inner_products(x, y, range(x.ndim))) / norms if norms > 0 else 0.0


def closest(a: Balanced, b: Balanced) -> tuple[Transformation, float]:
    """The element that brings folded weights ``a`` closest to ``b``, and the residual in balanced coordinates."""
    units = match_units(monomial(a.sym), a.state, b.state)
    a.forget()  # not read while scales and bases are fitted, which takes the most memory
    give_back()
    in_place = distance(a.folded.state, b.folded.state)
    if in_place < units.residual:  # merged in place: balancing only blurs what the units share
        return identity(a.sym), in_place
    return _fitted(a, b, ~b.to @ (lifted(units.g, a.sym) @ a.to), units.residual)


def _fitted(a: Balanced, b: Balanced, g: Transformation, residual: float) -> tuple[Transformation, float]:
    """Scales and bases fitted in turn, for each depends on the others, as long as that helps."""
    fit = Fit(a.folded, b.folded, g)
    if fit.exact:
        return g, residual
    sizes = {n: t.numel() for n, t in b.state.items()}

    def left() -> float:
        give_back()
        sines = fit.measured(lambda name, near: sine(transform(near, a.sym.layouts[name], b.to), b.state[name]))
        return combined(sines, sizes)

    fit.each_space()
    g, reached = fit.g, left()
    for _ in range(FITS):
        fit.round()
        before, now = min(residual, reached), left()
        if now < before:
            g, reached = fit.g, now
        if not now < _HELPS * before:
            break
    return g, min(residual, reached)


def lifted(g: Transformation, sym: Symmetry) -> Transformation:
    """Permutations and signs of normal bases as an element of the full symmetry."""
    full = identity(sym)
    for space in sym.spaces:
        e = g[space.name]
        parts: dict[str, Any] = {"permutation": e.permutation, "signs": e.signs}
        if space.group.mixes:
            parts = {"linear": e.matrix(Representation(sign=(1,)))}
        full = with_parts(full, space.name, **parts)
    return full
