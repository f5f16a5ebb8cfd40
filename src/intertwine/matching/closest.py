"""The element that brings one network closest to another: units matched, then scales and bases fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.element import Element
from ..symmetry.gauge.canonical import balanced
from ..symmetry.gauge.folding import Folded
from ..symmetry.gauge.signs import signing
from ..symmetry.transformation import Transformation, identity, with_parts
from .deviation import Deviation, deviation
from .joint_scales import joint_scales
from .refit import refit
from .units import distance, match_units, monomial

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry

__all__ = ["closest", "concentrated"]

_FITS = 10  # rounds of scales and bases in turn
_ABSENT = 1e3  # times the ridge: squared distance of a tensor that has no vote
_RIDGES = (1e-2, 1e-5, 1e-8)  # squared distances of tensors that get half a vote, one round after the other
_SETTLED = 0.1  # fall of the loss that is worth another fit


def closest(a: Folded, b: Folded) -> tuple[Transformation, float]:
    """The element that brings folded weights ``a`` closest to ``b``, and the residual in balanced coordinates."""
    to_a, to_b = _normalising(a), _normalising(b)
    normal_a = {**a.state, **moved(a.sym, to_a, a.state)}
    normal_b = {**b.state, **moved(b.sym, to_b, b.state)}
    units = match_units(monomial(a.sym), normal_a, normal_b)
    best, residual = units.g, units.residual
    in_place = distance(a.state, b.state)
    if in_place < residual:  # merged in place: balancing only blurs what the units share
        return identity(a.sym), in_place
    g = ~to_b @ (_lifted(best, a.sym) @ to_a)
    return _refitted(a, b, g, lambda h: distance({**a.state, **moved(a.sym, to_b @ h, a.state)}, normal_b), residual)


def concentrated(a: Folded, b: Folded, g: Transformation) -> Transformation:
    """``g`` fitted anew to the tensors that it explains best, so that the others cannot blur it.

    A tensor votes with the inverse of its squared distance, so that where some tensors were changed and the rest was
    not, units, scales and bases follow from the rest alone (iteratively reweighted least squares).

    Args:
        a: Weights to move, batch norms folded.
        b: Weights to meet.
        g: An element that brings ``a`` close to ``b``.

    Returns:
        The element of the last round that helped.
    """
    to_b = _normalising(b)
    normal_b = {**b.state, **moved(b.sym, to_b, b.state)}
    signed = monomial(a.sym)
    left = deviation(a, b, g)
    for ridge in _RIDGES:
        near = to_b @ g
        normal = {**a.state, **moved(a.sym, near, a.state)}
        found = match_units(signed, normal, normal_b, _votes(left, ridge), identity(signed)).g
        h = ~to_b @ (_lifted(found, a.sym) @ near)
        for _ in range(_FITS):
            votes = _votes(left, ridge)
            h = joint_scales(a.sym, a.state, b.state, refit(a.sym, a.state, b.state, h, b.spread, votes), votes)
            now = deviation(a, b, h)
            fell = left.loss - now.loss
            if fell > 0:
                g, left = h, now
            if fell < _SETTLED:
                break
    return g


def _votes(left: Deviation, ridge: float) -> dict[str, float]:
    """Half a vote for a tensor whose squared distance is the ridge; none where it is far larger."""
    squares = {name: min(d, 1.0) ** 2 for name, d in left.distances.items()}
    return {name: ridge / (d + ridge) if d < _ABSENT * ridge else 0.0 for name, d in squares.items()}


def _refitted(
    a: Folded, b: Folded, g: Transformation, left: Callable[[Transformation], float], residual: float
) -> tuple[Transformation, float]:
    """Scales and bases fitted in turn, for each depends on the others, as long as that helps."""
    for round_ in range(_FITS):
        fitted = refit(a.sym, a.state, b.state, g, b.spread)
        d = left(fitted)
        if round_ and not d < residual:
            break
        helped = d < 0.99 * residual
        g, residual = fitted, min(residual, d)
        if round_ and not helped:
            break
    return g, residual


def _normalising(folded: Folded) -> Transformation:
    """Scales and bases, and signs of spaces that others lie inside: those are matched by values without signs."""
    g = balanced(folded)
    outer = {parent for s in folded.sym.spaces for parent in s.parents}
    if any(s.group.signs and s.name in outer for s in folded.sym.spaces):
        state = {**folded.state, **moved(folded.sym, g, folded.state)}
        g = signing(folded.sym, state).restrict(spaces=outer) @ g
    return g


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
