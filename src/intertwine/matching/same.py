"""The verdict whether two networks are one network, up to symmetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._words import counted
from ..symmetry.action import act, tensors_of
from ..symmetry.gauge.canonical import check_weights
from ..symmetry.gauge.folding import fold
from ..symmetry.spaces import UNRULED
from ..symmetry.transformation import identity
from ..testing import function_error
from .chance import unrelated
from .closest import closest, concentrated, normalised
from .deviation import PRECISIONS, constant, deviation, distance
from .narrow import narrowed
from .unchanged import may_be_unchanged
from .verdict import DIFFERENT, RELATED, SAME, UNTOLD, Match

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry

__all__ = ["DIFFERENT", "RELATED", "SAME", "UNTOLD", "Match", "same"]

# Largest share of the residual by chance that related networks leave. Measured on digits: independently trained ones
# 0.82 to 1.0, purely linear ones, which all learn one map, 0.52 to 0.75; fine-tuned ones below 0.2.
_BEYOND = 0.75
_BEYOND_LINEAR = 0.5
_IN_PLACE = 0.8  # the same for networks compared unit by unit as they are: averages leave 0.7, independent ones 1.0
_PLAIN = 0.2  # share of the residual of unmatched networks that no search comes near where weights outnumber scales
_FEW = 4  # weights for each free scale or entry of a basis from which on that holds
_SMALL = 50_000  # weights below which chance is averaged over two draws
_NAMED = 4  # tensors that a reason names
_HALVES = (torch.float16, torch.bfloat16)
_HALF_NAMES = ("float16", "bfloat16")
_CAST = 2 * 2.0**-9  # residual that casts leave: each moves a weight by up to 2^-9 of itself, fitted bases double that


def same(a: nn.Module, b: nn.Module, example_inputs: Any, sym: Symmetry | None = None) -> Match:
    """Decide whether two networks are one network up to symmetry, and find the element between them.

    Both are brought into balanced form (scales and bases are then almost fixed), units are matched by assignment from
    several starts, and the matched weights are compared one by one. Rounding changes every weight by a share of itself,
    training does not; so a copy that was cast to bfloat16 and back is told from a fine-tuned one. Dead and duplicate
    units are matched with any of their equals. Batch norms are compared as the affine maps that they are in eval mode.

    "Related" has two grounds. Either most tensors agree as well as rounding allows and some were changed, as by a
    linear probe, tuned biases or norms, or a replaced head (also one with another number of classes); ``differing``
    names those. Or all are clearly closer than by chance: the same search is run against networks whose tensors have
    the same statistics and unrelated units (each rotated at random along its hidden axes), and the residual must be
    below 0.75 of what they leave (0.5 for purely linear networks, whose bases absorb much), or below 0.8 unit by unit
    in place.

    "Different" is only said where the symmetry is known. Where operations have no rule, or the two runs took different
    paths, copies may differ by more than the group that was found: then networks that do not agree "cannot be told",
    unless the tensors whose symmetry is known tell them apart.

    Args:
        a: One network. Both are left as they are.
        b: The other.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        sym: The symmetry of both where it is known already.

    Returns:
        The match. Matching is a local search: "the same" is proved by the weights, the other verdicts are not proofs.
        Networks with large changes (noise beyond about 0.6 of the weights, averages with an unaligned network that were
        then permuted) are called different.

    Examples:
        >>> import intertwine as iw
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(a, torch.zeros(2, 4))
        >>> b = sym.act(sym.random(seed=1), a).bfloat16().float()
        >>> print(same(a, b, torch.randn(2, 4)))
        the same network, permuted and rescaled: 99.9 % of weights agree to 0.003..., as after bfloat16
        >>> _ = nn.init.normal_(b[2].weight)  # another head
        >>> found = same(a, b, torch.randn(2, 4))
        >>> found.verdict, list(found.differing)
        ('related (merged, fine-tuned)', ['2.weight'])
    """
    states = tensors_of(a), tensors_of(b)
    replaced = _replaced(*states)
    if 2 * len(replaced) > len({*states[0], *states[1]}):
        return _far(replaced)
    one_path = True
    if sym is None:
        from ..symmetry import symmetries

        sym = symmetries(a, example_inputs)
        other = sym if replaced else symmetries(b, example_inputs)
        if (sym.spaces, sym.layouts) != (other.spaces, other.layouts):
            if not (sym.path_only or other.path_only):
                return _far({"": "the tensors have the same shapes, but the models other symmetries"})
            one_path = False
    pair = _Pair(narrowed(sym, sym.layouts.keys() - replaced), *states)
    found = _judged(pair, replaced, lambda: function_error(act(sym, pair.g, a), b, example_inputs))
    if found.verdict == DIFFERENT:
        if replaced:
            return _far(replaced)
        return found if found.precision else _told(found, sym, states, one_path)
    if sym.path_only and found.verdict == SAME:
        found = replace(found, reason=f"{found.reason}; the symmetry is certified for the path that was run only")
    return found


class _Pair:
    """Two networks in folded coordinates, matched.

    Args:
        sym: The symmetry of what is compared.
        state_a: Tensors to move.
        state_b: Tensors to meet.

    Attributes:
        g: The element that brings ``a`` closest to ``b``.
        residual: What is left then.
        deviation: How far single weights and tensors are apart.
        precision: The finest precision of a copy that explains all of that, or ``None``.
    """

    def __init__(self, sym: Symmetry, state_a: Mapping[str, Tensor], state_b: Mapping[str, Tensor]) -> None:
        for state in (state_a, state_b):
            check_weights(sym, state)
        self.a, self.b = (fold(sym, state, _working(sym, state_a, state_b)) for state in (state_a, state_b))
        rounded = frozenset(n for n in self.a.sym.layouts if _halved(state_a[n]) or _halved(state_b[n]))
        self.normal = normalised(self.b)
        normal = normalised(self.a)
        self.g, self.residual = closest(normal, self.normal)
        self.deviation = deviation(self.a, self.b, self.g, rounded)
        if self.deviation.precision is None and may_be_unchanged(self.a, self.b, self.g, self.deviation):
            g = concentrated(normal, self.normal, self.g)
            if g is not self.g:
                self.g, self.deviation = g, deviation(self.a, self.b, g, rounded)
        self.precision = self.deviation.precision
        if self.precision in _HALF_NAMES and not rounded and not self._cast(sym, state_a, state_b):
            self.precision = None

    def _cast(self, sym: Symmetry, state_a: Mapping[str, Tensor], state_b: Mapping[str, Tensor]) -> bool:
        """Whether a cast explains the deviation although neither network holds numbers of half precision.

        It must then have been moved after the cast. Bases mix entries, so that noise on all weights alike passes for
        rounding weight by weight: either the residual is rounding's, or one network, cast, is the other.
        """
        mixed = any(space.group.mixes for space in self.a.sym.spaces)
        if not mixed or self.residual <= _CAST:
            return True
        for half in _HALVES:
            for near, far in ((state_a, state_b), (state_b, state_a)):
                cast = {name: x.to(half).to(x.dtype) if x.is_floating_point() else x for name, x in near.items()}
                if not all(x.isfinite().all() for x in cast.values()):
                    continue
                one, other = (fold(sym, state, _working(sym, cast, far)) for state in (cast, far))
                found = deviation(one, other, closest(normalised(one), normalised(other))[0])
                if found.precision is not None and found.precision not in _HALF_NAMES:
                    return True
        return False


def _judged(pair: _Pair, replaced: Mapping[str, str], error: Callable[[], float]) -> Match:
    """The verdict where the symmetry is known; ``error`` is that of the functions, needed where the weights agree."""
    match = Match(DIFFERENT, pair.residual, pair.deviation.overall, pair.precision, "", pair.g)
    if pair.precision is not None and not replaced:
        return _agreeing(match, pair, error())
    agreed = pair.precision or pair.deviation.shared()
    differing = {**pair.deviation.beyond(agreed or "bfloat16"), **{name: float("inf") for name in replaced}}
    match = replace(match, precision=None, differing=differing)
    if agreed is not None:
        count = len({*pair.a.sym.layouts, *replaced})
        names = ", ".join([*list(differing)[:_NAMED], *(["..."] if len(differing) > _NAMED else [])])
        reason = f"{count - len(differing)} of {count} tensors agree as after {agreed}; others: {names}"
        return replace(match, verdict=RELATED, reason=reason)
    related, reason, chance = _beyond_chance(pair)
    if related:
        return replace(match, verdict=RELATED, reason=reason, chance=chance)
    return replace(match, reason=reason, chance=chance, differing={})


def _agreeing(match: Match, pair: _Pair, error: float) -> Match:
    """The verdict where all weights agree: the same, if the functions do."""
    assert match.precision is not None
    if not error <= min(0.5, 1e3 * PRECISIONS[match.precision]):
        said = f"the weights agree, but the models compute other functions with them (relative error {error:.1e})"
        return replace(match, reason=said)
    reason = f"99.9 % of weights agree to {match.deviation:.2g}, as after {match.precision}"
    if deviation(pair.a, pair.b, identity(pair.a.sym)).overall <= PRECISIONS[match.precision]:
        reason += "; here they do so as they stand, with nothing permuted or rescaled"
    return replace(match, verdict=SAME, reason=reason)


def _beyond_chance(pair: _Pair) -> tuple[bool, str, float | None]:
    """Whether the residual is below that of unrelated networks with the same statistics, why, and their residual."""
    a, b, residual = pair.a, pair.b, pair.residual
    in_place = distance(a.state, b.state)
    linear = bool(a.sym.spaces) and all(s.group.mixes for s in a.sym.spaces)
    beyond = _BEYOND_LINEAR if linear else _BEYOND
    said = f"residual {residual:.3f} after matching"
    if in_place > _IN_PLACE and residual > beyond:  # chance leaves no more than 1
        return False, said, None
    weights = sum(t.numel() for t in b.state.values())
    draws = [unrelated(a, seed) for seed in range(2 if weights < _SMALL else 1)]
    unmatched = sum(distance(draw.state, b.state) for draw in draws) / len(draws)
    if residual <= _PLAIN * unmatched and weights >= _FEW * a.sym.dim:
        return True, f"{said}, far below {unmatched:.3f} of unmatched networks and so of any match by chance", None
    chance = sum(closest(normalised(draw), pair.normal)[1] for draw in draws) / len(draws)
    related = residual <= beyond * chance or in_place <= _IN_PLACE * unmatched
    return related, f"{said}, {chance:.3f} by chance", chance


def _told(
    found: Match, sym: Symmetry, states: tuple[Mapping[str, Tensor], Mapping[str, Tensor]], one_path: bool
) -> Match:
    """``found``, which says "different", or that it cannot be told where more may move than the symmetry knows."""
    if not one_path:
        return replace(found, verdict=UNTOLD, reason=f"{found.reason}, but the runs took different paths")
    unknown = {fixed.tensor for fixed in sym.fixed if UNRULED in fixed.reason} & sym.layouts.keys()
    if not unknown:
        return found
    known = sym.layouts.keys() - unknown
    if known:
        related, reason, chance = _beyond_chance(_Pair(narrowed(sym, known), *states))
        if not related:
            said = f"{counted(len(known), 'tensor')} of known symmetry: {reason}"
            return replace(found, reason=said, chance=chance)
    why = (
        f"what moves {counted(len(unknown), 'tensor')} is not known for want of a rule for {', '.join(sym.unknown_ops)}"
    )
    return replace(found, verdict=UNTOLD, reason=f"{found.reason}, but {why}")


def _far(replaced: Mapping[str, str]) -> Match:
    far = float("inf")
    return Match(DIFFERENT, far, far, None, f"other architectures: {next(iter(replaced.values()))}")


def _replaced(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, str]:
    """Tensors that only one network has, or that have other shapes, in words."""
    found = {}
    for name in [*a, *(n for n in b if n not in a)]:
        if name not in a or name not in b:
            found[name] = f"only one has {name!r}"
        elif a[name].shape != b[name].shape:
            found[name] = f"{name!r} has shape {tuple(a[name].shape)} and {tuple(b[name].shape)}"
    return found


def _working(sym: Symmetry, *states: Mapping[str, Tensor]) -> torch.dtype:
    """The precision in which states are compared: float64 only where one of them holds it."""
    double = any(state[name].dtype == torch.float64 for state in states for name in sym.layouts)
    return torch.float64 if double else torch.float32


def _halved(x: Tensor) -> bool:
    """Whether a tensor holds numbers of half precision only."""
    return not constant(x) and any(torch.equal(x, x.to(half).to(x.dtype)) for half in _HALVES)
