"""Iteratively reweighted matching: tensors that agree decide, so that changed tensors cannot blur the match.

Also: what agreeing tensors pin, and flips of whole spaces at once, which no single step undoes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import log
from operator import xor

import torch

from ..._nested import by_key
from ...symmetry.action import moved, transform
from ...symmetry.blocks import Block, blocks
from ...symmetry.coupling import narrowed
from ...symmetry.detection.equations import BinarySpan, bits_of
from ...symmetry.gauge.canonical import Folded
from ...symmetry.spaces import Layout, Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Balanced
from ..judgement.deviation import TRUST, Deviation, apart, deviation, relative
from .refit import Fit
from .units import FITS, closest, lifted, match_units, monomial

_ABSENT = 1e4  # times the ridge: squared distance from which a tensor has no vote
_RIDGES = (1e-2, 1e-5, 1e-8)  # squared distances at which a tensor gets half a vote, used in turn
_FINE = (1e-11, 1e-14)  # the same once units are known
_ALIKE = 0.5  # ratio of smallest to largest vote above which weighting changes nothing
_SETTLED = 0.1  # fall of the loss that justifies another fit
_FITTED = 2  # weights per free scale or basis entry from which a fit cannot explain just any tensor
_FEW = 4  # tensors that may be far whatever their sizes
_QUICK = 1_000_000  # far tensors times all weights, up to which letting each decide is cheap
_DRIVEN = 7.0  # largest log scale between balanced coordinates
AGREES = 2.0**-7  # relative distance of a tensor that a cast to bfloat16 leaves
_FAINT = 1e-6  # votes of far tensors while another decides: they order what that one does not carry

_NEAR = 0.5  # relative distance up to which a fitted basis may have blurred an unchanged tensor
_CHANGED = 2.0**-8  # relative distance above any cast's: bfloat16 leaves 2^-10
_TURNS = 4  # fits of a tensor's spaces in turn: each leaves a tenth of the error
_HIDDEN = 3  # tensors that may differ even if they are the majority: changed tensors hide unchanged neighbours

_Place = Callable[[Transformation, Mapping[str, float]], Transformation]  # rematches units by votes


@dataclass(frozen=True)
class _Reached:
    """An element and the relative distances that it leaves."""

    g: Transformation
    distances: Mapping[str, float]

    @classmethod
    def of(cls, fit: Fit, b: Folded, votes: Mapping[str, float] | None = None) -> "_Reached":
        """The state of a fit; with votes, after one more round."""
        if votes is not None:
            fit.round(votes)
        return cls(fit.g, fit.measured(lambda name, near: apart(near, b, name)))

    @property
    def far(self) -> frozenset[str]:
        """Tensors that do not agree."""
        return frozenset(n for n, d in self.distances.items() if not d <= AGREES)

    def loss(self, ridge: float) -> float:
        """``Σ log(d² + ridge)`` over the distances of tensors; the votes are its majorisers."""
        return sum(log(min(d, 1.0) ** 2 + ridge) for d in self.distances.values())


def by_consensus(
    a: Balanced, b: Balanced, rounded: Collection[str] = (), count: int | None = None, part: bool = False
) -> tuple[Transformation, float, Deviation]:
    """The element that brings ``a`` closest to ``b``, the balanced residual, and the deviation of the weights."""
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
    """Elements refitted to the tensors that ``g`` explains best, so that the others cannot blur them.

    A tensor votes with the inverse of its squared distance. If some tensors were changed and the rest was not, units,
    scales and bases then follow from the rest alone (iteratively reweighted least squares). Where no agreeing tensor
    decides, far tensors may jointly hold a wrong solution. There each of them decides alone, in turn, and the solution
    that makes most of them agree is kept (consensus, as in RANSAC).

    Each element is fitted to fewer tensors than the one before. If all tensors were rounded alike, the first may
    explain it, and the last fits some tensors better than rounding does, at the expense of others.
    """
    one, other = a.folded, b.folded
    found = start = _Reached.of(Fit(one, other, g), other)
    for ridge in _RIDGES:
        found = _reweighted(one, other, found, ridge, partial(_placed, a, b))
    found = _turned(one, other, _agreed(a, b, _turned(one, other, found)))
    if found is not start and found.loss(TRUST) <= start.loss(TRUST):  # flipped signs may leave as much
        yield found.g
    for ridge in _FINE:
        found = _reweighted(one, other, found, ridge)
    if found is not start and found.loss(TRUST) <= start.loss(TRUST):
        yield found.g


def refitted(a: Folded, b: Folded, g: Transformation) -> Transformation:
    """The element with known units, and scales and bases refitted to the tensors that ``g`` explains best."""
    found = _Reached.of(Fit(a, b, g), b)
    for ridge in (*_RIDGES, *_FINE):
        found = _reweighted(a, b, found, ridge)
    return found.g


def _reweighted(a: Folded, b: Folded, state: _Reached, ridge: float, place: _Place | None = None) -> _Reached:
    """Units, scales and bases by votes; a tensor at the distance of the ridge has half a vote."""
    votes = _votes(state.distances, ridge)
    if not max(votes.values(), default=0.0) or min(votes.values()) > _ALIKE * max(votes.values()):
        return state
    fit = Fit(a, b, state.g if place is None else place(state.g, votes))
    fit.each_space(votes)
    for _ in range(FITS):
        now = _Reached.of(fit, b, votes)
        fell = state.loss(ridge) - now.loss(ridge)
        if fell > 0:
            state = now
        if fell < _SETTLED:
            break
        votes = _votes(state.distances, ridge)
    return state


def _turned(a: Folded, b: Folded, state: _Reached) -> _Reached:
    """The state with whole spaces flipped where tensors are negated, which no step of a single space can do."""
    g = unflipped(a, b, state.g, state.far)
    return state if g is state.g else _Reached.of(Fit(a, b, g), b)


def _agreed(a: Balanced, b: Balanced, state: _Reached) -> _Reached:
    """The state in which most tensors agree, found by letting each far tensor decide in turn, if these are few."""
    sizes = {n: x.numel() for n, x in a.folded.state.items()}
    far, all_ = sum(sizes[n] for n in state.far), sum(sizes.values())
    some_agree = 4 * len(state.far) <= 3 * len(sizes) and len(state.far) * all_ <= _QUICK
    few = len(state.far) <= _FEW or 2 * far <= all_ or some_agree
    seeds = _open(a, state) if few else set()
    while seeds:
        found = {name: _decided(a, b, state, name) for name in sorted(seeds)}
        best = min(found.values(), key=lambda s: s.loss(TRUST))
        for ridge in _RIDGES[1:]:
            best = _reweighted(a.folded, b.folded, best, ridge, partial(_placed, a, b))
        if len(best.far) >= len(state.far):
            break
        state = best
        # a tensor that no element explains even when it decides alone was changed, unless others interfered
        left = _open(a, state)
        again = left if len(left) <= _FEW else set()
        seeds = left & {name for name, s in found.items() if name not in s.far} or again
    return state


def _open(a: Balanced, state: _Reached) -> set[str]:
    """Far tensors that share with others freedoms that no agreeing tensor decides; a tensor alone would be fitted."""
    sym, far = a.sym, state.far
    near = [n for n in sym.layouts if n not in far]
    still = pinned(sym, [n for n in near if a.folded.state[n].numel() >= _FITTED * narrowed(sym, [n]).dim])
    free = {n: moving(sym.layouts[n]) - still for n in far}
    return {n for n in far if any(free[n] & free[other] for other in far - {n})}


def _decided(a: Balanced, b: Balanced, state: _Reached, name: str) -> _Reached:
    """Units, scales and bases as one far tensor determines them, except where near tensors decide."""
    sure = state.distances.keys() - state.far | {name}
    votes = {n: float(n in sure) for n in state.distances}
    g = _placed(a, b, state.g, {n: 1.0 if n in sure else _FAINT for n in state.distances})
    fit = Fit(a.folded, b.folded, g)
    fit.each_space(votes)
    found = _Reached.of(fit, b.folded)
    for _ in range(FITS):
        before, found = found, _Reached.of(fit, b.folded, votes)
        if before.loss(TRUST) - found.loss(TRUST) < _SETTLED:
            break
    return found


def _placed(a: Balanced, b: Balanced, g: Transformation, votes: Mapping[str, float]) -> Transformation:
    """``g`` with units rematched by votes, in the balanced coordinates of ``b``."""
    signed, g = monomial(a.sym), b.to @ g @ ~a.to
    for name, e in g.elements.items():  # no copy has such scales there: fits diverge where units do not match
        g = with_parts(g, name, scales=e.scales.clamp(-_DRIVEN, _DRIVEN))
    near = g @ a.to
    normal = {**a.folded.state, **moved(a.sym, near, a.folded.state)}
    found, _ = match_units(signed, normal, b.state, votes, identity(signed))
    return ~b.to @ (lifted(found, a.sym) @ near)


def _votes(distances: Mapping[str, float], ridge: float) -> dict[str, float]:
    """Votes of tensors: half a vote at a squared distance equal to the ridge, none if it is far larger."""
    squares = {name: min(d, 1.0) ** 2 for name, d in distances.items()}
    return {name: ridge / (d + ridge) if d < _ABSENT * ridge else 0.0 for name, d in squares.items()}


def may_be_unchanged(a: Folded, b: Folded, g: Transformation, found: Deviation, part: bool = False) -> bool:
    """Whether most informative tensors (all but a few, or one of a ``part``) may be unchanged, each fitted alone.

    Changed tensors blur the scales fitted to all; but no element makes equal a tensor that its own scales leave apart.
    """
    near, telling = list[int](), list[int]()
    for name, t in found.tensors.items():
        alone = narrowed(a.sym, [name])
        same, tells = t.distance < _NEAR, t.size >= _FITTED * alone.dim  # else its own scales would fit anything
        if t.informative and t.distance < 1 and not a.sym.mixing & a.sym.layouts[name].spaces:
            fit = Fit(replace(a, sym=alone), b, g)
            for _ in range(_TURNS if tells else 0):
                fit.each_space()
            same = _Reached.of(fit, b).distances[name] <= _CHANGED
        if t.informative and (same or tells):
            telling.append(t.size)
            near += [t.size] if same else []
    few = len(telling) - len(near) <= _HIDDEN
    return bool(near) and (part or few or 2 * len(near) >= len(telling) or 2 * sum(near) >= sum(telling))


Freedom = tuple[str, str, int]  # a space, a kind, and which of its generators


def pinned(sym: Symmetry, agreeing: Collection[str]) -> set[Freedom]:
    """The freedoms that cannot move without moving tensors that agree."""
    pieces = [block for name in agreeing for block in blocks(sym.layouts[name])]
    found: set[Freedom] = {(s, "permutation", 0) for name in agreeing for s in sym.layouts[name].spaces}
    while True:
        left = ([f for f in some if f not in found] for block in pieces for some in _moving(block).values())
        more = {some[0] for some in left if len(some) == 1}  # the only one of a kind that is not known to be still
        if not more:
            return found
        found |= more


def freedoms(space: Space) -> set[Freedom]:
    """The freedoms that may move a space."""
    group = space.group
    counts = {"permutation": group.permutes, "linear": group.mixes, "scale": group.scales, "sign": group.signs}
    return {(space.name, kind, k) for kind, count in counts.items() for k in range(count)}


def moving(layout: Layout) -> set[Freedom]:
    """The orders, scales, signs and bases that move a tensor."""
    orders: set[Freedom] = {(s, "permutation", 0) for s in layout.spaces}
    return orders | {f for block in blocks(layout) for some in _moving(block).values() for f in some}


def flipping(block: Block) -> set[Freedom]:
    """The signs and bases that negate one block when they flip all units of their space."""
    kinds = _moving(block)
    counts = Counter(kinds["sign"] + kinds["linear"])
    return {freedom for freedom, count in counts.items() if count % 2}  # twice cancels


def _moving(block: Block) -> dict[str, list[Freedom]]:
    """The scales, signs and bases that move one block."""
    leaves: list[Leaf] = [leaf for _, leaf in block.carried]
    return {
        "scale": [(x.space, "scale", k) for x in leaves for k, e in enumerate(x.scale) if e],
        "sign": [(x.space, "sign", k) for x in leaves for k, e in enumerate(x.sign) if e % 2],
        "linear": [(x.space, "linear", 0) for x in leaves if x.variance],
    }


def unflipped(a: Folded, b: Folded, g: Transformation, far: Collection[str]) -> Transformation:
    """``g`` with whole spaces flipped, if that leaves fewer tensors negated.

    The sets of tensors that flips negate form a linear code over F2. The tensors that stay negated are a word in the
    coset of those now negated; the lightest word is sought (syndrome decoding, up to two tensors). Among equally light
    words the largest tensor is chosen, since with the gain of a batch norm its mean would be negated too. ``far``
    tensors are those that ``g`` does not make agree.
    """
    sym = a.sym
    pieces = [(name, block) for name, layout in sym.layouts.items() for block in blocks(layout)]
    near = {name: transform(a.state[name], sym.layouts[name], g) for name in far}

    def minus(name: str, block: Block) -> bool:
        return relative(-block.read(near[name]), block.read(b.state[name])) <= AGREES

    negated = [k for k, (name, block) in enumerate(pieces) if name in far and minus(name, block)]
    if not negated:
        return g
    known = [k for k, (name, _) in enumerate(pieces) if name not in far or k in negated]
    flips = sorted(f for space in sym.spaces for f in freedoms(space) if f[1] in ("sign", "linear"))
    code = BinarySpan(bits_of(k for k in known if flip in flipping(pieces[k][1])) for flip in flips)
    whole = {name: bits_of(some) for name, some in by_key((pieces[k][0], k) for k in known).items()}
    size = {word: b.state[name].numel() for name, word in whole.items()}
    left = _lightest(code, bits_of(negated), sorted(size, key=lambda word: size[word]))
    now = {whole[pieces[k][0]] for k in negated}
    if left is None or (len(left), -sum(size[w] for w in left)) >= (len(now), -sum(size[w] for w in now)):
        return g
    made = code.reduced(reduce(xor, left, bits_of(negated)))[1]
    return _flipped(sym, [flip for k, flip in enumerate(flips) if made >> k & 1]) @ g


def _lightest(code: BinarySpan, word: int, others: Iterable[int]) -> tuple[int, ...] | None:
    """The fewest others, at most two, whose sum with a word lies in a code (the last of ties); or ``None``."""
    rest, rests = code.reduced(word)[0], {code.reduced(other)[0]: other for other in others}
    if not rest:
        return ()
    if rest in rests:
        return (rests[rest],)
    return next(((one, rests[rest ^ left]) for left, one in rests.items() if rest ^ left in rests), None)


def _flipped(sym: Symmetry, flips: Iterable[Freedom]) -> Transformation:
    """The element that flips all units of some spaces."""
    found = identity(sym)
    for space, kind, k in flips:
        e = found[space]
        if kind == "sign":
            signs = e.signs.clone()
            signs[k] *= -1
            found = with_parts(found, space, signs=signs)
        else:
            minus = -torch.ones(e.permutation.shape, dtype=torch.float64)
            found = with_parts(found, space, linear=torch.diag_embed(minus))
    return found
