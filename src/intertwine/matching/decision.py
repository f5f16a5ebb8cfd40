"""The verdict on two state dicts: whether the best element leaves only rounding, a few tensors, or a chance level."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch

from .._io.lazy import LazyState, State
from .._words import counted, listed
from ..symmetry.description import repeated_block
from ..symmetry.gauge.canonical import check_weights
from ..symmetry.spaces import COMPLEX, UNRULED
from ..symmetry.symmetry import Symmetry
from ..symmetry.transformation import KINDS, Transformation, identity
from .components import Matched, Pair, matched
from .judgement.deviation import HALVES, PRECISIONS, changed, constant, patterned
from .judgement.grids import quantised
from .judgement.layers import OTHER
from .judgement.verdict import DIFFERENT, RELATED, SAME, UNTOLD, Match

# Largest share of the chance residual that related networks leave. Measured on digits: independently trained networks
# 0.82 to 1.0, purely linear ones, which all learn the same map, 0.52 to 0.75; fine-tuned ones below 0.2.
_BEYOND = 0.75
_BEYOND_LINEAR = 0.5
_IN_PLACE = 0.8  # the same for networks compared unit by unit in place: averages leave 0.7, independent ones 1.0
_PLAIN = 0.2  # share of the unmatched residual that no chance match approaches, if weights outnumber scales
_FEW = 4  # weights per free scale or basis entry from which that holds
_SMALL = 50_000  # weights below which chance is averaged over two draws
_NAMED = 4  # tensors named in a reason
_SOME = 0.1  # share of matrices, or of their weights, that unrelated networks never have exactly in common
_EXACT = ("float64", "float32")  # gains that barely left 1 agree to coarser precisions anyway
_DONE = {"permutation": "permuted", "scale": "rescaled", "sign": "flipped", "linear": "in other bases"}
_HALF_NAMES = ("float16", "bfloat16")
_CAST = 2 * 2.0**-9  # residual that casts leave: each moves a weight by up to 2^-9 of itself, fitted bases double that


def decided(
    pair: Pair,
    replaced: Mapping[str, str] = {},
    error: Callable[[Transformation], float] | None = None,
    one_path: bool = True,
) -> Match:
    """The verdict on two state dicts; mappings that read tensors on demand keep memory small.

    ``replaced`` lists what cannot be compared, and why. ``error`` is that of the functions after the first network is
    moved, if they run; ``one_path`` says whether both took the same path when the symmetry was found.
    """
    sym = pair.sym
    part = pair.narrowed(sym.layouts.keys() - replaced)
    for state in (pair.a, pair.b):
        check_weights(part.sym, state)
    found = _judged(part, replaced, error, one_path and not _unruled(sym))
    if (found.precision or found.verdict == RELATED) and (beside := _beside(pair)):
        said = f"{found.reason}; whole or complex numbers, which nothing moves, differ: {listed(beside)}"
        found = replace(found, reason=said, differing={**found.differing, **beside})
        found = replace(found, verdict=RELATED, precision=None) if found.verdict == SAME else found
    if found.verdict == RELATED and found.transformation is not None:
        grids = quantised(part.sym, (pair.a, pair.b), found.transformation, found.differing)
        return replace(found, reason="; ".join([found.reason, *_layers_of_one(pair, replaced), *grids]))
    if found.verdict == DIFFERENT:
        if replaced:
            return other_architectures(replaced)
        return found if found.precision else _told(found, pair, one_path)
    if sym.path_only and found.verdict == SAME:
        found = replace(found, reason=f"{found.reason}; the symmetry is certified for the path that was run only")
    return found


def _judged(
    pair: Pair, replaced: Mapping[str, str], error: Callable[[Transformation], float] | None, known: bool
) -> Match:
    """The verdict by what is ``known`` of the symmetry; ``error`` is that of the functions if the weights agree."""
    found = matched(pair)
    apart, tensors = found.deviation, found.deviation.tensors.values()
    precision, agreed = apart.precision, apart.precision or apart.shared()
    if precision is None and agreed == "float64" and len(apart.beyond("float32")) < len(apart.beyond("float64")):
        agreed = "float32"  # bases fitted together with a changed tensor bring the others no closer
    if agreed in _HALF_NAMES and not any(t.rounded for t in tensors) and not _cast(pair, found, precision is not None):
        precision = agreed = None
    match = Match(DIFFERENT, found.residual, apart.overall, precision, "", found.g)
    if precision is not None and not replaced:
        equal = not any(t.distance for t in tensors)
        return _agreeing(match, pair, equal, None if error is None else error(found.g))
    unequal, gone = _unequal(pair), dict.fromkeys(replaced, float("inf"))
    in_place, moved = {**unequal, **gone}, {**apart.beyond(agreed or "bfloat16"), **gone}
    match = replace(match, precision=None)
    spoils = bool(moved.keys() - in_place.keys()) and len(in_place) <= len(moved)  # moving separates equal tensors
    if spoils and in_place and (agreed is not None or _many(pair, pair.sym.layouts.keys() - in_place.keys())):
        return _in_part(match, pair, pair.sym.layouts, in_place)
    if agreed is not None:
        return _in_part(match, pair, found.sym.layouts, moved, agreed)
    related, reason, chance = _beyond_chance(pair, found)
    if related:
        return replace(match, verdict=RELATED, reason=reason, chance=chance, differing=moved)
    match = replace(match, reason=reason, chance=chance)
    # A part that agrees exactly, which never happens by chance: copies whose experts, modules in a list, are in
    # another order. These pull units away from their partners, but do not hide what is equal in place.
    exactly = apart.shared(_SOME) if known else None
    if exactly in _EXACT and _many(pair, apart.tensors.keys() - apart.beyond(exactly).keys()):
        return _in_part(match, pair, apart.tensors, apart.beyond(exactly), exactly)
    if known and _many(pair, pair.sym.layouts.keys() - unequal.keys()):
        return _in_part(match, pair, pair.sym.layouts, unequal)
    return match


def _beside(pair: Pair) -> dict[str, float]:
    """Unequal tensors of integers (except counters) or complex numbers, with their relative changes."""
    found = {}
    for name in (n for n in pair.a if n in pair.b and n not in pair.sym.layouts and n not in pair.sym.aliases):
        x, y = (state[name].detach().cpu() for state in (pair.a, pair.b))
        if not x.is_floating_point() and (x.numel() > 1 or x.is_complex()) and not torch.equal(x, y):
            ours, theirs = (torch.view_as_real(t) if t.is_complex() else t.double() for t in (x, y))
            found[name] = changed(ours, theirs) if ours.shape == theirs.shape else float("inf")
    return {name: change for name, change in found.items() if change}


def _many(pair: Pair, names: Collection[str]) -> bool:
    """Whether names hold a tenth of the unpatterned matrices, by number or weights; patterns agree everywhere."""
    told = {}
    for name in pair.sym.layouts:
        x = pair.b[name]
        if sum(n > 1 for n in x.shape) > 1 and x.numel() and not (constant(x) or patterned(x)):
            told[name] = x.numel()
    near = [size for name, size in told.items() if name in names]
    return bool(near) and (len(near) >= _SOME * len(told) or sum(near) >= _SOME * sum(told.values()))


def _layers_of_one(pair: Pair, gone: Collection[str]) -> list[str]:
    """Layers that only one network has, in words: all their tensors are ``gone``, and none has another shape."""
    found: dict[str, dict[str, None]] = {}
    kept = {repeated_block(name) for name in pair.sym.layouts.keys() - gone}
    for name in gone:
        block = "" if name in pair.a and name in pair.b else repeated_block(name)
        if block and (block not in kept or name.endswith(OTHER)):
            found.setdefault("a" if name in pair.a else "b", {})[block] = None
    return [f"only {side} has {counted(len(layers), 'layer')}: {listed(layers)}" for side, layers in found.items()]


def _unequal(pair: Pair) -> dict[str, float]:
    """Tensors that are unequal in place, with their relative changes."""
    found = {}
    for name in pair.sym.layouts:
        x, y = (t if t.dtype == torch.float64 else t.float() for t in (pair.a[name], pair.b[name]))
        x = x.to(y)
        if not torch.equal(x, y):
            found[name] = changed(x, y)
    return found


def _in_part(
    match: Match, pair: Pair, names: Collection[str], differing: Mapping[str, float], precision: str | None = None
) -> Match:
    """The verdict if all other tensors agree to a precision or, without a precision, are equal in place."""
    count = len({*names, *differing})
    shown = [*list(differing)[:_NAMED], *(["..."] if len(differing) > _NAMED else [])]
    agree = {"float64": "agree", None: "are equal as they stand"}.get(precision, f"agree up to rounding to {precision}")
    reason = f"{count - len(differing)} of {count} tensors {agree}; others: {', '.join(shown)}"
    g = identity(pair.sym) if precision is None else match.transformation
    return replace(match, verdict=RELATED, reason=reason, differing=differing, transformation=g)


def _agreeing(match: Match, pair: Pair, equal: bool, error: float | None) -> Match:
    """The verdict if all weights agree, or are ``equal`` once moved: the same network, if the functions agree."""
    assert match.precision is not None
    if error is not None and not error <= min(0.5, 1e3 * PRECISIONS[match.precision]):
        said = f"the weights agree, but the models compute other functions with them (relative error {error:.1e})"
        return replace(match, reason=said)
    reason = f"99.9 % of weights agree to {match.deviation:.2g}, which rounding to {match.precision} explains"
    if not match.deviation:
        reason = "99.9 % of weights are equal, and the others up to rounding"
    in_place = pair.agrees_in_place(PRECISIONS[match.precision])
    if in_place and not any(_holds(state, match.precision) for state in (pair.a, pair.b)):
        small = f"no more than rounding to {match.precision} changes"
        reason = f"99.9 % of weights agree to {match.deviation:.2g}, {small}; neither network holds such numbers"
    if equal if not in_place else not _unequal(pair):
        reason = "all weights are equal"
    if not in_place and match.transformation is not None:
        kinds = {_DONE[kind]: match.transformation.restrict(kinds={kind}) for kind in KINDS}
        done = [word for word, g in kinds.items() if not g.is_identity(PRECISIONS[match.precision])]
        reason += f", once a is {' and '.join(done)}" if done else ""
    if error is None:
        reason += "; the weights alone were compared, the networks were not run"
    return replace(match, verdict=SAME, reason=reason, moved=not in_place)


def _cast(pair: Pair, found: Matched, whole: bool) -> bool:
    """Whether a cast explains the deviation, entirely or in part, though neither network is in half precision."""
    if (whole and found.residual <= _CAST) or not any(space.group.mixes for space in found.sym.spaces):
        return True
    for half in HALVES:
        ours, theirs = (_halved(state, half) for state in (pair.a, pair.b))
        for near, left, right in ((ours, ours, pair.b), (theirs, pair.a, theirs)):
            if all(bool(near[name].isfinite().all()) for name in pair.sym.layouts):
                apart = matched(Pair(pair.sym, left, right, pair.limit)).deviation
                precision = apart.precision if whole else apart.shared()
                if precision is not None and precision not in _HALF_NAMES:
                    return True
    return False


def _holds(state: State, precision: str) -> bool:
    """Whether all matrices hold numbers of a precision; casts may leave vectors unchanged."""
    dtype = getattr(torch, precision)
    return dtype not in HALVES or all(torch.equal(x, x.to(dtype).to(x.dtype)) for x in state.values() if x.ndim > 1)


def _halved(state: State, half: torch.dtype) -> State:
    """Tensors that went through half precision."""
    return LazyState.changed(state, lambda _, x: x.to(half).to(x.dtype) if x.is_floating_point() else x)


def _beyond_chance(pair: Pair, found: Matched) -> tuple[bool, str, float | None]:
    """Whether the residual is below that of unrelated networks with the same statistics; why; and their residual."""
    spaces = found.sym.spaces
    beyond = _BEYOND_LINEAR if spaces and all(s.group.mixes for s in spaces) else _BEYOND
    said = f"residual {found.residual:.3f} after matching"
    if found.in_place > _IN_PLACE and found.residual > beyond:  # chance leaves at most 1
        return False, said, None
    draws = [pair.unrelated(seed) for seed in range(2 if found.deviation.weights < _SMALL else 1)]
    unmatched = sum(draw.in_place() for draw in draws) / len(draws)
    if found.residual <= _PLAIN * unmatched and found.deviation.weights >= _FEW * found.sym.dim:
        return True, f"{said}, far below {unmatched:.3f} of unmatched networks and so of any match by chance", None
    chance = sum(matched(draw).residual for draw in draws) / len(draws)
    related = found.residual <= beyond * chance or found.in_place <= _IN_PLACE * unmatched
    return related, f"{said}, {chance:.3f} by chance", chance


def _told(found: Match, pair: Pair, one_path: bool) -> Match:
    """A match that is "different", made undecided if the symmetry may be incomplete."""
    if not one_path:
        return replace(found, verdict=UNTOLD, reason=f"{found.reason}, but the runs took different paths")
    unknown = _unruled(pair.sym, (UNRULED, COMPLEX))
    if not unknown:
        return found
    known = pair.sym.layouts.keys() - unknown
    if known:
        part = pair.narrowed(known)
        related, reason, chance = _beyond_chance(part, matched(part))
        if not related:
            said = f"{counted(len(known), 'tensor')} of known symmetry: {reason}"
            return replace(found, reason=said, chance=chance)
    ruled = "what reads complex parameters"
    why = f"is not known for want of a rule for {', '.join(pair.sym.unknown_ops) or ruled}"
    said = f"{found.reason}, but what moves {counted(len(unknown), 'tensor')} {why}"
    return replace(found, verdict=UNTOLD, reason=said)


def _unruled(sym: Symmetry, why: tuple[str, ...] = (UNRULED,)) -> set[str]:
    """Tensors whose copies may differ by more than the group: nothing but want of knowledge (``why``) fixes them."""
    return {f.tensor for f in sym.fixed if any(said in f.reason for said in why)} & sym.layouts.keys()


def other_architectures(replaced: Mapping[str, str]) -> Match:
    """The verdict if tensors cannot be compared: "different", for the first reason."""
    far = float("inf")
    return Match(DIFFERENT, far, far, None, f"other architectures: {next(iter(replaced.values()))}")
