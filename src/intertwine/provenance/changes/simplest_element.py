"""The simplest element of a symmetry group that explains how one state dict became another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, inf, log, prod
from typing import Any

import torch
from torch import Tensor

from ..._io.lazy import LazyState
from ...groups import Element
from ...matching.consensus.negated import unflipped
from ...matching.consensus.pinned import Freedom, freedoms, pinned
from ...matching.consensus.reweighted import by_consensus, refitted
from ...matching.coordinates.balanced import Balanced
from ...matching.coordinates.problem import members, searched, within
from ...matching.element_fit.refit import Fit
from ...matching.element_fit.units import match_units
from ...matching.judgement.deviation import PRECISIONS, Deviation, apart, constant, deviation
from ...symmetry.action import transform
from ...symmetry.blocks import blocks, map_leaves
from ...symmetry.coupling import narrowed
from ...symmetry.gauge.batch_norms import Folded, fold
from ...symmetry.gauge.canonical import check_weights
from ...symmetry.spaces import Fixed, Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity

_EQUAL = 2.0**-7  # relative distance of a tensor that a cast to bfloat16 leaves: what agrees so pins its units
_SPARSER = 0.05  # share of the entries that became zero from which on elements are looked for without them
_IN_PLACE = 0.7  # mean cosine of a unit's slices with those of the unit in its place: no other is closer
_FLOOR = {torch.float32: 1e-7, torch.float64: 1e-12}  # relative distances that rounding leaves
_ROUNDING = {torch.float32: PRECISIONS["float32"], torch.float64: PRECISIONS["float64"]}  # what fits may leave
_SNAPS = (0.05, 0.01, 1e-3, 0.0)  # log scales below which a unit may be left unscaled
_FITS = 3
_NOTHING = 0.9  # relative distance that explains nothing: matched units of unrelated networks come as close
_BORNE_OUT = 0.5  # share of a distance that scales or a basis may leave on each side, what writes units and what reads
_EXACT, _HELPED = 0.05, 0.95  # the same where one side is all but explained: a scale of training drives the other away
_WORSE = 2.0  # times the distance without them that no tensor may be left at: training moves some tensors by chance


@dataclass(frozen=True, eq=False)
class Explained:
    """The element, and the weights that it brings together."""

    a: Folded  # Weights to move, batch norms folded
    b: Folded  # Weights to meet
    g: Transformation  # The element that moves ``a``

    def deviation(self, rounded: frozenset[str]) -> Deviation:
        """How far the moved weights are apart; ``rounded`` tensors hold numbers of half precision."""
        return deviation(self.a, self.b, self.g, rounded)


def explained(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Explained:
    """The simplest element that explains how ``a`` became ``b``, by description length.

    Spaces that a tensor pins, because it has not changed, stay as they are; the others are searched as ``same`` does.
    A part of the element is kept where the bits that it takes to say (``n log n`` of a permutation, half a ``log N``
    of each scale that is fitted to ``N`` weights) are fewer than those that it saves: ``N log`` of the distance of each
    tensor. So an update of low rank is not blurred by scales that were fitted to it. Scales and bases must also bring
    the tensors closer that carry their inverse: training that makes one layer larger is no rescaling.

    Returns:
        The element with the folded weights. Weights that are missing or not finite are refused.
    """
    for state in (a, b):
        check_weights(sym, state)
    dtype = precision_of(sym, a, b)
    one, other = (_folded(sym, state, dtype) for state in (a, b))
    found = identity(one.sym)
    still = pinned(one.sym, [name for name in one.sym.layouts if _unchanged(one.state[name], other, name)])
    free = _free(one.sym, still)
    if free:
        placed = {s for s, kind, _ in still if kind == "permutation"}
        g = _element(*(_part(side, free, placed) for side in (one, other)))
        elements = {n: replace(e, group=found[n].group) for n, e in g.elements.items()}
        found = Transformation({**found.elements, **elements})
    return Explained(one, other, found)


def precision_of(sym: Symmetry, *states: Mapping[str, Tensor]) -> torch.dtype:
    """The precision in which states are compared: float64 only where one of them holds it."""
    double = any(state[name].dtype == torch.float64 for state in states for name in sym.layouts)
    return torch.float64 if double else torch.float32


def _folded(sym: Symmetry, state: Mapping[str, Tensor], dtype: torch.dtype) -> Folded:
    """Weights with batch norms folded; without any, tensors are read when they are asked for."""
    if sym.batch_norms or isinstance(state, dict):
        return fold(sym, state, dtype)
    wide = LazyState({n: partial(lambda n: state[n].detach().to("cpu", dtype), n) for n in sym.layouts})
    return Folded(replace(sym, dtype=dtype), wide, {}, frozenset())  # type: ignore[arg-type]


def _free(sym: Symmetry, still: set[Freedom]) -> set[str]:
    """Names of spaces that may have moved, with their parents."""
    carried = sym.carriers
    free = {s.name for s in sym.spaces if carried[s.name] and not freedoms(s) <= still}
    parents = {s.name: s.parents for s in sym.spaces}
    more = free
    while more:  # a space lies inside its parents
        more = {p for s in more for p in parents[s]} - free
        free |= more
    return free


def _unchanged(x: Tensor, b: Folded, name: str) -> bool:
    return not constant(x) and apart(x, b, name) <= _EQUAL and _units_agree(x, b.state[name])


def _units_agree(x: Tensor, y: Tensor) -> bool:
    """Whether every row along every axis agrees, so that no single unit was moved."""
    if x.ndim == 0:
        return True
    gap, size = (x - y).square(), y.square()
    for dim in range(x.ndim):
        rest = [d for d in range(x.ndim) if d != dim]
        d, s = (t.sum(rest) if rest else t for t in (gap, size))
        if not bool((d <= _EQUAL**2 * s).all()):
            return False
    return True


def _part(side: Folded, free: Collection[str], placed: Collection[str]) -> Folded:
    """The tensors that carry some of the spaces, the others held fixed; ``placed`` ones are not permuted."""
    sym = side.sym
    spaces = tuple(
        replace(s, group=s.group.reduced(permutes=False)) if s.name in placed and not s.group.mixes else s
        for s in sym.spaces
        if s.name in free
    )

    def leaf(old: Leaf) -> Leaf | Fixed:
        return old if old.space in free else Fixed(old.size, "in place")

    layouts = {n: map_leaves(layout, leaf) for n, layout in sym.layouts.items()}
    kept = {n: x for n, x in layouts.items() if x.spaces}
    small = replace(narrowed(sym, kept), spaces=spaces, layouts=kept)
    return Folded(small, {n: side.state[n] for n in kept}, side.spread, side.pinned)


def _element(a: Folded, b: Folded) -> Transformation:
    """The simplest element that brings ``a`` to ``b`` and leaves the fewest tensors negated."""
    g = _simplest(a, b)
    far = [n for n, layout in a.sym.layouts.items() if not apart(transform(a.state[n], layout, g), b, n) <= _EQUAL]
    return unflipped(a, b, g, far)


def _simplest(a: Folded, b: Folded) -> Transformation:
    """The simplest element that brings ``a`` to ``b``; where ``b`` was pruned, by the entries that are left."""
    g = _borne_out(a, b, _simplified(a, b, _matched(a, b)))
    kept = _pruned(a, b, g)
    if kept is None or _agree(kept, b, g):
        return g
    h = _borne_out(kept, b, _simplified(kept, b, _matched(kept, b)))
    return h if _agree(kept, b, h) else g


def _pruned(a: Folded, b: Folded, g: Transformation) -> Folded | None:
    """``a`` with zeros where ``b`` has them, which would blur scales; ``None`` where few entries became zero."""
    if not any(s.group.scales for s in a.sym.spaces):
        return None
    placed = _placed(a, b) if any(e.linear is not None for e in g.elements.values()) else g  # bases leave no zeros
    back, state, gone = ~placed.restrict(kinds={"permutation"}), {}, 0
    for name, layout in a.sym.layouts.items():
        x = a.state[name]
        state[name] = x * transform((b.state[name] != 0).to(x), layout, back)
        gone += int((x != 0).sum() - (state[name] != 0).sum())
    return replace(a, state=state) if gone > _SPARSER * sum(x.numel() for x in state.values()) else None


def _agree(a: Folded, b: Folded, g: Transformation) -> bool:
    """Whether all tensors agree up to a cast once ``g`` is applied."""
    near = ((n, transform(a.state[n], layout, g)) for n, layout in a.sym.layouts.items())
    return all(constant(b.state[n]) or apart(x, b, n) <= _EQUAL for n, x in near)


def _matched(a: Folded, b: Folded) -> Transformation:
    """The element that brings ``a`` closest to ``b``; units are only searched where they are not in place."""
    if _in_place(a, b):
        return _fitted(a, b, identity(a.sym))
    placed = _placed(a, b)
    if all(_unchanged(transform(a.state[n], layout, placed), b, n) for n, layout in a.sym.layouts.items()):
        return placed
    g = by_consensus(Balanced.normal(a), Balanced.normal(b))[0]
    return min(_fitted(a, b, placed), placed, g, key=lambda h: _misfit(a, b, h, a.sym.layouts) + _costs(a, h))


def _placed(a: Folded, b: Folded) -> Transformation:
    """Permutations and signs alone, from where the units stand: changes of scales and bases cannot blur them."""
    sym = searched(a.sym, ("permutation", "sign"))
    return within(match_units(sym, a.state, b.state, start=identity(sym)).g, a.sym)


def _fitted(a: Folded, b: Folded, g: Transformation) -> Transformation:
    """``g`` with scales and bases fitted to all tensors."""
    fit = Fit(a.sym, a.state, b.state, g, b.spread)
    fit.each_space()
    for _ in range(_FITS):
        fit.bases()
        fit.scales()
    return fit.g


def _in_place(a: Folded, b: Folded) -> bool:
    """Whether every unit is closest to the one in its place, by the mean cosine of its slices."""
    carried = members(a.sym)
    for space in a.sym.spaces:
        total = count = None
        for m in carried[space.name]:
            x, y = (m.view(m.block.read(side.state[m.tensor])).double() for side in (a, b))
            norms = (x.square().sum(-1) * y.square().sum(-1)).sqrt()
            live = (norms > 0).double() * x.shape[-1]
            cosine = live * torch.nan_to_num((x * y).sum(-1) / norms)
            total, count = (cosine, live) if total is None or count is None else (total + cosine, count + live)
        if total is not None and count is not None and bool((total < _IN_PLACE * count).any()):
            return False
    return True


def _simplified(a: Folded, b: Folded, g: Transformation) -> Transformation:
    """``g`` without the parts that cost more to say than they explain."""
    carried = a.sym.carriers
    nothing, everything = identity(a.sym), a.sym.layouts
    if _misfit(a, b, nothing, everything) <= _misfit(a, b, g, everything) + _costs(a, g):
        return nothing
    for _ in range(2):
        for space in a.sym.spaces:
            g = _simpler(a, b, g, space, carried[space.name])
    return g


def _simpler(a: Folded, b: Folded, g: Transformation, space: Space, names: Sequence[str]) -> Transformation:
    """``g`` with the part of one space as simple as its tensors allow, the rest as it is."""
    if g[space.name].is_identity(0.0):
        return g

    def said(e: Element) -> tuple[float, Transformation]:
        h = Transformation({**g.elements, space.name: e}, g.certified)
        return _misfit(a, b, h, names) + _cost(e, space, a, names), h

    best = said(g[space.name])
    for change in _simplifications(g[space.name]):
        best = min(best, said(change(best[1][space.name])), key=lambda pair: pair[0])
    return best[1]


def _simplifications(e: Element) -> list[Callable[[Element], Element]]:
    """Ways to say less of an element, each applied to what is left of it."""
    kinds = {"permutation", "scale", "sign", "linear"}
    ways: list[Callable[[Element], Element]] = [lambda e: e.restrict(())]
    ways += [lambda e, k=k: e.restrict(kinds - {k}) for k in ("linear", "permutation", "sign", "scale")]  # type: ignore[misc]
    ways += [lambda e, t=t: _snapped(e, t) for t in _SNAPS if e.scales.numel()]  # type: ignore[misc]
    return ways


def _snapped(e: Element, below: float) -> Element:
    return replace(e, scales=torch.where(e.scales.abs() < below, 0.0, e.scales))


_Part = int | None  # what moves a space continuously: one of its scales, or (``None``) its matrix


def _borne_out(a: Folded, b: Folded, g: Transformation) -> Transformation:
    """``g`` without the scales and bases that explain one side only, the others fitted anew."""
    names = a.sym.layouts
    while refuted := _refuted(a, b, g):
        a, b = _held(a, refuted), _held(b, refuted)
        left = {s.name: replace(_less(g[s.name], refuted.get(s.name, ())), group=s.group) for s in a.sym.spaces}
        fitted = _fitted(a, b, Transformation({**g.elements, **left}, g.certified))
        weighted = refitted(a, b, Transformation({**g.elements, **left}, g.certified))
        g = _simplified(a, b, min(fitted, weighted, key=lambda h: _misfit(a, b, h, names, _ROUNDING)))
    return g


def _refuted(a: Folded, b: Folded, g: Transformation) -> dict[str, list[_Part]]:
    """By space the scales and matrices that are not borne out; of those that move the same tensors, the worst one."""
    worst: dict[frozenset[str], tuple[float, str, _Part]] = {}
    for space in a.sym.spaces:
        e = g[space.name]
        parts: list[_Part] = [k for k, logs in enumerate(e.scales) if bool(logs.any())] if e.linear is None else [None]
        for part in parts:
            left, names = _left_by(a, b, g, space.name, part)
            if left > worst.get(names, (_BORNE_OUT,))[0]:
                worst[names] = left, space.name, part
    found: dict[str, list[_Part]] = {}
    for _, name, part in worst.values():
        found.setdefault(name, []).append(part)
    return found


def _left_by(a: Folded, b: Folded, g: Transformation, space: str, part: _Part) -> tuple[float, frozenset[str]]:
    """The share of the distance that a part of ``g`` leaves on the side that it explains least, and what it moves.

    It is a geometric mean over the entries that the part moves, and infinite where it drives a tensor away. Tensors of
    which nothing is left, with it or without it, say nothing; that it explains no more numbers than it has, neither.
    """
    without = Transformation({**g.elements, space: _less(g[space], [part])}, g.certified)
    floor = _FLOOR.get(b.sym.dtype, 1e-7)
    sums: dict[bool, tuple[int, float]] = {}
    moved: dict[str, bool] = {}
    for name, layout in a.sym.layouts.items():
        signs = {x > 0 for block in blocks(layout) for _, leaf in block.carried if (x := _exponent(leaf, space, part))}
        if not signs:
            continue
        near, far = (transform(a.state[name], layout, h) for h in (g, without))
        touched = near != far
        if not bool(touched.any()):
            continue
        size = max(float(b.spread.get(name, b.state[name])[touched].norm()), 1e-300)
        met = b.state[name] if float((near * b.state[name]).sum()) >= 0 else -b.state[name]  # negated, it tells as much
        after, before = (max(float((x - met)[touched].norm()) / size, floor) for x in (near, far))
        moved[name] = min(after, _NOTHING) > _WORSE * min(before, _NOTHING)
        if min(after, before) >= _NOTHING:
            continue
        count = int(touched.sum())
        for side in signs:
            n, total = sums.get(side, (0, 0.0))
            sums[side] = n + count, total + count * log(after / before)
    told = sum(n for n, _ in sums.values()) > _numbers(g[space], part)
    sides = [exp(total / n) for n, total in sums.values()] or [inf]
    left = min(sides) if min(sides) <= _EXACT and max(sides) <= _HELPED else max(sides)
    return left if told and not any(moved.values()) else inf, frozenset(moved)


def _numbers(e: Element, part: _Part) -> int:
    """How many numbers a scale or a matrix has."""
    return int((e.scales[part] != 0).sum()) if part is not None else 0 if e.linear is None else e.linear.numel()


def _exponent(leaf: Leaf, space: str, part: _Part) -> float:
    """How a part of a space's element moves an axis: the sign tells what writes the units from what reads them."""
    if leaf.space != space:
        return 0.0
    return leaf.variance if part is None else float((leaf.scale or (0,) * (part + 1))[part])


def _less(e: Element, parts: Collection[_Part]) -> Element:
    """An element without some of its scales; without any, and its matrix, where that is to go."""
    if None in parts:
        return e.restrict({"permutation", "sign"})
    scales = e.scales.clone()
    scales[list(parts)] = 0.0
    return replace(e, scales=scales)


def _held(side: Folded, parts: Mapping[str, Collection[_Part]]) -> Folded:
    """Weights whose symmetry no longer has some scales and matrices."""
    gone = {name for name, some in parts.items() if None in some}

    def leaf(old: Leaf) -> Leaf:
        if old.space in gone:
            return replace(old, scale=tuple(0 * x for x in old.scale), variance=0)
        return replace(old, scale=tuple(0 * x if k in parts.get(old.space, ()) else x for k, x in enumerate(old.scale)))

    spaces = tuple(replace(s, group=s.group.reduced(mixes=False)) if s.name in gone else s for s in side.sym.spaces)
    layouts = {name: map_leaves(layout, leaf) for name, layout in side.sym.layouts.items()}
    return replace(side, sym=replace(side.sym, spaces=spaces, layouts=layouts))


def _costs(a: Folded, g: Transformation) -> float:
    carried = a.sym.carriers
    return sum(_cost(g[s.name], s, a, carried[s.name]) for s in a.sym.spaces)


def _cost(e: Element, space: Space, a: Folded, names: Collection[str]) -> float:
    """Nats that it takes to say an element that is fitted to some tensors."""
    weights = sum(a.state[n].numel() for n in names)
    scalars = int((e.scales != 0).sum()) + (0 if e.linear is None else prod(e.linear.shape))
    discrete = e.displaced + int((e.signs < 0).sum())
    return 0.5 * scalars * log(max(weights, 2)) + discrete * log(max(space.size, 2))


def _misfit(
    a: Folded, b: Folded, g: Transformation, names: Collection[str], floors: Mapping[torch.dtype, float] = _FLOOR
) -> float:
    """``Σ N log d`` over tensors of ``N`` weights that are left a relative distance ``d`` apart."""
    floor = floors.get(b.sym.dtype, 1e-7)
    total: Any = 0.0
    for name in names:
        d = apart(transform(a.state[name], a.sym.layouts[name], g), b, name)
        total += b.state[name].numel() * log(min(max(d, floor), _NOTHING))
    return float(total)
