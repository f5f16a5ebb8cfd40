"""Balanced coordinates: scales and bases in which two networks can be compared weight by weight.

Of all copies that scales and bases connect, the balanced one has (almost) the smallest sum of squared weights
(``symmetry.gauge.balance``). Bases are left open up to rotations, which the canonical form fixes: those are searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...symmetry.action import moved, tensors_of
from ...symmetry.gauge.balance import balancing_scales
from ...symmetry.gauge.canonical import slices
from ...symmetry.gauge.folding import fold
from ...symmetry.transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from ...symmetry import Symmetry
    from ...symmetry.spaces import Space

__all__ = ["Balanced", "balance", "balanced_coordinates"]

_ROUNDS = 30  # of bases and scales in turn
_SETTLED = 1e-12
_RANK = 1e-9  # smallest eigenvalue, relative to the largest, of a basis that is determined


@dataclass(frozen=True, eq=False)
class Balanced:
    """A network in balanced coordinates.

    Attributes:
        sym: Acts on ``state``; batch norms are folded.
        state: The tensors, in float64 on the CPU.
        to: The element that brought the network here.
        undetermined: Linear spaces whose basis the weights on neither side determine.
    """

    sym: Symmetry
    state: dict[str, Tensor]
    to: Transformation
    undetermined: tuple[str, ...] = ()


def balance(model: nn.Module, sym: Symmetry, scales: bool = True, linear: bool = True) -> Balanced:
    """Fold the batch norms of a network and bring it into balanced coordinates; the network is left as it is."""
    folded = fold(sym, tensors_of(model))
    if not scales and not linear:
        return Balanced(folded.sym, folded.state, identity(folded.sym))
    to = balanced_coordinates(folded.sym, folded.state, scales, linear)
    state = {**folded.state, **moved(folded.sym, to, folded.state)}
    general = [s for s in folded.sym.spaces if s.group.is_general] if linear else []
    return Balanced(folded.sym, state, to, tuple(s.name for s in general if _basis(folded.sym, state, s) is None))


def balanced_coordinates(
    sym: Symmetry, state: Mapping[str, Tensor], scales: bool = True, linear: bool = True
) -> Transformation:
    """The element that brings weights into balanced coordinates; orthogonal matrices remain open in linear spaces.

    Without ``scales`` or ``linear`` the scales, or the bases of general linear spaces, stay.
    """
    g = identity(sym)
    general = [s for s in sym.spaces if s.group.is_general] if linear else []
    for _ in range(_ROUNDS if general else 1):  # norms depend on bases and bases on scales
        before = g
        for space in general:
            basis = _basis(sym, {**state, **moved(sym, g, state)}, space)
            if basis is not None:
                g = with_parts(identity(sym), space.name, linear=basis) @ g
        if scales:
            here = {**state, **moved(sym, g, state)}
            for name, logs in balancing_scales(sym, here, bases=bool(general)).items():
                g = with_parts(identity(sym), name, scales=logs) @ g
        if g.allclose(before, _SETTLED):
            break
    return g


def _basis(sym: Symmetry, state: Mapping[str, Tensor], space: Space) -> Tensor | None:
    """The symmetric ``M`` for which ``|M X|² + |M^-T Y|²`` is smallest, ``(p..., n, n)``; ``None`` if undetermined.

    ``X`` are the slices of variance +1 and ``Y`` those of variance -1. ``P = M²`` solves ``P C_X P = C_Y`` for the
    Gram matrices ``C``: their geometric mean. Where one of them has too low a rank there is no smallest sum, as in a
    chain of linear layers that grow narrower; then ``M`` makes the other one the identity.
    """
    grams: dict[int, Tensor] = {}
    for _, x, leaf in slices(sym, state, space):
        gram = x @ x.mT
        grams[leaf.variance] = grams[leaf.variance] + gram if leaf.variance in grams else gram
    bases = {side: torch.linalg.eigh(gram) for side, gram in grams.items() if side}
    full = {side for side, (values, _) in bases.items() if bool((values[..., 0] > _RANK * values[..., -1]).all())}
    if not full:
        return None
    if len(full) == 1:
        (side,) = full
        values, vectors = bases[side]
        return _power(values, vectors, -0.5 * side)
    values, vectors = bases[1]
    root, back = (_power(values, vectors, p) for p in (0.5, -0.5))
    middle, turned = torch.linalg.eigh(root @ grams[-1] @ root)
    square = back @ _power(middle, turned, 0.5) @ back
    values, vectors = torch.linalg.eigh((square + square.mT) / 2)
    return _power(values, vectors, 0.5)


def _power(values: Tensor, vectors: Tensor, exponent: float) -> Tensor:
    return (vectors * values.clamp_min(0).pow(exponent)[..., None, :]) @ vectors.mT
