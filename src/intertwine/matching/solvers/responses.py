"""Alignment by what units do, alone or with their weights: units that respond alike, or are on for the same inputs.

Covariances of hidden features are streamed once over the data; after that no model runs. Where Li et al. (2015) and Git
Re-Basin match one layer at a time by hand-written rules, the layouts of features say where spaces act. How alike
channels and weights are is maximised by coordinate descent, in which likenesses are tensors beside the weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...features import tap
from ...features.batches import peek
from ...features.moments import CrossMoments
from ...symmetry.action import admissible, tensors_of, transform
from ...symmetry.blocks import carrying, parent_dims, summed
from ...symmetry.gauge.batch_norms import fold
from ...symmetry.spaces import Axis, Layout, axis_size, spaces_of
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem, within
from ..costs.likeness import Carrier, Likeness, carriers, seeing
from ..element_fit.refit import Fit, log_scales
from .coordinate_descent import CoordinateDescent, Descent, default, descend
from .solver import Findings, Solver

_TIES = 1e-6  # share of the weights at least: they decide between units that never respond
_TIES_OF_GATES = 0.9  # of all weights together; gates that agree once more count 2
_OPTIONS = CoordinateDescent(sweeps=20)


@dataclass(frozen=True)
class Activations(Solver):
    """Maximises how alike matched units respond, and how alike their weights are.

        J(g) = s * mean_p tr L_p(g) + (1 - s) * <a, g b> / (|a| |b|)

    over permutations, signs and rotations, with the likeness ``L_p`` of the channels at every place ``p``: Pearson
    correlations over examples and positions, divided by the number of channels. Every step is the exact optimum of one
    space while the others stay, taken only if the objective grows: first that of the responses alone, then ``J``.
    Units whose inner bases are still unknown, such as heads, are compared by the best match of what lies inside.
    Positive scales follow in closed form: the least-squares fit of the logarithms of the ratios of standard deviations
    at all places.

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
        seen = {}
        for place in found:
            m = moments[place.point.name]
            variances = m.a.variance.cpu(), m.b.variance.cpu()
            seen[place.point.name] = Likeness.of_responses(place.axis, posed.sym, m.covariance.cpu(), variances)
        share = min(self.share, 1 - _TIES)
        whole, best = _ascended(posed, seen, share / len(seen), 1 - share)

        def finish(g: Transformation) -> Transformation:
            full = posed.lift(g)
            if self.rescale and "scale" in networks.kinds:
                scales = _scales(sym, found, moments, g)
                full = ~posed.to_a @ (scales @ (posed.to_a @ full))
            return admissible(sym, full, tensors_of(networks.b))

        hidden = [s.name for s in sym.spaces if not any(s.name in place.spaces for place in found)]
        notes = (f"seen in no module's output, so matched by weights only: {', '.join(hidden)}",) if hidden else ()
        others = (default(posed, networks.seed),) if networks.gauge is not None else ()
        return Findings(posed.sym, whole.objective, (best.g, *others), finish, best.history, notes=notes)


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
        carried = {name for one in seen.values() for name in one.layout.spaces}
        if not any(s.group.permutes and s.size > 1 for s in networks.sym.spaces if s.name in carried):
            raise ValueError("a must have hidden units that ReLUs switch and a symmetry may permute. Got none.")
        whole, best = _ascended(posed, seen, 1.0, _TIES_OF_GATES)

        def finish(g: Transformation) -> Transformation:
            full, state = posed.lift(g), tensors_of(networks.b)
            if "scale" in networks.kinds:
                ours, theirs = fold(networks.sym, tensors_of(networks.a)), fold(networks.sym_b, state)
                fit = Fit(theirs, ours, full)
                for _ in range(2):  # the scales of one space depend on those of the next
                    fit.each_space()
                full = fit.g
            return admissible(networks.sym, full, state)

        return Findings(posed.sym, whole.objective, (best.g,), finish, best.history)

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


def _ascended(posed: Problem, seen: Mapping[str, Likeness], features: float, weights: float) -> tuple[Problem, Descent]:
    """The problem with what is seen, and where coordinate descent ends in it.

    It starts where it ends by likeness alone, which tells units apart before those of other spaces are known, or at the
    identity where that is better.
    """
    still = identity(posed.sym)
    whole, alone = (seeing(posed, seen, features, share) for share in (weights, 0.0))
    start = max(still, descend(alone, still, None, _OPTIONS).g, key=whole.objective)
    found = descend(whole, start, None, _OPTIONS)
    return whole, Descent(found.g, (whole.objective(still), *found.history))
