"""The simplest element of a symmetry group that explains how one state dict became another."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import exp, inf, log

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..._io.lazy import LazyState, State
from ..._nested import by_key
from ...groups import Element
from ...matching.coordinates.networks import Balanced
from ...matching.coordinates.problem import members, searched, within
from ...matching.element_fit.consensus import AGREES, by_consensus, freedoms, pinned, refitted, unflipped
from ...matching.element_fit.refit import Fit
from ...matching.element_fit.units import match_units
from ...matching.judgement.deviation import PRECISIONS, apart, constant, meets
from ...symmetry.action import transform
from ...symmetry.blocks import summed
from ...symmetry.coupling import regrouped, restricted
from ...symmetry.gauge.canonical import Folded, check_weights, fold
from ...symmetry.spaces import Fixed, Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity

_SPARSER = 0.05  # share of newly zero entries above which elements are sought without these entries
_IN_PLACE = 0.7  # mean cosine of a unit's slices with those of the unit in its place, above which no other is closer
_FEW = 64  # units that are compared with each other
_CLOSER = 1e-3  # by how much another unit must be closer, more than rounding makes it
_FLOOR = {torch.float32: 1e-7, torch.float64: 1e-12}  # relative distances that rounding leaves
_ROUNDING = {torch.float32: PRECISIONS["float32"], torch.float64: PRECISIONS["float64"]}  # what fits may leave
_SNAPS = (0.05, 0.01, 1e-3, 0.0)  # log scales below which a unit may be left unscaled
_FITS = 3
_NOTHING = 0.9  # relative distance that explains nothing: matched units of unrelated networks are as close
_BORNE_OUT = 0.5  # share of a distance that scales or a basis may leave on each side, writing and reading units
_EXACT, _HELPED = 0.05, 0.95  # the same if one side is nearly explained: a scale from training drives the other away
_WORSE = 2.0  # no tensor may be left at this multiple of its distance without them: training moves some by chance


def explained(sym: Symmetry, a: State, b: State) -> tuple["FoldedPair", Transformation]:
    """The simplest element that explains how ``a`` became ``b``, by description length.

    Spaces pinned by an unchanged tensor stay in place; the others are searched as in ``same``. A part of the element is
    kept if its description (``n log n`` for a permutation, half a ``log N`` for each scale fitted to ``N`` weights) is
    shorter than what it saves: ``N log`` of the distance of each tensor. So a low-rank update is not blurred by scales
    fitted to it. Scales and bases must also bring the tensors closer that carry their inverse: training that makes one
    layer larger is no rescaling.

    Returns:
        The weights, with batch norms folded, and the element. Missing or non-finite weights are refused.
    """
    for state in (a, b):
        check_weights(sym, state)
    double = any(state[name].dtype == torch.float64 for state in (a, b) for name in sym.layouts)
    one, other = (_folded(sym, state, torch.float64 if double else torch.float32) for state in (a, b))
    pair, folded, found = FoldedPair(one, other), one.sym, identity(one.sym)
    still = pinned(folded, [name for name in folded.layouts if pair.unchanged(name, found)])
    free = {s.name for s in folded.spaces if folded.carriers[s.name] and not freedoms(s) <= still}
    free |= {p for s in folded.spaces if s.name in free for p in s.parents}  # a space lies inside its parents
    if free:
        placed = {s for s, kind, _ in still if kind == "permutation"}
        part = FoldedPair(*(_part(side, free, placed) for side in (one, other)))
        g = _simplest(part)
        g = unflipped(part.a, part.b, g, [n for n in part.a.sym.layouts if not part.apart(n, g) <= AGREES])
        elements = {n: replace(e, group=found[n].group) for n, e in g.elements.items()}
        found = Transformation({**found.elements, **elements})
    return pair, found


def _folded(sym: Symmetry, state: State, dtype: torch.dtype) -> Folded:
    """Weights with batch norms folded; if there are none, tensors are read on demand."""
    if sym.batch_norms or isinstance(state, dict):
        return fold(sym, state, dtype)
    wide = LazyState({n: partial(lambda n: state[n].detach().to("cpu", dtype), n) for n in sym.layouts})
    return Folded(replace(sym, dtype=dtype), wide, {}, frozenset())  # type: ignore[arg-type]


def _part(side: Folded, free: Collection[str], placed: Collection[str]) -> Folded:
    """The tensors that carry ``free`` spaces, with other spaces fixed; ``placed`` spaces are not permuted."""
    groups = {
        s.name: s.group.reduced(permutes=False) for s in side.sym.spaces if s.name in placed and not s.group.mixes
    }
    held = regrouped(side.sym, groups, lambda leaf: leaf if leaf.space in free else Fixed(leaf.size, "in place"))
    kept = [name for name, layout in held.layouts.items() if layout.spaces]
    means = {n: mean for n, mean in side.means.items() if n in kept}
    return replace(side, sym=restricted(held, kept), state={n: side.state[n] for n in kept}, means=means)


@dataclass(frozen=True, eq=False)
class FoldedPair:
    """Weights to move and target weights, with the gain and cost of elements between them."""

    a: Folded
    b: Folded

    def near(self, name: str, g: Transformation) -> Tensor:
        """A tensor moved by an element."""
        return transform(self.a.state[name], self.a.sym.layouts[name], g)

    def apart(self, name: str, g: Transformation) -> float:
        """The relative distance of a moved tensor from its target."""
        return apart(self.near(name, g), self.b, name, self.met(name, g))

    def met(self, name: str, g: Transformation) -> Tensor:
        """The target of a moved tensor."""
        return meets(lambda n: self.near(n, g), self.b, name)

    def unchanged(self, name: str, g: Transformation) -> bool:
        """Whether a tensor and every row along every axis agree up to a cast, so that no single unit was moved."""
        if constant(self.a.state[name]) or not self.apart(name, g) <= AGREES:
            return False
        x, y = self.near(name, g), self.met(name, g)
        gap, size = (x - y).square(), AGREES**2 * y.square()
        return all(bool((summed(gap, [dim]) <= summed(size, [dim])).all()) for dim in range(x.ndim))

    def agree(self, g: Transformation) -> bool:
        """Whether all tensors agree up to a cast."""
        return all(constant(self.b.state[n]) or self.apart(n, g) <= AGREES for n in self.a.sym.layouts)

    def misfit(
        self, g: Transformation, names: Iterable[str] | None = None, floors: Mapping[torch.dtype, float] = _FLOOR
    ) -> float:
        """``Σ N log d`` over tensors with ``N`` weights at a remaining relative distance ``d``."""
        floor, every = floors.get(self.b.sym.dtype, 1e-7), self.a.sym.layouts if names is None else names
        bounded = ((n, min(max(self.apart(n, g), floor), _NOTHING)) for n in every)
        return float(sum(self.b.state[n].numel() * log(d) for n, d in bounded))

    def cost(self, e: Element, space: Space) -> float:
        """Description length, in nats, of an element fitted to all tensors that carry a space."""
        weights = sum(self.a.state[n].numel() for n in self.a.sym.carriers[space.name])
        scalars = int((e.scales != 0).sum()) + (0 if e.linear is None else e.linear.numel())
        discrete = e.displaced + int((e.signs < 0).sum())
        return 0.5 * scalars * log(max(weights, 2)) + discrete * log(max(space.size, 2))

    def length(self, g: Transformation) -> float:
        """Total description length: the cost of an element plus the misfit it leaves."""
        return self.misfit(g) + sum(self.cost(g[s.name], s) for s in self.a.sym.spaces)

    def fitted(self, g: Transformation) -> Transformation:
        """``g`` with scales and bases fitted to all tensors."""
        fit = Fit(self.a, self.b, g)
        fit.each_space()
        for _ in range(_FITS):
            fit.round()
        return fit.g

    def placed(self) -> Transformation:
        """Permutations and signs alone, starting from the units in place, unblurred by changes of scales and bases."""
        sym = searched(self.a.sym, ("permutation", "sign"))
        return within(match_units(sym, self.a.state, self.b.state, start=identity(sym)).g, self.a.sym)

    @property
    def in_place(self) -> bool:
        """Whether every unit is closest to the one in its place, by the mean cosine of its slices."""
        for some in members(self.a.sym).values():
            total, count = torch.zeros(()), torch.zeros(())
            for m in some:
                x, y = (m.view(m.block.read(side.state[m.tensor])).double() for side in (self.a, self.b))
                x, y, length = normalize(x, dim=-1), normalize(y, dim=-1), x.shape[-1]
                every = m.space.size <= _FEW  # all pairs: a few units, such as experts, may all be alike
                cosines = x @ y.mT if every else (x * y).sum(-1)
                live = x.any(-1)[..., None] & y.any(-1)[..., None, :] if every else x.any(-1) & y.any(-1)
                total, count = total + length * cosines, count + length * live
            here = total.diagonal(dim1=-2, dim2=-1) if total.ndim and every else total
            there = count.diagonal(dim1=-2, dim2=-1) if total.ndim and every else count
            if bool((here < _IN_PLACE * there).any()):
                return False
            if total.ndim and every and bool((total.amax(-1) > here + _CLOSER * there).any()):
                return False
        return True


def _simplest(pair: FoldedPair) -> Transformation:
    """The simplest element that takes ``a`` to ``b``; if ``b`` was pruned, judged by the remaining entries."""
    g = _borne_out(pair, _simplified(pair, _matched(pair)))
    kept = _pruned(pair, g)
    if kept is None or kept.agree(g):
        return g
    h = _borne_out(kept, _simplified(kept, _matched(kept)))
    return h if kept.agree(h) else g


def _pruned(pair: FoldedPair, g: Transformation) -> FoldedPair | None:
    """``a`` with zeros where ``b`` has them, since they would blur scales; ``None`` if few entries became zero."""
    a, b = pair.a, pair.b
    if not any(s.group.scales for s in a.sym.spaces):
        return None
    placed = pair.placed() if any(e.linear is not None for e in g.elements.values()) else g  # bases leave no zeros
    back, state, gone = ~placed.restrict(kinds={"permutation"}), {}, 0
    for name, layout in a.sym.layouts.items():
        x = a.state[name]
        state[name] = x * transform((b.state[name] != 0).to(x), layout, back)
        gone += int((x != 0).sum() - (state[name] != 0).sum())
    enough = gone > _SPARSER * sum(x.numel() for x in state.values())
    return FoldedPair(replace(a, state=state), b) if enough else None


def _matched(pair: FoldedPair) -> Transformation:
    """The element that brings ``a`` closest to ``b``; units are searched only if they are not in place."""
    if pair.in_place:
        return pair.fitted(identity(pair.a.sym))
    placed = pair.placed()
    if all(pair.unchanged(n, placed) for n in pair.a.sym.layouts):
        return placed
    g = by_consensus(Balanced.normal(pair.a), Balanced.normal(pair.b))[0]
    return min(pair.fitted(placed), placed, g, key=pair.length)


def _simplified(pair: FoldedPair, g: Transformation) -> Transformation:
    """``g`` without the parts whose description costs more than they explain."""
    if pair.misfit(nothing := identity(pair.a.sym)) <= pair.length(g):
        return nothing
    g = _uncancelled(pair, g)
    for space in 2 * pair.a.sym.spaces:
        if not g[space.name].is_identity(0.0):
            g = _simpler(pair, g, space)
    return g


def _uncancelled(pair: FoldedPair, g: Transformation) -> Transformation:
    """``g`` without flips of units that flips of all their inner units undo, such as of a head and its rotary pairs."""
    carriers = pair.a.sym.carriers
    for space in (s for s in pair.a.sym.spaces if s.parents and g[s.parents[-1]].parents == s.parents[:-1]):
        name, outer = space.name, space.parents[-1]
        for i, k in product(range(space.group.signs), range(len(g[outer].signs))):
            inner, whole = g[name].signs.clone(), g[outer].signs.clone()
            turned = (whole[k] < 0) & (inner[i].sum(-1) <= 0)  # fewer are flipped without
            if bool(turned.any()):
                inner[i, turned], whole[k, turned] = -inner[i, turned], -whole[k, turned]
                parts = {name: replace(g[name], signs=inner), outer: replace(g[outer], signs=whole)}
                h = Transformation({**g.elements, **parts}, g.certified)
                touched = {*carriers[name], *carriers[outer]}
                g = h if pair.misfit(h, touched) <= pair.misfit(g, touched) else g
    return g


_KINDS = ("linear", "permutation", "sign", "scale")
_SIMPLER: list[Callable[[Element], Element]] = [  # simplifications of an element, applied one after the other
    lambda e: e.restrict(()),
    *(lambda e, k=k: e.restrict({*_KINDS} - {k}) for k in _KINDS),
    *(lambda e, t=t: replace(e, scales=torch.where(e.scales.abs() < t, 0.0, e.scales)) for t in _SNAPS),
]


def _simpler(pair: FoldedPair, g: Transformation, space: Space) -> Transformation:
    """``g`` with the part of one space as simple as its tensors allow, and the rest unchanged."""

    def said(e: Element) -> tuple[float, Transformation]:
        h = Transformation({**g.elements, space.name: e}, g.certified)
        return pair.misfit(h, pair.a.sym.carriers[space.name]) + pair.cost(e, space), h

    best = said(g[space.name])
    for change in _SIMPLER:
        best = min(best, said(change(best[1][space.name])), key=lambda found: found[0])
    return best[1]


_Part = int | None  # a continuous part of a space's element: one of its scales, or (``None``) its matrix


def _borne_out(pair: FoldedPair, g: Transformation) -> Transformation:
    """``g`` without scales and bases that explain only one side, with the others refitted."""
    while refuted := _refuted(pair, g):
        pair = FoldedPair(_held(pair.a, refuted), _held(pair.b, refuted))
        spaces = pair.a.sym.spaces
        left = {s.name: replace(_less(g[s.name], refuted.get(s.name, ())), group=s.group) for s in spaces}
        start = Transformation({**g.elements, **left}, g.certified)
        weighted = refitted(pair.a, pair.b, start)
        g = min(pair.fitted(start), weighted, key=lambda h: pair.misfit(h, floors=_ROUNDING))
        g = _simplified(pair, g)
    return g


def _refuted(pair: FoldedPair, g: Transformation) -> dict[str, list[_Part]]:
    """Unconfirmed scales and matrices by space; of those that move the same tensors, only the worst."""
    worst: dict[frozenset[str], tuple[float, str, _Part]] = {}
    for space in pair.a.sym.spaces:
        e = g[space.name]
        parts: list[_Part] = [k for k, logs in enumerate(e.scales) if bool(logs.any())] if e.linear is None else [None]
        for part in parts:
            left, names = _left_by(pair, g, space.name, part)
            if left > worst.get(names, (_BORNE_OUT,))[0]:
                worst[names] = left, space.name, part
    return by_key((name, part) for _, name, part in worst.values())


def _left_by(pair: FoldedPair, g: Transformation, space: str, part: _Part) -> tuple[float, frozenset[str]]:
    """The share of the distance that a part of ``g`` leaves on the side that it explains least, and what it moves.

    The share is a geometric mean over the entries that the part moves. It is infinite if the part drives a tensor away
    and does not nearly explain the others. Tensors of which nothing is left, with or without the part, are no evidence;
    nor is explaining no more numbers than the part has.
    """
    b, e = pair.b, g[space]
    without = Transformation({**g.elements, space: _less(e, [part])}, g.certified)
    floor = _FLOOR.get(b.sym.dtype, 1e-7)
    sums: dict[bool, tuple[int, float]] = {}
    moved: dict[str, bool] = {}
    for name, layout in pair.a.sym.layouts.items():
        signs = {x > 0 for leaf in layout.leaves if (x := _exponent(leaf, space, part))}
        if not signs:
            continue
        near, far = (pair.near(name, h) for h in (g, without))
        touched = near != far
        if not bool(touched.any()):
            continue
        size = max(float(b.size(name)[touched].norm()), 1e-300)
        after, before = (
            max(float((x - y if float((near * y).sum()) >= 0 else x + y)[touched].norm()) / size, floor)
            for x, y in ((near, pair.met(name, g)), (far, pair.met(name, without)))
        )  # a negated tensor tells as much
        moved[name] = min(after, _NOTHING) > _WORSE * min(before, _NOTHING)
        if min(after, before) >= _NOTHING:
            continue
        count = int(touched.sum())
        for side in signs:
            n, total = sums.get(side, (0, 0.0))
            sums[side] = n + count, total + count * log(after / before)
    numbers = e.linear.numel() if part is None and e.linear is not None else int((e.scales[part or 0] != 0).sum())
    sides = [exp(total / n) for n, total in sums.values()] or [inf]
    left = min(sides) if min(sides) <= _EXACT and max(sides) <= _HELPED else max(sides)
    driven = any(moved.values()) and max(sides) > _EXACT
    told = sum(n for n, _ in sums.values()) > numbers and not driven
    return left if told else inf, frozenset(moved)


def _exponent(leaf: Leaf, space: str, part: _Part) -> float:
    """Exponent with which a part of a space's element moves an axis; its sign separates writing from reading axes."""
    if leaf.space != space:
        return 0.0
    return leaf.variance if part is None else float((leaf.scale or (0,) * (part + 1))[part])


def _less(e: Element, parts: Collection[_Part]) -> Element:
    """An element without some of its scales; without all of them and its matrix, if that must go."""
    if None in parts:
        return e.restrict({"permutation", "sign"})
    scales = e.scales.clone()
    scales[list(parts)] = 0.0
    return replace(e, scales=scales)


def _held(side: Folded, parts: Mapping[str, Collection[_Part]]) -> Folded:
    """Weights with some scales and matrices removed from their symmetry."""
    gone = {name for name, some in parts.items() if None in some}

    def leaf(old: Leaf) -> Leaf:
        if old.space in gone:
            return replace(old, scale=tuple(0 * x for x in old.scale), variance=0)
        return replace(old, scale=tuple(0 * x if k in parts.get(old.space, ()) else x for k, x in enumerate(old.scale)))

    groups = {name: side.sym.space(name).group.reduced(mixes=False) for name in gone}
    return replace(side, sym=regrouped(side.sym, groups, leaf))
