"""The element that brings one network closest to another: units matched, then scales and bases fitted."""

from typing import Any

from ..._memory import give_back
from ...groups import Representation
from ...symmetry.action import transform
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.balanced import Balanced
from ..judgement.deviation import combined, distance, sine
from .refit import Fit
from .units import match_units, monomial

FITS = 40  # rounds of bases and scales in turn: copies need one or two, bases that meet in one tensor dozens
_HELPS = 0.99  # share of the residual that a fit must fall below to be followed by another


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
    fit = Fit(a.sym, a.folded.state, b.folded.state, g, b.folded.spread)
    if fit.exact:
        return g, residual
    there = b.to @ g
    fixed = {
        n: sine(transform(a.folded.state[n], a.sym.layouts[n], there), b.state[n]) for n in b.state.keys() - fit.near
    }
    sizes = {n: t.numel() for n, t in b.state.items()}

    def left() -> float:
        give_back()
        moving = {n: sine(transform(x, a.sym.layouts[n], b.to), b.state[n]) for n, x in fit.near.items()}
        return combined({**fixed, **moving}, sizes)

    fit.each_space()
    g, reached = fit.g, left()
    for _ in range(FITS):
        fit.bases()
        fit.scales()
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
