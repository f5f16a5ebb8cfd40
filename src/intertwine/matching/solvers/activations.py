"""Alignment by activations, or by weights and activations together: units that respond alike are matched.

Covariances of hidden features are streamed once over the data; after that no model runs. Where Li et al. (2015) and Git
Re-Basin match one layer at a time by hand-written rules, the layouts of features say where spaces act.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ...features import tap
from ...features.batches import peek
from ...features.moments import CrossMoments
from ...symmetry.action import admissible, tensors_of, transform
from ...symmetry.blocks import carrying, parent_dims, summed
from ...symmetry.spaces import Layout
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..carriers import Carrier, carriers
from ..coordinates.networks import Networks
from ..coordinates.problem import within
from ..costs.likeness import Likeness
from ..element_fit.refit import log_scales
from .ascent import ascend, likeness
from .coordinate_descent import default
from .solver import Findings, Solver

_TIES = 1e-6  # share of the weights at least: they decide between units that never respond


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
        models = [_coordinates(sym, g, m) for g, m in ((posed.to_a, networks.a), (posed.to_b, networks.b))]
        moments = _stream(models[0], models[1], batches, found)
        seen = [_likeness(posed.sym, place, moments[place.point.name]) for place in found]
        share = min(self.share, 1 - _TIES)
        g, history = ascend(posed, seen, share / len(seen), 1 - share)

        def finish(g: Transformation) -> Transformation:
            full = posed.lift(g)
            if self.rescale and "scale" in networks.kinds:
                scales = _scales(sym, found, moments, g)
                full = ~posed.to_a @ (scales @ (posed.to_a @ full))
            return admissible(sym, full, tensors_of(networks.b))

        hidden = [s.name for s in sym.spaces if not any(s.name in place.spaces for place in found)]
        notes = (f"seen in no module's output, so matched by weights only: {', '.join(hidden)}",) if hidden else ()
        value = likeness(posed, seen, share / len(seen), 1 - share)
        others = (default(posed, networks.seed),) if networks.gauge is not None else ()
        return Findings(posed.sym, value, (g, *others), finish, tuple(history), notes=notes)


def _coordinates(sym: Symmetry, g: Transformation, model: nn.Module) -> nn.Module:
    return model if g.is_identity(0.0) else sym.act(admissible(sym, g, tensors_of(model)), model)


def _stream(a: nn.Module, b: nn.Module, batches: Iterable[Any], found: Sequence[Carrier]) -> dict[str, CrossMoments]:
    """Covariances between both networks at every place."""
    names = [place.point.name for place in found]
    axes = {place.point.name: place.point.channel_dim for place in found}
    moments = {name: CrossMoments() for name in names}
    with tap(a, names) as left, tap(b, names) as right:
        for batch in batches:
            ours, theirs = left(batch), right(batch)
            for name in names:
                moments[name].add(ours[name], theirs[name].to(ours[name].device), axes[name])
    for name, m in moments.items():
        if not bool(m.covariance.isfinite().all()):
            raise ValueError(f"features must be finite. Got NaN or infinity at {name!r}. Look for overflow in a or b.")
    return moments


def _likeness(sym: Symmetry, place: Carrier, m: CrossMoments) -> Likeness:
    return Likeness.of_responses(place.axis, sym, m.covariance.cpu(), (m.a.variance.cpu(), m.b.variance.cpu()))


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
