"""Iteratively reweighted matching: tensors that agree decide, so that those that were changed cannot blur it.

It is worth the work where some tensors may be unchanged, whatever scales are fitted to the others.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import log, prod

import torch
from torch import Tensor

from ...symmetry.action import moved, transform
from ...symmetry.blocks import Block, align, blocks, parent_dims
from ...symmetry.coupling import narrowed
from ...symmetry.gauge.canonical import Folded
from ...symmetry.spaces import Layout, Space
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Balanced
from ..judgement.deviation import TRUST, Deviation, apart, deviation
from .freedoms import AGREES, moving, pinned, unflipped
from .refit import Fit
from .units import FITS, closest, lifted, match_units, monomial

_ABSENT = 1e4  # times the ridge: squared distance of a tensor that has no vote
_RIDGES = (1e-2, 1e-5, 1e-8)  # squared distances of tensors that get half a vote, one after the other
_FINE = (1e-11, 1e-14)  # the same once units are known
_ALIKE = 0.5  # smallest over largest vote from which on weighting changes nothing
_SETTLED = 0.1  # fall of the loss that is worth another fit
_FITTED = 2  # weights for each free scale or entry of a basis from which on a fit does not explain every tensor
_FEW = 4  # tensors that may be far away whatever their sizes
_QUICK = 1_000_000  # far tensors times weights of all up to which each may decide in no time
_DRIVEN = 7.0  # largest log scale between balanced coordinates
_FAINT = 1e-6  # votes of far tensors where another of them decides: they order what it does not carry

_NEAR = 0.5  # relative distance up to which a fitted basis may have blurred a tensor that was not changed
_CHANGED = 2.0**-8  # median relative deviation above any cast's: bfloat16 leaves 2^-11, and fitted scales double that
_HIDDEN = 3  # tensors that may differ even where they are most: what was changed hides that those beside it were not
_SAMPLE = 64  # units of a dimension that are looked at: a median of so many squared is known to a few per cent
_ROUNDS = 4  # fits of one dimension after the other: each leaves a tenth of the error

_Place = Callable[[Transformation, Mapping[str, float]], Transformation]  # units matched anew by votes


@dataclass(frozen=True)
class _State:
    """An element, and the relative distances that it leaves."""

    g: Transformation
    distances: Mapping[str, float]

    @classmethod
    def of(cls, fit: Fit, b: Folded, votes: Mapping[str, float] | None = None) -> "_State":
        """Where a fit stands; with votes after another round of it."""
        if votes is not None:
            fit.round(votes)
        return cls(fit.g, fit.measured(lambda name, near: apart(near, b, name)))

    @property
    def far(self) -> frozenset[str]:
        """Tensors that do not agree."""
        return frozenset(n for n, d in self.distances.items() if not d <= AGREES)

    def loss(self, ridge: float) -> float:
        """``Σ log(d² + ridge)`` over the distances of tensors, whose majorisers the votes are."""
        return sum(log(min(d, 1.0) ** 2 + ridge) for d in self.distances.values())


def by_consensus(
    a: Balanced, b: Balanced, rounded: Collection[str] = (), count: int | None = None, part: bool = False
) -> tuple[Transformation, float, Deviation]:
    """The element that brings ``a`` closest to ``b``, the balanced residual, and how far weights are apart."""
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
    """
    one, other = a.folded, b.folded
    found = start = _State.of(Fit(one, other, g), other)
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
    found = _State.of(Fit(a, b, g), b)
    for ridge in (*_RIDGES, *_FINE):
        found = _reweighted(a, b, found, ridge)
    return found.g


def _reweighted(a: Folded, b: Folded, state: _State, ridge: float, place: _Place | None = None) -> _State:
    """Units, scales and bases by votes that a tensor at the distance of the ridge has half of."""
    votes = _votes(state.distances, ridge)
    if not max(votes.values(), default=0.0) or min(votes.values()) > _ALIKE * max(votes.values()):
        return state
    fit = Fit(a, b, state.g if place is None else place(state.g, votes))
    fit.each_space(votes)
    for _ in range(FITS):
        now = _State.of(fit, b, votes)
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
    return state if g is state.g else _State.of(Fit(a, b, g), b)


def _agreed(a: Balanced, b: Balanced, state: _State) -> _State:
    """The state in which most tensors agree that is reached by letting one far one decide, where these are few."""
    sizes = {n: x.numel() for n, x in a.folded.state.items()}
    far, all_ = sum(sizes[n] for n in state.far), sum(sizes.values())
    some_agree = 4 * len(state.far) <= 3 * len(sizes) and len(state.far) * all_ <= _QUICK
    few = len(state.far) <= _FEW or 2 * far <= all_ or some_agree
    seeds = _open(a, state) if few else set()
    while seeds:
        found = {name: _decided(a, b, state, name) for name in sorted(seeds)}
        best = min(found.values(), key=lambda s: s.loss(TRUST))
        for ridge in _RIDGES[1:]:
            best = _reweighted(a.folded, b.folded, best, ridge, lambda g, votes: _placed(a, b, g, votes))
        if len(best.far) >= len(state.far):
            break
        state = best
        # a tensor that no element explains where it decides alone was changed, unless others were in its way
        left = _open(a, state)
        again = left if len(left) <= _FEW else set()
        seeds = left & {name for name, s in found.items() if name not in s.far} or again
    return state


def _open(a: Balanced, state: _State) -> set[str]:
    """Far tensors that share with others what none decides that agrees, as no tensor does that fits by itself."""
    sym, far = a.sym, state.far
    near = [n for n in sym.layouts if n not in far]
    still = pinned(sym, [n for n in near if a.folded.state[n].numel() >= _FITTED * narrowed(sym, [n]).dim])
    free = {n: moving(sym.layouts[n]) - still for n in far}
    return {n for n in far if any(free[n] & free[other] for other in far - {n})}


def _decided(a: Balanced, b: Balanced, state: _State, name: str) -> _State:
    """Units, scales and bases as one of the far tensors has them, as far as near ones do not decide."""
    sure = state.distances.keys() - state.far | {name}
    votes = {n: float(n in sure) for n in state.distances}
    g = _placed(a, b, state.g, {n: 1.0 if n in sure else _FAINT for n in state.distances})
    fit = Fit(a.folded, b.folded, g)
    fit.each_space(votes)
    found = _State.of(fit, b.folded)
    for _ in range(FITS):
        before, found = found, _State.of(fit, b.folded, votes)
        if before.loss(TRUST) - found.loss(TRUST) < _SETTLED:
            break
    return found


def _placed(a: Balanced, b: Balanced, g: Transformation, votes: Mapping[str, float]) -> Transformation:
    """``g`` with units matched anew by votes, in the balanced coordinates of ``b``."""
    signed, g = monomial(a.sym), b.to @ g @ ~a.to
    for name, e in g.elements.items():  # no copy has such scales there: fits drive them off where units do not match
        g = with_parts(g, name, scales=e.scales.clamp(-_DRIVEN, _DRIVEN))
    near = g @ a.to
    normal = {**a.folded.state, **moved(a.sym, near, a.folded.state)}
    found, _ = match_units(signed, normal, b.state, votes, identity(signed))
    return ~b.to @ (lifted(found, a.sym) @ near)


def _votes(distances: Mapping[str, float], ridge: float) -> dict[str, float]:
    """Half a vote for a tensor whose squared distance is the ridge; none where it is far larger."""
    squares = {name: min(d, 1.0) ** 2 for name, d in distances.items()}
    return {name: ridge / (d + ridge) if d < _ABSENT * ridge else 0.0 for name, d in squares.items()}


def may_be_unchanged(a: Folded, b: Folded, g: Transformation, found: Deviation, part: bool = False) -> bool:
    """Whether most tensors that tell, all but a few, or one of a ``part``, are unchanged but for scales of their own.

    Those that were changed blur the scales fitted to all; no element makes equal what its own scales leave apart.
    """
    spaces = {s.name: s for s in a.sym.spaces}
    telling, near = [], []
    for name in (name for name, t in found.tensors.items() if t.informative):
        layout = a.sym.layouts[name]
        if any(spaces[s].group.mixes for s in layout.spaces):
            same = found.tensors[name].distance < _NEAR
        else:
            same = _median(transform(a.state[name], layout, g), b, name, spaces) <= _CHANGED
        near += [name] if same else []
        telling += [name] if same or _tells(b.state[name], layout, spaces) else []
    weights, all_ = (sum(found.tensors[n].size for n in some) for some in (near, telling))
    few = len(telling) - len(near) <= _HIDDEN
    return bool(near) and (part or few or 2 * len(near) >= len(telling) or 2 * weights >= all_)


def _tells(x: Tensor, layout: Layout, spaces: Mapping[str, Space]) -> bool:
    """Whether a tensor has more weights than scales of its own could fit."""
    shapes = {block: block.read(x).shape for block in blocks(layout)}
    count = sum(prod(shape[d] for d in dims) for block, shape in shapes.items() for dims in _scaled(block, spaces))
    return x.numel() >= _FITTED * count


def _scaled(block: Block, spaces: Mapping[str, Space]) -> list[list[int]]:
    """The dimensions of a block along which scales move it, each with those of the space's parents."""
    return [parent_dims(spaces[leaf.space], d, block.spaces) for d, leaf in block.carried if any(leaf.scale)]


def _median(near: Tensor, b: Folded, name: str, spaces: Mapping[str, Space]) -> float:
    """Median relative deviation of a sample of entries, under scales of this tensor alone."""
    ratios = []
    for block in blocks(b.sym.layouts[name]):
        corner = tuple(slice(_SAMPLE) for _ in block.leaves)
        x, y, sizes = (block.read(t)[corner].double() for t in (near, b.state[name], b.size(name)))
        gap = (_fitted(x, y, block, spaces) - y).abs()
        ratios.append(torch.where(gap == 0, 0.0, gap / sizes.abs().clamp_min(1e-300)).flatten())
    return float(torch.cat(ratios).median()) if ratios else 0.0


def _fitted(x: Tensor, y: Tensor, block: Block, spaces: Mapping[str, Space]) -> Tensor:
    """One block with the scales that bring it closest to another, dimension by dimension."""
    scaled = _scaled(block, spaces)
    if x.numel() < _FITTED * sum(prod(x.shape[d] for d in dims) for dims in scaled):
        return x
    for _ in range(_ROUNDS if len(scaled) > 1 else len(scaled)):
        for dims in scaled:
            rest = [d for d in range(x.ndim) if d not in dims]
            inner, squares = ((x * t).permute(*dims, *rest).flatten(len(dims)).sum(-1) for t in (y, x))
            x = x * align((inner / squares.clamp_min(1e-300)).clamp_min(0), dims, x.ndim)
    return x
