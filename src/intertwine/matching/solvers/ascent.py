"""Block coordinate ascent over spaces: how alike matched channels are, and how alike their weights."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from ...symmetry.action import moved
from ...symmetry.spaces import Space
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.problem import Problem
from ..costs.likeness import Likeness
from .block_update import best_parts

_SWEEPS = 20
_STEP, _SWEEP = 1e-12, 1e-9  # gains that count
_ROUNDING = 1e-15


def ascend(
    posed: Problem, seen: Sequence[Likeness], features: float, weights: float
) -> tuple[Transformation, list[float]]:
    """Improve one space after the other until nothing changes.

        J(g) = features * Σ_p tr L_p(g) + weights * <a, g b> / (|a| |b|)

    Every step is the exact optimum of one space while the others stay. The first sweep takes every step, by likeness
    alone where a space is seen; later ones only if ``J`` grows.

    Returns:
        The element that moves ``b``, and ``J`` before the first sweep and after every one.
    """
    total = likeness(posed, seen, features, weights)
    weights = weights / max(posed.size, 1e-300)
    g = identity(posed.sym)
    best = total(g)
    history = [best]
    order = sorted(posed.sym.spaces, key=lambda s: len(s.parents))
    for sweep in range(_SWEEPS):
        start, rounding = best, _ROUNDING * abs(best)
        free = set() if sweep else {s.name for s in order}
        for space in order:
            if not (space.group.permutes or space.group.signs or space.group.mixes):
                continue
            candidate = _step(posed, seen, g, space, free, features, weights if sweep else 0.0) @ g
            free.discard(space.name)
            value = total(candidate)
            if value > best + _STEP + rounding or sweep == 0:
                g, best = candidate, value
        if best < start:  # before the first sweep there is no order to compare
            g, best = identity(posed.sym), start
        history.append(best)
        if sweep and best <= start + _SWEEP + rounding:
            break
    return g, history


def likeness(
    posed: Problem, seen: Sequence[Likeness], features: float, weights: float
) -> Callable[[Transformation], float]:
    """The objective ``J`` of ``ascend``."""
    weights = weights / max(posed.size, 1e-300)
    return lambda g: weights * posed.objective(g) + features * sum(float(s.moved(g).trace()) for s in seen)


def _step(
    posed: Problem,
    seen: Sequence[Likeness],
    g: Transformation,
    space: Space,
    free: set[str],
    features: float,
    weights: float,
) -> Transformation:
    """The best element of one space after ``g``."""
    costs: dict[tuple[int, ...], Tensor] = {}

    def add(row: tuple[int, ...], gain: Tensor) -> None:
        costs[row] = costs[row] + gain if row in costs else gain

    for one in seen:
        for row, gain in one.gains(space, g, free):
            add(row, features * gain)
    if weights or not costs:
        for row, gain in _weight_gains(posed, g, space):
            add(row or (0,) * space.group.signs, (weights or 1.0) * gain)
    still = identity(posed.sym)
    return with_parts(still, space.name, **best_parts(costs, space.group)) if costs else still


def _weight_gains(posed: Problem, g: Transformation, space: Space) -> Iterable[tuple[tuple[int, ...], Tensor]]:
    """Inner products of the weights of all pairs of units, with the others where ``g`` has them."""
    members = posed.members[space.name]
    names = {m.tensor for m in members}
    here = {name: posed.b[name] for name in names}
    here = {**here, **moved(posed.sym, g, here, list(names))}
    for m in members:
        x, y = (m.view(m.block.read(state[m.tensor])) for state in (posed.a, here))
        yield m.row, (x @ y.mT).cpu()
