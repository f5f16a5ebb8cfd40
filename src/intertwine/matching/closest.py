"""The element that brings one network closest to another: units matched, then scales and bases fitted."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any

import torch
from torch import Tensor

from .._memory import give_back
from ..groups import Element
from ..symmetry.action import moved, transform
from ..symmetry.gauge.canonical import balanced
from ..symmetry.gauge.folding import Folded
from ..symmetry.gauge.signs import signing
from ..symmetry.symmetry import Symmetry
from ..symmetry.transformation import Transformation, identity, with_parts
from .deviation import TRUST, apart, combined, distance, sine
from .refit import Fit
from .units import match_units, monomial

_FITS = 40  # rounds of bases and scales in turn: copies need one or two, bases that meet in one tensor dozens
_BALANCED = {torch.float32: 1e-7, torch.float64: 1e-12}  # log scales: the rounding of weights in that precision
_ABSENT = 1e3  # times the ridge: squared distance of a tensor that has no vote
_RIDGES = (1e-2, 1e-5, 1e-8)  # squared distances of tensors that get half a vote, one round after the other
_ALIKE = 0.5  # smallest over largest vote from which on weighting changes nothing
_SETTLED = 0.1  # fall of the loss that is worth another fit
_HELPS = 0.99  # share of the residual that a fit must fall below to be followed by another


@dataclass(eq=False)
class Normal:
    """A network in balanced coordinates."""

    folded: Folded  # Its weights, batch norms folded
    to: Transformation  # The element that brings them into balanced coordinates

    @cached_property
    def state(self) -> Mapping[str, Tensor]:
        """The weights there; those that ``to`` leaves as they are, are shared."""
        return {**self.folded.state, **moved(self.sym, self.to, self.folded.state)}

    def forget(self) -> None:
        """Free the weights there; they are made again when they are asked for."""
        self.__dict__.pop("state", None)

    @property
    def sym(self) -> Symmetry:
        """The symmetry of the folded weights."""
        return self.folded.sym


def normalised(folded: Folded) -> Normal:
    """Scales and bases in normal form, and signs of spaces that others lie inside: those are matched without signs."""
    dtype = next((t.dtype for t in folded.state.values()), torch.float64)
    g = balanced(folded, _BALANCED[dtype])
    outer = {parent for s in folded.sym.spaces for parent in s.parents}
    normal = Normal(folded, g)
    if any(s.group.signs and s.name in outer for s in folded.sym.spaces):
        normal = Normal(folded, signing(folded.sym, normal.state).restrict(spaces=outer) @ g)
    return normal


def closest(a: Normal, b: Normal) -> tuple[Transformation, float]:
    """The element that brings folded weights ``a`` closest to ``b``, and the residual in balanced coordinates."""
    units = match_units(monomial(a.sym), a.state, b.state)
    a.forget()  # not read while scales and bases are fitted, which takes the most memory
    give_back()
    in_place = distance(a.folded.state, b.folded.state)
    if in_place < units.residual:  # merged in place: balancing only blurs what the units share
        return identity(a.sym), in_place
    return _fitted(a, b, ~b.to @ (_lifted(units.g, a.sym) @ a.to), units.residual)


def _fitted(a: Normal, b: Normal, g: Transformation, residual: float) -> tuple[Transformation, float]:
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
    for _ in range(_FITS):
        fit.bases()
        fit.scales()
        before, now = min(residual, reached), left()
        if now < before:
            g, reached = fit.g, now
        if not now < _HELPS * before:
            break
    return g, min(residual, reached)


def concentrated(a: Normal, b: Normal, g: Transformation) -> Transformation:
    """``g`` fitted anew to the tensors that it explains best, so that the others cannot blur it.

    A tensor votes with the inverse of its squared distance, so that where some tensors were changed and the rest was
    not, units, scales and bases follow from the rest alone (iteratively reweighted least squares).

    Args:
        a: Weights to move.
        b: Weights to meet.
        g: An element that brings ``a`` close to ``b``.
    """
    signed = monomial(a.sym)
    start = distances = _distances(a, b, Fit(a.sym, a.folded.state, b.folded.state, g, b.folded.spread), {})
    h = g
    for ridge in _RIDGES:
        votes = _votes(distances, ridge)
        if not max(votes.values(), default=0.0) or min(votes.values()) > _ALIKE * max(votes.values()):
            continue
        near = b.to @ h
        normal = {**a.folded.state, **moved(a.sym, near, a.folded.state)}
        found = match_units(signed, normal, b.state, votes, identity(signed)).g
        fitted = ~b.to @ (_lifted(found, a.sym) @ near)
        fit = Fit(a.sym, a.folded.state, b.folded.state, fitted, b.folded.spread)
        fit.each_space(votes)
        fixed: dict[str, float] = {}
        for _ in range(_FITS):
            fit.bases(votes)
            fit.scales(votes)
            now = _distances(a, b, fit, fixed)
            fell = _loss(distances, ridge) - _loss(now, ridge)
            if fell > 0:
                h, distances = fit.g, now
            if fell < _SETTLED:
                break
            votes = _votes(distances, ridge)
    return h if _loss(distances, TRUST) < _loss(start, TRUST) else g


def _distances(a: Normal, b: Normal, fit: Fit, fixed: dict[str, float]) -> dict[str, float]:
    """Relative distances of all tensors; ``fixed`` collects those that no fit changes."""
    for name, layout in a.sym.layouts.items():
        if name not in fit.near and name not in fixed:
            fixed[name] = apart(transform(a.folded.state[name], layout, fit.g), b.folded, name)
    return {n: fixed[n] if n in fixed else apart(fit.near[n], b.folded, n) for n in a.sym.layouts}


def _loss(distances: Mapping[str, float], ridge: float) -> float:
    """``Σ log(d² + ridge)`` over the distances of tensors, whose majorisers the votes are.

    Few tensors far away cost less than all a little, the more so the smaller the ridge.
    """
    return sum(log(min(d, 1.0) ** 2 + ridge) for d in distances.values())


def _votes(distances: Mapping[str, float], ridge: float) -> dict[str, float]:
    """Half a vote for a tensor whose squared distance is the ridge; none where it is far larger."""
    squares = {name: min(d, 1.0) ** 2 for name, d in distances.items()}
    return {name: ridge / (d + ridge) if d < _ABSENT * ridge else 0.0 for name, d in squares.items()}


def _lifted(g: Transformation, sym: Symmetry) -> Transformation:
    """Permutations and signs of normal bases as an element of the full symmetry."""
    full = identity(sym)
    for space in sym.spaces:
        e = g[space.name]
        parts: dict[str, Any] = {"permutation": e.permutation, "signs": e.signs}
        if space.group.mixes:
            parts = {"linear": _matrix(e)}
        full = with_parts(full, space.name, **parts)
    return full


def _matrix(e: Element) -> Tensor:
    eye = torch.eye(e.permutation.shape[-1], dtype=torch.float64)
    return e.signs[0][..., :, None] * eye[e.permutation]
