"""The element that brings one network closest to another: units matched in balanced coordinates, then all fitted."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._io.lazy import State
from ..._memory import give_back
from ..._progress import track
from ...groups import Representation, SignedPermutation, Trivial
from ...symmetry.action import moved, transform
from ...symmetry.coupling import narrowed, regrouped
from ...symmetry.gauge.canonical import arranged
from ...symmetry.spaces import Fixed, Leaf
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Balanced
from ..coordinates.problem import Problem
from ..judgement.deviation import combined, distance, sine
from ..solvers.coordinate_descent import CoordinateDescent, descend, search
from ..solvers.steps import profiles, signed
from .refit import Fit, chained, join_bases, upright

_STARTS = 2
FOUND = 1e-2  # residual at which a copy is found and only rounding remains
_LARGE = 100_000  # weights above which costs are float32
UNRELATED = 0.97  # residual in place above which the units there have nothing in common
_UNRELATED = 0.8  # residual above which small gains are not pursued
_COARSE = CoordinateDescent(restarts=_STARTS, tolerance=1e-3)  # a first descent, which does not pursue small gains
_CLOSE = 0.98  # squared cosine above which all tensors count alike
_RIDGE = 0.01  # squared sine at which a tensor gets half the weight of equal ones
FITS = 40  # rounds of bases and scales in turn: copies need one or two; bases that meet in one tensor, dozens
_ROUNDED = 1e-5  # residual of float32 weights; linear chains that leave more are fitted as a whole
_JOINED = 2  # fits of a whole chain: the second uses the coordinates of the target weights
_HELPS = 0.99  # share of the residual below which a fit must fall to be followed by another
_residual = attrgetter("residual")


class UnitMatch(NamedTuple):
    """Matched units."""

    g: Transformation  # The element of permutations and signs that moves ``a``
    residual: float  # ``distance`` of the moved ``a`` from ``b``


def monomial(sym: Symmetry) -> Symmetry:
    """The symmetry left in normal bases: permutations and a sign per unit; spaces that cannot move are fixed."""
    basis = lambda s: Trivial(s.size) if s.group.turns else SignedPermutation(s.size)
    groups = {s.name: basis(s) if s.group.mixes else s.group.reduced(scales=0) for s in sym.spaces}
    still = {n for n, group in groups.items() if not group.permutes and not group.signs and n not in sym.outer}

    def leaf(old: Leaf) -> Leaf | Fixed:
        if old.space in still:
            return Fixed(old.size, "neither permuted nor flipped")
        return replace(old, scale=(), sign=(1,) if old.space in sym.mixing else old.sign, variance=0)

    return regrouped(sym, groups, leaf)


def match_units(
    sym: Symmetry,
    a: State,
    b: State,
    votes: Mapping[str, float] | None = None,
    start: Transformation | None = None,
    ordered: Collection[str] = (),
) -> UnitMatch:
    """Permutations and signs that bring the weights ``a`` close to ``b``, by coordinate descent from several starts.

    Starts are tried until one is good enough: the canonical forms of both, which agree for copies; similar weight
    profiles, with all signs solved together; units in place, as fine-tuning leaves them; and in small networks the
    canonical forms again, judged by the tensors that agree, since others may have been negated. Costs are float32 in
    networks of more than 100,000 weights; residuals are always float64. The result is the best local optimum, exact for
    copies with distinct units. Coordinates are balanced, without scales and matrices (``monomial``). ``votes`` weight
    each tensor's entries in the costs, equally by default; a known ``start`` is the only one; units of ``ordered``
    spaces are sorted, up to near ties. Tensors that the symmetry does not move are compared but not searched.
    """
    posed = _Posed(narrowed(sym, {n for n, layout in sym.layouts.items() if layout.spaces}), a, b, votes)
    sym, still = posed.sym, identity(posed.sym)
    if start is not None:
        return posed.matched(lambda _: [start])
    best = posed.judged(still)
    if not sym.layouts:
        return best
    if not any(s.group.permutes or s.group.mixes or s.parents for s in sym.spaces):  # products in place say all signs
        return min(best, posed.judged(signed(posed.stated(), still)), key=_residual)
    share = best.residual < UNRELATED or not posed.large  # else units in place share nothing
    canonical = posed.judged(~arranged(sym, b, ordered) @ arranged(sym, a, ordered))
    best = min(best, canonical, key=_residual)
    if best.residual < FOUND:
        return best

    def starts(stated: Problem) -> Iterator[Transformation]:
        yield signed(stated, profiles(stated))
        if share:
            yield still

    best = min(best, posed.matched(starts), key=_residual)
    if best.residual < FOUND or posed.large:
        return best
    return min(best, posed.reweighted(canonical), key=_residual)


@dataclass(frozen=True)
class _Posed:
    """Two networks whose units are to be matched."""

    sym: Symmetry
    a: State
    b: State
    votes: Mapping[str, float] | None

    @cached_property
    def large(self) -> bool:
        """Whether costs are float32."""
        return sum(self.b[name].numel() for name in self.sym.layouts) > _LARGE

    def judged(self, g: Transformation) -> UnitMatch:
        """An element and its residual."""
        if self.large:
            give_back()  # the moved tensors take the most memory
        return UnitMatch(g, distance(self._near(g), self.b))

    def stated(self, votes: Mapping[str, float] | None = None) -> Problem:
        """The problem in which ``a`` moves; it holds copies of both networks."""
        give_back()
        dtype = torch.float32 if self.large else torch.float64
        return Problem.counted(self.sym, meet=self.b, move=self.a, votes=votes or self.votes, dtype=dtype)

    def matched(self, starts: Callable[[Problem], Iterable[Transformation]]) -> UnitMatch:
        """The best end of all starts; for unrelated networks, close to it."""
        stated = self.stated()
        some = track(starts(stated), "Matching units", _STARTS, enabled=None)
        found, _ = search(stated, _COARSE, 0, some, enough=FOUND**2 / 2)
        unrelated = found.history[-1] < (1 - _UNRELATED**2) ** 0.5 * stated.size
        del stated  # before the next one is built
        first = self.judged(found.g)
        return first if unrelated else self.reweighted(first)

    def reweighted(self, first: UnitMatch) -> UnitMatch:
        """The local optimum with votes by agreement, so that replaced tensors outvote no others, if it is better."""
        near = self._near(first.g)
        squares = {n: 1 - sine(near[n], self.b[n]) ** 2 for n in self.sym.layouts}  # of cosines, 0 beyond a right angle
        del near
        votes = self.votes
        if min(squares.values(), default=1.0) < _CLOSE:
            votes = {n: (self.votes or {}).get(n, 1.0) * c / (1 - c + _RIDGE) for n, c in squares.items()}
        again = self.judged(descend(self.stated(votes), first.g, torch.Generator().manual_seed(0)).g)
        return min(first, again, key=_residual)

    def _near(self, g: Transformation) -> dict[str, Tensor]:
        return {**self.a, **moved(self.sym, g, self.a)}


def closest(a: Balanced, b: Balanced) -> tuple[Transformation, float]:
    """The element that brings folded weights ``a`` closest to ``b``, and the residual in balanced coordinates."""
    g, left = identity(a.sym), distance(a.folded.state, b.folded.state)
    chain = chained(a.sym)
    alone = chain and len(a.sym.mixing) == len(a.sym.spaces)  # no units to match first
    found, residual = _joined(a, b, g, left) if alone else (g, left)
    if residual <= _ROUNDED:
        return found, residual
    units = match_units(monomial(a.sym), a.state, b.state, ordered=a.sym.mixing)  # sorted by singular values
    a.forget()  # not needed while scales and bases are fitted, which takes the most memory
    give_back()
    if units.residual <= left:  # else related in place, as after merging: balancing only blurs what the units share
        g, left = _fitted(a, b, ~b.to @ (lifted(units.g, a.sym) @ a.to), units.residual)
    if chain and not alone and left > _ROUNDED:
        found, residual = _joined(a, b, g, left)
    return (found, residual) if residual < min(left, FOUND) else (g, left)


def _joined(a: Balanced, b: Balanced, g: Transformation, residual: float) -> tuple[Transformation, float]:
    """All bases of linear chains, fitted at once."""
    fit = Fit(a.folded, b.folded, upright(g))
    for _ in range(_JOINED):
        join_bases(fit)
        if (now := _left(fit, b)) < residual:
            g, residual = fit.g, now
    return g, residual


def _fitted(a: Balanced, b: Balanced, g: Transformation, residual: float) -> tuple[Transformation, float]:
    """Scales and bases fitted in turn, since they depend on each other, as long as that helps."""
    fit = Fit(a.folded, b.folded, g)
    if not fit.near:  # no scale and no matrix is free
        return g, residual
    fit.each_space()
    g, reached = fit.g, _left(fit, b)
    for _ in range(FITS):
        fit.round()
        before, now = min(residual, reached), _left(fit, b)
        if now < before:
            g, reached = fit.g, now
        if not now < _HELPS * before:
            break
    return g, min(residual, reached)


def _left(fit: Fit, b: Balanced) -> float:
    """The residual of a fit in balanced coordinates."""
    give_back()
    sines = fit.measured(lambda name, near: sine(transform(near, b.sym.layouts[name], b.to), b.state[name]))
    return combined(sines, {n: t.numel() for n, t in b.state.items()})


def lifted(g: Transformation, sym: Symmetry) -> Transformation:
    """Permutations and signs in normal bases, as an element of the full symmetry."""
    full = identity(sym)
    for space in sym.spaces:
        e = g[space.name]
        parts: dict[str, Any] = {"permutation": e.permutation, "signs": e.signs}
        if space.group.mixes:
            parts = {"linear": e.matrix(Representation(sign=(1,)))}
        full = with_parts(full, space.name, **parts)
    return full
