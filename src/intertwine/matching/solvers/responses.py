"""Alignment by what units do, alone or with their weights: units that respond alike, or are on for the same inputs.

Covariances of hidden features are streamed once over the data; after that no model runs. Where Li et al. (2015) and Git
Re-Basin match one layer at a time by hand-written rules, the layouts of features say where spaces act. How alike
channels and weights are is maximised by block coordinate ascent over spaces.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...features import tap
from ...features.batches import peek
from ...features.moments import CrossMoments
from ...symmetry.action import admissible, moved, tensors_of, transform
from ...symmetry.blocks import carrying, parent_dims, summed
from ...symmetry.gauge.batch_norms import fold
from ...symmetry.spaces import Axis, Layout, Space, axis_size, spaces_of
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem, within
from ..costs.likeness import Carrier, Likeness, carriers
from ..costs.weight_blocks import Row, add_to
from ..element_fit.refit import Fit, log_scales
from .coordinate_descent import default
from .solver import Findings, Solver
from .steps import best_parts

_TIES = 1e-6  # share of the weights at least: they decide between units that never respond
_TIES_OF_GATES = 0.9  # of all weights together; gates that agree once more count 2
_SWEEPS = 20
_STEP, _SWEEP = 1e-12, 1e-9  # gains that count
_ROUNDING = 1e-15


@dataclass(frozen=True)
class Activations(Solver):
    """Maximises how alike matched units respond, and how alike their weights are.

        J(g) = s * mean_p tr L_p(g) + (1 - s) * <a, g b> / (|a| |b|)

    over permutations, signs and rotations, with the likeness ``L_p`` of the channels at every place ``p``: Pearson
    correlations over examples and positions, divided by the number of channels. Every step is the exact optimum of one
    space while the others stay; after the first sweep it is taken only if ``J`` grows. The first sweep compares units
    whose inner bases are still unknown, such as heads, by the Frobenius norm of their covariances. Positive scales
    follow in closed form: the least-squares fit of the logarithms of the ratios of standard deviations at all places.

    Attributes:
        share: Weight ``s`` of the responses; at 0.5 (method ``"mixed"``) both are equally weighted.
        rescale: Whether positive scales follow the responses; otherwise balanced weights fix them.
    """

    name: ClassVar[str] = "activations"
    by_weights: ClassVar[bool] = False

    share: float = 1.0
    rescale: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie between 0 and 1. Got {self.share}.")

    def search(self, networks: Networks) -> Findings:
        """The element, with ``J`` after every sweep.

        Raises:
            ValueError: If there is no loader, features are not finite, or no space can be seen in the output of any
                module.
        """
        sym = networks.sym
        if networks.loader is None:
            raise ValueError("loader must be given to align by activations. Got none. Pass batches of inputs.")
        first, batches = peek(networks.loader)
        found = carriers(networks.a, sym, first)
        if not found:
            raise ValueError(
                "model must show at least one space in the output of a module. Got none. Align by weights instead."
            )
        posed = networks.problem(torch.float64)
        sides = ((posed.to_a, networks.a), (posed.to_b, networks.b))
        balanced = [m if g.is_identity(0.0) else sym.act(admissible(sym, g, tensors_of(m)), m) for g, m in sides]
        moments = _stream(balanced[0], balanced[1], batches, found)
        seen = []
        for place in found:
            m = moments[place.point.name]
            variances = m.a.variance.cpu(), m.b.variance.cpu()
            seen.append(Likeness.of_responses(place.axis, posed.sym, m.covariance.cpu(), variances))
        share = min(self.share, 1 - _TIES)
        g, history, value = ascend(posed, seen, share / len(seen), 1 - share)

        def finish(g: Transformation) -> Transformation:
            full = posed.lift(g)
            if self.rescale and "scale" in networks.kinds:
                scales = _scales(sym, found, moments, g)
                full = ~posed.to_a @ (scales @ (posed.to_a @ full))
            return admissible(sym, full, tensors_of(networks.b))

        hidden = [s.name for s in sym.spaces if not any(s.name in place.spaces for place in found)]
        notes = (f"seen in no module's output, so matched by weights only: {', '.join(hidden)}",) if hidden else ()
        others = (default(posed, networks.seed),) if networks.gauge is not None else ()
        return Findings(posed.sym, value, (g, *others), finish, tuple(history), notes=notes)


def _stream(a: nn.Module, b: nn.Module, batches: Iterable[Any], found: Sequence[Carrier]) -> dict[str, CrossMoments]:
    """Covariances between both networks at every place."""
    axes = {place.point.name: place.point.channel_dim for place in found}
    moments = {name: CrossMoments() for name in axes}
    with tap(a, list(axes)) as left, tap(b, list(axes)) as right:
        for batch in batches:
            ours, theirs = left(batch), right(batch)
            for name, axis in axes.items():
                moments[name].add(ours[name], theirs[name].to(ours[name].device), axis)
    for name, m in moments.items():
        if not bool(m.covariance.isfinite().all()):
            raise ValueError(f"features must be finite. Got NaN or infinity at {name!r}. Look for overflow in a or b.")
    return moments


def _scales(
    sym: Symmetry, found: Sequence[Carrier], moments: Mapping[str, CrossMoments], g: Transformation
) -> Transformation:
    """Positive scales that bring standard deviations of ``b`` to those of ``a``, in balanced coordinates."""
    layouts = {place.point.name: Layout((place.axis,)) for place in found}
    order, start = within(g.restrict(kinds={"permutation"}), sym), identity(sym)
    ours = {name: moments[name].a.variance.cpu() for name in layouts}
    theirs = {name: transform(moments[name].b.variance.cpu(), layout, order) for name, layout in layouts.items()}
    for space in sym.spaces:
        if space.group.scales and not space.group.mixes:
            terms = []
            for name, block, dim, leaf in carrying(layouts, space.name):
                dims = parent_dims(space, dim, block.spaces)
                one, other = (summed(block.read(x[name]), dims) for x in (ours, theirs))
                usable = (one > 0) & (other > 0)
                ratio = torch.where(usable, (one / other.clamp_min(1e-300)).clamp_min(1e-300).log() / 2, 0.0)
                terms.append((leaf, usable, ratio))
            start = with_parts(start, space.name, scales=log_scales(start[space.name], terms).contiguous())
    return start


@dataclass(frozen=True, eq=False)
class Gates(Solver):
    """Maximises how often the gates of matched units agree, and among such elements how alike their weights are.

    Pairs of units in spaces that ReLUs switch are the exact optimum; weights choose among pairings that gates leave
    open, and find signs, units of other spaces, and scales.

    Attributes:
        a: Gates of the network that stays, as ``iw.gates.gate_patterns`` gives them.
        b: Gates of the one that moves, on the same inputs.
    """

    name: ClassVar[str] = "gates"
    by_weights: ClassVar[bool] = False
    needs_units: ClassVar[bool] = True

    a: Mapping[str, Tensor] = field(repr=False)
    b: Mapping[str, Tensor] = field(repr=False)

    def search(self, networks: Networks) -> Findings:
        """The element, with the objective after every sweep.

        Raises:
            ValueError: If no ReLU switches the units of a space.
        """
        posed = networks.problem(torch.float64)
        seen = self.seen(posed.sym)
        carried = {name for one in seen.values() for name in one.spaces}
        if not any(s.group.permutes and s.size > 1 for s in networks.sym.spaces if s.name in carried):
            raise ValueError("a must have hidden units that ReLUs switch and a symmetry may permute. Got none.")
        g, history, value = ascend(posed, tuple(seen.values()), 1.0, _TIES_OF_GATES)

        def finish(g: Transformation) -> Transformation:
            full, state = posed.lift(g), tensors_of(networks.b)
            if "scale" in networks.kinds:
                ours, theirs = fold(networks.sym, tensors_of(networks.a)), fold(networks.sym_b, state)
                fit = Fit(theirs, ours, full)
                for _ in range(2):  # the scales of one space depend on those of the next
                    fit.each_space()
                full = fit.g
            return admissible(networks.sym, full, state)

        return Findings(posed.sym, value, (g,), finish, tuple(history))

    def seen(self, sym: Symmetry, both: tuple[str, str] = ("a", "b")) -> dict[str, Likeness]:
        """How often gates agree, by the name of the ReLU; of one network with itself where ``both`` names it twice."""
        one, other = (dict(_switched(sym, getattr(self, side))) for side in both)
        return {name: Likeness.of_gates(axis, sym, on, other[name][1]) for name, (axis, on) in one.items()}


def _switched(sym: Symmetry, gates: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[Axis, Tensor]]]:
    """ReLUs whose gates move along one axis alone: that axis, and the gates ``(C, E)`` along it."""
    for name, gate in gates.items():
        axes = sym.gates[name].axes if name in sym.gates else ()
        moving = [d for d, axis in enumerate(axes) if spaces_of([axis])]
        if len(moving) == 1 and axis_size(axes[moving[0]]) == gate.shape[moving[0]]:
            on = gate if gate.dtype == torch.bool else gate == 1  # the slope of a leaky ReLU where it is on
            yield name, (axes[moving[0]], on.movedim(moving[0], 0).flatten(1))


def ascend(
    posed: Problem, seen: Sequence[Likeness], features: float, weights: float
) -> tuple[Transformation, list[float], Callable[[Transformation], float]]:
    """Improve one space after the other until nothing changes.

        J(g) = features * Σ_p tr L_p(g) + weights * <a, g b> / (|a| |b|)

    Every step is the exact optimum of one space while the others stay. The first sweep takes every step, by likeness
    alone where a space is seen; later ones only if ``J`` grows.

    Returns:
        The element that moves ``b``, ``J`` before the first sweep and after every one, and ``J`` itself.
    """
    weights = weights / max(posed.size, 1e-300)
    total = lambda g: weights * posed.objective(g) + features * sum(float(s.moved(g).trace()) for s in seen)
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
    return g, history, total


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
    costs: dict[Row, Tensor] = {}
    for one in seen:
        for row, gain in one.gains(space, g, free):
            add_to(costs, row, features * gain)
    if weights or not costs:  # of all pairs of units, with the others where ``g`` has them
        members = posed.members[space.name]
        here = {m.tensor: posed.b[m.tensor] for m in members}
        here = {**here, **moved(posed.sym, g, here, list(here))}
        for m in members:
            gain = (m.read(posed.a) @ m.read(here).mT).cpu()
            add_to(costs, m.row or (0,) * space.group.signs, (weights or 1.0) * gain)
    still = identity(posed.sym)
    return with_parts(still, space.name, **best_parts(costs, space.group)) if costs else still
