"""The search for the units of one network in another: several starts, each followed by assignments in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.blocks import map_leaves
from ..symmetry.gauge.canonical import arranged
from ..symmetry.gauge.signs import signing
from ..symmetry.spaces import Leaf, Product
from ..symmetry.transformation import Transformation, identity, random
from .units import distance, match

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry

__all__ = ["search"]

_FOUND = 1e-2  # residual at which copies are found, and only rounding remains
_LIKE = 0.25  # residual of networks so alike that other orders of groups need not be tried
_RESTARTS = 3
_OUTER = 8  # largest number of groups or heads whose order is drawn at random
_LARGEST = 100_000  # weights above which the two plainest starts must do


def search(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[Transformation, float]:
    """Permutations and signs that bring the weights ``a`` close to ``b``.

    Starts, until one is good enough: both canonical forms, which meet for copies; sorted values; sizes of weights
    without their signs, which are then solved together; units in place, as fine-tuning leaves them; and random orders
    of groups and heads, from fixed seeds. Large networks get the canonical forms, sorted values and units in place
    only. Matching is a local search, so no start is sure to succeed.

    Args:
        sym: A symmetry without scales and matrices (``matching.monomial``).
        a: Tensors to move, in normal form.
        b: Tensors to meet, in normal form.

    Returns:
        The best element found and its residual.
    """
    best, residual = identity(sym), float("inf")
    for found in _candidates(sym, a, b):
        d = distance({**a, **moved(sym, found, a)}, b)
        if d < residual:
            best, residual = found, d
        if residual < _FOUND:
            break
    if residual > _LIKE and sum(t.numel() for t in b.values()) <= _LARGEST:
        for found in _restarts(sym, a, b):
            d = distance({**a, **moved(sym, found, a)}, b)
            if d < residual:
                best, residual = found, d
            if residual < _LIKE:
                break
    return best, residual


def _restarts(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Iterator[Transformation]:
    """Random orders of groups and heads, the rest matched around them."""
    outer = _outer(sym)
    for seed in range(_RESTARTS if outer else 0):
        drawn = random(sym, seed, {"permutation"}).restrict(spaces=outer)
        yield from _polished(sym, a, b, _blind(sym, a, b, drawn, outer))


def _polished(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], start: Transformation | None
) -> Iterator[Transformation]:
    """What assignments in turn make of a start, and the same with all signs solved together."""
    found = match(sym, a, b, start)
    yield found
    if any(s.signs for s in sym.spaces):
        yield _agreeing(sym, a, b, found)


def _candidates(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Iterator[Transformation]:
    by_form = ~arranged(sym, b) @ arranged(sym, a)
    yield by_form
    if sum(t.numel() for t in b.values()) > _LARGEST:
        yield match(sym, a, b)
        yield match(sym, a, b, identity(sym))
        return
    yield from _polished(sym, a, b, by_form)
    yield from _polished(sym, a, b, None)
    if any(s.signs for s in sym.spaces):
        blind = _blind(sym, a, b)
        yield blind
        yield from _polished(sym, a, b, blind)
    yield from _polished(sym, a, b, identity(sym))


def _blind(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    start: Transformation | None = None,
    known: frozenset[str] = frozenset(),
) -> Transformation:
    """Units matched by the sizes of their weights, then the signs that agree with most of what is matched."""
    plain = {n: map_leaves(layout, lambda leaf: replace(leaf, sign=())) for n, layout in sym.layouts.items()}
    unsigned = replace(sym, spaces=tuple(replace(s, signs=0) for s in sym.spaces), layouts=plain)
    start = None if start is None else Transformation({n: replace(e, space=unsigned.space(n), signs=e.signs[:0])
                                                       for n, e in start.elements.items()})  # fmt: skip
    sizes_a, sizes_b = ({n: t.abs() for n, t in state.items()} for state in (a, b))
    found = match(unsigned, sizes_a, sizes_b, start, known)
    full = identity(sym)
    g = Transformation({n: replace(e, permutation=found[n].permutation) for n, e in full.elements.items()})
    return _agreeing(sym, a, b, g)


def _agreeing(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], g: Transformation) -> Transformation:
    """``g`` with the signs that make its products with ``b`` positive, largest first."""
    near = {**a, **moved(sym, g, a)}
    agreement = {n: near[n] * b[n] for n in sym.layouts}
    return signing(sym, agreement, power=1) @ g


def _outer(sym: Symmetry) -> frozenset[str]:
    """Small spaces that others lie inside, or that share an axis with others: groups and heads."""
    return frozenset(s.name for s in sym.spaces if s.permutable and 1 < s.size <= _OUTER and _shares(sym, s.name))


def _shares(sym: Symmetry, name: str) -> bool:
    products = (axis for layout in sym.layouts.values() for axis in layout.axes if isinstance(axis, Product))
    return any(isinstance(factor, Leaf) and factor.space == name for axis in products for factor in axis.factors)
