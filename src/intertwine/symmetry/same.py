"""Are two networks one network, up to symmetry?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from .._result import Result
from ..testing import function_error
from .action import act, moved, tensors_of
from .blocks import blocks
from .canonical import balanced, check_weights
from .chance import unrelated
from .element import Element
from .folding import Folded, fold
from .matching import distance, monomial
from .refit import refit
from .search import search
from .signing import signing
from .transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    import pandas as pd

    from .symmetry import Symmetry

__all__ = ["DIFFERENT", "RELATED", "SAME", "Match", "same"]

SAME = "the same network, permuted and rescaled"
RELATED = "related (merged, fine-tuned)"
DIFFERENT = "different"

# Precisions a copy may have gone through, and the relative deviation of single weights that each explains.
_PRECISIONS = {"float64": 1e-9, "float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
_QUANTILE = 0.999  # share of weights to be explained: rounding errs by a share of every weight, training does not
_FITS = 10  # rounds of scales and bases in turn
# Largest share of the residual by chance that related networks leave. Measured on digits: independently trained ones
# 0.82 to 1.0, purely linear ones, which all learn one map, 0.52 to 0.75; fine-tuned ones below 0.2.
_BEYOND = 0.75
_BEYOND_LINEAR = 0.5
_IN_PLACE = 0.8  # the same for networks compared unit by unit as they are: averages leave 0.7, independent ones 1.0
_SMALL = 50_000  # weights below which chance is averaged over two draws


@dataclass(frozen=True, eq=False)
class Match(Result):
    """What ``same`` found; truthy where the networks are one up to symmetry.

    Attributes:
        verdict: One of ``SAME``, ``RELATED`` and ``DIFFERENT``.
        residual: Share of the weights that is not explained after matching, the root mean square sine of the angle
            between tensors in balanced coordinates: 0 for one network, 1 for orthogonal ones; infinity for other
            architectures.
        deviation: Relative deviation that 99.9 % of single weights stay below.
        precision: Coarsest precision that a copy needs to have gone through to explain the deviation, or ``None``.
        chance: Residual that networks with the same statistics but unrelated units leave, where it was needed for the
            verdict; else ``None``.
        reason: The verdict's ground, in words.
        transformation: The element that brings ``a`` closest to ``b``, or ``None`` for other architectures. It is not
            part of the saved result: use its own ``save``.
    """

    verdict: str
    residual: float
    deviation: float
    precision: str | None
    reason: str
    transformation: Transformation | None = None
    chance: float | None = None

    def __bool__(self) -> bool:
        return self.verdict == SAME

    def to_frame(self) -> pd.DataFrame:
        """One row."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, without the transformation."""
        return {
            "verdict": self.verdict,
            "residual": self.residual,
            "deviation": self.deviation,
            "precision": self.precision,
            "reason": self.reason,
            "chance": self.chance,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild from ``to_dict``'s data."""
        far = {key: float("inf") if data[key] is None else data[key] for key in ("residual", "deviation")}
        return cls(**{**data, **far})

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


def same(a: nn.Module, b: nn.Module, example_inputs: Any, sym: Symmetry | None = None) -> Match:
    """Decide whether two networks are one network up to symmetry, and find the element between them.

    Both are brought into balanced form (scales and bases are then almost fixed), units are matched by assignment from
    several starts, and the matched weights are compared one by one. Rounding changes every weight by a share of itself,
    training does not; so a copy that was cast to bfloat16 and back is told from a fine-tuned one. Dead and duplicate
    units are matched with any of their equals. Batch norms are compared as the affine maps that they are in eval mode.

    "Related" means clearly beyond chance: the same search is run against networks whose tensors have the same
    statistics and unrelated units (each rotated at random along its hidden axes), and the residual must be below 0.75
    of what they leave (0.5 for purely linear networks, whose bases absorb much), or below 0.8 unit by unit in place.

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
    """
    state_a, state_b = tensors_of(a), tensors_of(b)
    differs = _shapes_differ(state_a, state_b)
    if differs:
        return _far(f"other architectures: {differs}")
    if sym is None:
        from . import symmetries

        sym, other = symmetries(a, example_inputs), symmetries(b, example_inputs)
        if (sym.spaces, sym.layouts) != (other.spaces, other.layouts):
            return _far("other architectures: the tensors have the same shapes, but the models other symmetries")
    for state in (state_a, state_b):
        check_weights(sym, state)
    left, right = fold(sym, state_a), fold(sym, state_b)
    g, residual = _closest(left, right)
    deviation = _deviation(left, right, g)
    precision = next((name for name, limit in _PRECISIONS.items() if deviation <= limit), None)
    if precision is None:
        return _unlike(left, right, g, residual, deviation)
    error = function_error(act(sym, g, a), b, example_inputs)
    if not error <= min(0.5, 1e3 * _PRECISIONS[precision]):
        reason = f"the weights agree, but the models compute other functions with them (relative error {error:.1e})"
        return Match(DIFFERENT, residual, deviation, precision, reason, g)
    reason = f"99.9 % of weights agree to {deviation:.2g}, as after {precision}"
    if _deviation(left, right, identity(sym)) <= _PRECISIONS[precision]:
        reason += "; here they do so as they stand, with nothing permuted or rescaled"
    return Match(SAME, residual, deviation, precision, reason, g)


def _unlike(a: Folded, b: Folded, g: Transformation, residual: float, deviation: float) -> Match:
    """Related or different: the residual against that of unrelated networks with the same statistics."""
    in_place = distance(a.state, b.state)
    linear = bool(a.sym.spaces) and all(s.linear != "none" for s in a.sym.spaces)
    beyond = _BEYOND_LINEAR if linear else _BEYOND
    if in_place > _IN_PLACE and residual > beyond:  # chance leaves no more than 1
        return Match(DIFFERENT, residual, deviation, None, f"residual {residual:.3f} after matching", g)
    draws = [unrelated(a, seed) for seed in range(2 if sum(t.numel() for t in b.state.values()) < _SMALL else 1)]
    chance = sum(_closest(draw, b)[1] for draw in draws) / len(draws)
    unmatched = sum(distance(draw.state, b.state) for draw in draws) / len(draws)
    related = residual <= beyond * chance or in_place <= _IN_PLACE * unmatched
    reason = f"residual {residual:.3f} after matching, {chance:.3f} by chance"
    return Match(RELATED if related else DIFFERENT, residual, deviation, None, reason, g, chance)


def _far(reason: str) -> Match:
    return Match(DIFFERENT, float("inf"), float("inf"), None, reason)


def _shapes_differ(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    """The first difference of names or shapes in words, or an empty string."""
    for name in [*a, *(n for n in b if n not in a)]:
        if name not in a or name not in b:
            return f"only one has {name!r}"
        if a[name].shape != b[name].shape:
            return f"{name!r} has shape {tuple(a[name].shape)} and {tuple(b[name].shape)}"
    return ""


def _closest(a: Folded, b: Folded) -> tuple[Transformation, float]:
    """The element that brings folded weights ``a`` closest to ``b``, and the residual in balanced coordinates."""
    to_a, to_b = _normalising(a), _normalising(b)
    normal_a = {**a.state, **moved(a.sym, to_a, a.state)}
    normal_b = {**b.state, **moved(b.sym, to_b, b.state)}
    signed = monomial(a.sym)

    best, residual = search(signed, normal_a, normal_b)
    in_place = distance(a.state, b.state)
    if in_place < residual:  # merged in place: balancing only blurs what the units share
        return identity(a.sym), in_place
    g = ~to_b @ (_lifted(best, a.sym) @ to_a)
    return _refitted(a, b, g, lambda h: distance({**a.state, **moved(a.sym, to_b @ h, a.state)}, normal_b), residual)


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
    if any(s.signs and s.name in outer for s in folded.sym.spaces):
        state = {**folded.state, **moved(folded.sym, g, folded.state)}
        g = signing(folded.sym, state).restrict(spaces=outer) @ g
    return g


def _lifted(g: Transformation, sym: Symmetry) -> Transformation:
    """Permutations and signs of normal bases as an element of the full symmetry."""
    full = identity(sym)
    for space in sym.spaces:
        e = g[space.name]
        parts: dict[str, Any] = {"permutation": e.permutation, "signs": e.signs}
        if space.linear != "none":
            parts = {"linear": _matrix(e)}
        full = with_parts(full, space.name, **parts)
    return full


def _matrix(e: Element) -> Tensor:
    eye = torch.eye(e.permutation.shape[-1], dtype=torch.float64)
    return e.signs[0][..., :, None] * eye[e.permutation]


def _deviation(a: Folded, b: Folded, g: Transformation) -> float:
    """Relative deviation that all but a thousandth of the weights stay below."""
    near = {**a.state, **moved(a.sym, g, a.state)}
    linear = {s.name for s in a.sym.spaces if s.linear != "none"}
    ratios = []
    for name, layout in b.sym.layouts.items():
        size = b.spread.get(name, b.state[name].abs())
        if any(space in linear for block in blocks(layout) for space in block.spaces):
            # a basis mixes entries, and with them their rounding, which a fitted matrix doubles on either side
            size = 4 * size.square().mean().sqrt().expand_as(size)
        difference = (near[name] - b.state[name]).abs()
        ratios.append(torch.where(difference == 0, 0.0, difference / size.clamp_min(1e-300)).flatten())
    joined = torch.cat(ratios) if ratios else torch.zeros(1)
    rank = min(int(_QUANTILE * len(joined)), len(joined) - 1)
    return float(joined.kthvalue(rank + 1).values)
