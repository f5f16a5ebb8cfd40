"""Iteratively reweighted matching: tensors that agree decide, so that those that were changed cannot blur it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import log

from ...symmetry.action import moved, transform
from ...symmetry.coupling import narrowed
from ...symmetry.gauge.batch_norms import Folded
from ...symmetry.transformation import Transformation, identity
from ..coordinates.balanced import Balanced
from ..element_fit.closest import FITS, closest, lifted
from ..element_fit.refit import Fit
from ..element_fit.units import match_units, monomial
from ..judgement.deviation import TRUST, Deviation, apart, deviation
from ..judgement.unchanged import may_be_unchanged
from .negated import unflipped
from .pinned import moving, pinned

_ABSENT = 1e4  # times the ridge: squared distance of a tensor that has no vote
_RIDGES = (1e-2, 1e-5, 1e-8)  # squared distances of tensors that get half a vote, one after the other
_FINE = (1e-11, 1e-14)  # the same once units are known
_ALIKE = 0.5  # smallest over largest vote from which on weighting changes nothing
_SETTLED = 0.1  # fall of the loss that is worth another fit
_AGREES = 2.0**-7  # relative distance of a tensor that a cast to bfloat16 leaves
_FITTED = 2  # weights for each free scale or entry of a basis from which on agreement was not made by fitting
_FEW = 4  # tensors that may be far away whatever their sizes
_FAINT = 1e-6  # votes of far tensors where another of them decides: they order what it does not carry

_Place = Callable[[Transformation, Mapping[str, float]], Transformation]  # units matched anew by votes


@dataclass(frozen=True)
class _State:
    """An element, and the relative distances that it leaves."""

    g: Transformation
    distances: Mapping[str, float]

    @property
    def far(self) -> frozenset[str]:
        """Tensors that do not agree."""
        return frozenset(n for n, d in self.distances.items() if not d <= _AGREES)

    def loss(self, ridge: float) -> float:
        """``Σ log(d² + ridge)`` over the distances of tensors, whose majorisers the votes are.

        Few tensors far away cost less than all a little, the more so the smaller the ridge.
        """
        return sum(log(min(d, 1.0) ** 2 + ridge) for d in self.distances.values())


def by_consensus(
    a: Balanced, b: Balanced, rounded: Collection[str] = (), count: int | None = None, part: bool = False
) -> tuple[Transformation, float, Deviation]:
    """The element that brings ``a`` closest to ``b``, the residual in balanced coordinates, how far weights are apart.

    Where that leaves more than rounding, but parts may be unchanged, those that agree best decide.

    Args:
        a: Weights to move.
        b: Weights to meet.
        rounded: As in ``deviation``.
        count: As in ``deviation``.
        part: Whether these are a part of the networks.
    """
    start, residual = closest(a, b)
    b.forget()
    g, found = start, deviation(a.folded, b.folded, start, rounded, count)
    if found.precision is None and may_be_unchanged(a.folded, b.folded, start, found, part):
        for g in _concentrated(a, b, start):
            found = deviation(a.folded, b.folded, g, rounded, count)
            if found.precision is not None:
                break
    return g, residual, found


def _concentrated(a: Balanced, b: Balanced, g: Transformation) -> Iterator[Transformation]:
    """Elements fitted anew to the tensors that ``g`` explains best, so that the others cannot blur them.

    A tensor votes with the inverse of its squared distance, so that where some tensors were changed and the rest was
    not, units, scales and bases follow from the rest alone (iteratively reweighted least squares). What no tensor that
    agrees decides, far ones may hold between them at a wrong place: there each of them decides alone, in turn, and what
    makes most of them agree is kept (consensus, as in RANSAC).

    Each is fitted to fewer tensors than the one before. Where all were rounded alike the first may explain it, and the
    last fits some of them better than rounding does, to the cost of others.

    Args:
        a: Weights to move.
        b: Weights to meet.
        g: An element that brings ``a`` close to ``b``.
    """
    one, other = a.folded, b.folded
    start = _State(g, _distances(one, other, Fit(one.sym, one.state, other.state, g, other.spread), {}))
    found = start
    for ridge in _RIDGES:
        found = _reweighted(one, other, found, ridge, lambda g, votes: _placed(a, b, g, votes))
    found = _turned(one, other, _agreed(a, b, _turned(one, other, found)))
    if found is not start and found.loss(TRUST) <= start.loss(TRUST):  # signs turned may leave as much
        yield found.g
    for ridge in _FINE:
        found = _reweighted(one, other, found, ridge)
    if found is not start and found.loss(TRUST) <= start.loss(TRUST):
        yield found.g


def refitted(a: Folded, b: Folded, g: Transformation) -> Transformation:
    """The same where units are known: scales and bases fitted anew to the tensors that ``g`` explains best."""
    found = _State(g, _distances(a, b, Fit(a.sym, a.state, b.state, g, b.spread), {}))
    for ridge in (*_RIDGES, *_FINE):
        found = _reweighted(a, b, found, ridge)
    return found.g


def _reweighted(a: Folded, b: Folded, state: _State, ridge: float, place: _Place | None = None) -> _State:
    """Units, scales and bases by votes that a tensor at the distance of the ridge has half of."""
    votes = _votes(state.distances, ridge)
    if not max(votes.values(), default=0.0) or min(votes.values()) > _ALIKE * max(votes.values()):
        return state
    fit = Fit(a.sym, a.state, b.state, state.g if place is None else place(state.g, votes), b.spread)
    fit.each_space(votes)
    fixed: dict[str, float] = {}
    for _ in range(FITS):
        fit.bases(votes)
        fit.scales(votes)
        now = _State(fit.g, _distances(a, b, fit, fixed))
        fell = state.loss(ridge) - now.loss(ridge)
        if fell > 0:
            state = now
        if fell < _SETTLED:
            break
        votes = _votes(state.distances, ridge)
    return state


def _turned(a: Folded, b: Folded, state: _State) -> _State:
    """The state with whole spaces flipped where tensors are negated: no step of one space alone does that."""
    g = unflipped(a, b, state.g, state.far)
    if g is state.g:
        return state
    return _State(g, _distances(a, b, Fit(a.sym, a.state, b.state, g, b.spread), {}))


def _agreed(a: Balanced, b: Balanced, state: _State) -> _State:
    """The state in which most tensors agree that can be reached by letting one that is far away decide.

    Where those that are far away hold most weights, as noise on all tensors leaves them, none is more right.
    """
    seeds = _open(a, state) if _hold(a, state) else set()
    while seeds:
        found = {name: _decided(a, b, state, name) for name in sorted(seeds)}
        best = min(found.values(), key=lambda s: s.loss(TRUST))
        if len(best.far) >= len(state.far):
            break
        state = best
        for ridge in _RIDGES[1:]:
            state = _reweighted(a.folded, b.folded, state, ridge, lambda g, votes: _placed(a, b, g, votes))
        # a tensor that no element explains where it decides alone was changed, unless others were in its way
        left = _open(a, state)
        again = left if len(left) <= _FEW else set()
        seeds = left & {name for name, s in found.items() if name not in s.far} or again
    return state


def _hold(a: Balanced, state: _State) -> bool:
    """Whether tensors that agree hold most weights, or few are far away."""
    sizes = {n: x.numel() for n, x in a.folded.state.items()}
    return len(state.far) <= _FEW or 2 * sum(sizes[n] for n in state.far) <= sum(sizes.values())


def _open(a: Balanced, state: _State) -> set[str]:
    """Far tensors that share with others what none decides that agrees, as no tensor does that fits by itself."""
    sym, far = a.sym, state.far
    sizes = {n: x.numel() for n, x in a.folded.state.items()}
    telling = [n for n in sym.layouts if n not in far and sizes[n] >= _FITTED * narrowed(sym, [n]).dim]
    still = pinned(sym, telling)
    free = {n: moving(sym.layouts[n]) - still for n in far}
    return {n for n in far if any(free[n] & free[other] for other in far - {n})}


def _decided(a: Balanced, b: Balanced, state: _State, name: str) -> _State:
    """Units, scales and bases as one of the far tensors has them, as far as near ones do not decide."""
    sure = state.distances.keys() - state.far | {name}
    g = _placed(a, b, state.g, {n: 1.0 if n in sure else _FAINT for n in state.distances})
    votes = {n: float(n in sure) for n in state.distances}
    one, other = a.folded, b.folded
    fit = Fit(one.sym, one.state, other.state, g, other.spread)
    fit.each_space(votes)
    fixed: dict[str, float] = {}
    found = _State(fit.g, _distances(one, other, fit, fixed))
    for _ in range(FITS):
        fit.bases(votes)
        fit.scales(votes)
        now = _State(fit.g, _distances(one, other, fit, fixed))
        fell, found = found.loss(TRUST) - now.loss(TRUST), now
        if fell < _SETTLED:
            break
    return found


def _placed(a: Balanced, b: Balanced, g: Transformation, votes: Mapping[str, float]) -> Transformation:
    """``g`` with units matched anew by votes, in the balanced coordinates of ``b``."""
    signed, near = monomial(a.sym), b.to @ g
    normal = {**a.folded.state, **moved(a.sym, near, a.folded.state)}
    found = match_units(signed, normal, b.state, votes, identity(signed)).g
    return ~b.to @ (lifted(found, a.sym) @ near)


def _distances(a: Folded, b: Folded, fit: Fit, fixed: dict[str, float]) -> dict[str, float]:
    """Relative distances of all tensors; ``fixed`` collects those that no fit changes."""
    for name, layout in a.sym.layouts.items():
        if name not in fit.near and name not in fixed:
            fixed[name] = apart(transform(a.state[name], layout, fit.g), b, name)
    return {n: fixed[n] if n in fixed else apart(fit.near[n], b, n) for n in a.sym.layouts}


def _votes(distances: Mapping[str, float], ridge: float) -> dict[str, float]:
    """Half a vote for a tensor whose squared distance is the ridge; none where it is far larger."""
    squares = {name: min(d, 1.0) ** 2 for name, d in distances.items()}
    return {name: ridge / (d + ridge) if d < _ABSENT * ridge else 0.0 for name, d in squares.items()}
