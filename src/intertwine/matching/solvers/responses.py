"""Alignment by unit responses, alone or with weights: units that respond alike, or are on for the same inputs.

Covariances of hidden features are streamed once over the data; after that no model runs. Li et al. (2015) and Git
Re-Basin match one layer at a time by hand-written rules; here the layouts of features say where spaces act. The
similarity of channels and weights is maximised by coordinate descent, with similarities as tensors beside the weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...features import Point, layers, tap
from ...features.batches import head, peek, size
from ...features.moments import CrossMoments
from ...symmetry.action import admissible, tensors_of, transform
from ...symmetry.blocks import carrying, map_leaves
from ...symmetry.gauge.canonical import fold
from ...symmetry.spaces import Axis, Fixed, Layout, Leaf, axis_size, spaces_of
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem, unscaled, within
from ..element_fit.refit import Fit, log_scales
from .coordinate_descent import CoordinateDescent, Descent, default, descend
from .solver import Findings, Solver

_AT_ONCE = 1 << 20  # examples and positions whose agreement counts are exact in float32
_EXAMPLES = 4
_FEWEST = 32  # fewest examples and positions to which scales are fitted: with fewer, ratios took b further away


class Likeness(NamedTuple):
    """The similarity of two networks at one point, as an additional tensor of the problem.

    The similarity of matched channels is ``tr L(g) = <1, L g>``: the inner product of the identity with the likeness,
    whose second axis moves.
    """

    layout: Layout  # Channels of ``a``, which stay, and the action on those of ``b`` in a ``Problem``'s coordinates
    matrix: Tensor  # ``(C, C)``, channels of ``a`` first; alignment maximises its trace

    @staticmethod
    def of_responses(axis: Axis, sym: Symmetry, covariance: Tensor, variances: tuple[Tensor, Tensor]) -> "Likeness":
        """Correlations divided by the number of channels; covariances over total variances if a basis may rotate."""
        if any(sym.space(name).group.mixes for name in spaces_of([axis])):
            sizes = [v.sum().sqrt() for v in variances]
            return Likeness(_searched(axis, sym), covariance / (sizes[0] * sizes[1]).clamp_min(1e-300))
        scale = torch.outer(*(v.sqrt() for v in variances))
        matrix = torch.where(scale > 0, covariance / scale.clamp_min(1e-300), 0.0) / len(covariance)
        return Likeness(_searched(axis, sym), matrix)

    @staticmethod
    def of_gates(axis: Axis, sym: Symmetry, a: Tensor, b: Tensor) -> "Likeness":
        """How much more often channels ``(C, E)`` agree (both on or off) than not, which scales and signs keep."""
        x, y = (t.float() * 2 - 1 for t in (a, b))
        parts = ((p @ q.T).double().cpu() for p, q in zip(x.split(_AT_ONCE, 1), y.split(_AT_ONCE, 1)))
        counts = sum(parts, torch.zeros(len(a), len(b), dtype=torch.float64))  # exact
        return Likeness(_searched(axis, sym, signed=False), counts)


def _searched(axis: Axis, sym: Symmetry, signed: bool = True) -> Layout:
    """Channels of ``a``, and an axis of ``b`` without scales, as it moves in balanced coordinates."""

    def leaf(old: Leaf) -> Leaf:
        group = sym.space(old.space).group
        new = unscaled(old, group)
        return new if signed or group.mixes else replace(new, sign=(0,) * group.signs)

    return map_leaves(Layout((Fixed(axis_size(axis), "channels of a"), axis)), leaf)


def seeing(stated: Problem, seen: Mapping[str, Likeness], features: float, weights: float) -> Problem:
    """The problem whose objective is the similarity of channels at every point ``p`` and that of weights.

    J(g) = features * Σ_p tr L_p(g) + weights * <a, g b> / (|a| |b|); without ``weights`` no tensor of a network is held
    """
    share, like = weights / max(stated.size, 1e-300), next(iter(stated.a.values()), torch.zeros(()))
    layouts = dict(stated.sym.layouts) if weights else {}
    a, b = ({name: state[name] for name in layouts if name in state} for state in (stated.a, stated.b))
    a = {name: share * x for name, x in a.items()}
    for name, one in seen.items():
        layouts[f"channels at {name}"], b[f"channels at {name}"] = one.layout, one.matrix.to(like.device)
        a[f"channels at {name}"] = features * torch.eye(len(one.matrix)).to(b[f"channels at {name}"])
    return replace(stated, sym=replace(stated.sym, layouts=layouts), a=a, b=b)


@dataclass(frozen=True)
class Carrier:
    """A point of a model's run whose channels carry spaces."""

    point: Point  # The module's output
    axis: Axis  # The spaces that its channels carry, and how the channels move with them

    @property
    def spaces(self) -> frozenset[str]:
        """Names of the spaces visible at this point."""
        return frozenset(spaces_of([self.axis]))


def carriers(model: nn.Module, sym: Symmetry, batch: Any) -> tuple[Carrier, ...]:
    """Find the points where a model's hidden features move with its spaces.

    The engine recorded how the output of every module moves (``Symmetry.features``; Proposition 3.4: written axes
    move by ``A``, read ones by ``phi(A)``). Here these layouts are matched to the points where features can be read.

    Returns:
        The carriers in running order; of several points with the same features, only the first.

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(4, 4)
        >>> [(carrier.point.name, sorted(carrier.spaces)) for carrier in carriers(model, iw.symmetries(model, x), x)]
        [('0', ['0.weight[0]']), ('1', ['0.weight[0]'])]
    """
    example = head(batch, min(size(batch), _EXAMPLES))
    known_to_move = (point for point in layers(model, example) if point.name in sym.features)
    carrying = [p for p in known_to_move if spaces_of([sym.features[p.name].axes[p.channel_dim]])]
    known: list[Tensor] = []
    found = []
    with tap(model, [point.name for point in carrying]) as tapped:
        features = tapped(example)
    for point in carrying:
        x = features[point.name]
        if not any(x.shape == other.shape and torch.equal(x, other) for other in known):
            known.append(x)
            found.append(Carrier(point, sym.features[point.name].axes[point.channel_dim]))
    return tuple(found)


_TIES = 1e-6  # smallest share of the weights: they decide between units that never respond
_TIES_OF_GATES = 0.9  # share of all weights together; one more agreement of gates counts 2
_OPTIONS = CoordinateDescent(sweeps=20)


@dataclass(frozen=True)
class Activations(Solver):
    """Alignment by activations: maximises the similarity of matched units' responses and of their weights.

        J(g) = s * mean_p tr L_p(g) + (1 - s) * <a, g b> / (|a| |b|)

    over permutations, signs and rotations, with the likeness ``L_p`` of the channels at every point ``p``: Pearson
    correlations over examples and positions, divided by the number of channels. Every step is the exact optimum of one
    space while the others stay, taken only if the objective grows: first for the responses alone, then for ``J``.
    Units whose inner bases are still unknown, such as heads, are compared by the best match of their inner units.
    Positive scales follow in closed form, as the least-squares fit of the log ratios of standard deviations at all
    points; with fewer than 32 examples and positions they stay as balanced weights fix them.

    Attributes:
        share: Weight ``s`` of the responses; at 0.5 (method ``"mixed"``) both are equally weighted.
        rescale: Whether positive scales follow the responses; otherwise balanced weights determine them.
    """

    name: ClassVar[str] = "activations"
    by_weights: ClassVar[bool] = False

    share: float = 1.0
    rescale: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie between 0 and 1. Got {self.share}.")

    def search(self, networks: Networks) -> Findings:
        """The element, with ``J`` after every sweep.

        Raises:
            ValueError: If there is no loader, features are not finite, or no space shows in the output of any
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

        seen_values = min(m.a.count for m in moments.values())
        rescale = self.rescale and "scale" in networks.kinds

        def finish(g: Transformation) -> Transformation:
            full = posed.lift(g)
            if rescale and seen_values >= _FEWEST:
                scales = _scales(sym, found, moments, g)
                full = ~posed.to_a @ (scales @ (posed.to_a @ full))
            return admissible(sym, full, tensors_of(networks.b))

        hidden = [s.name for s in sym.spaces if not any(s.name in place.spaces for place in found)]
        notes = [f"seen in no module's output, so matched by weights only: {', '.join(hidden)}"] if hidden else []
        if rescale and seen_values < _FEWEST and any(s.group.scales for s in sym.spaces):
            few = f"{seen_values} examples and positions are fewer than {_FEWEST}"
            notes.append(f"scales are those of the weights: {few}, to which they would be fitted")
        others = (default(posed, networks.seed),) if networks.gauge is not None else ()
        return Findings(posed.sym, whole.objective, (best.g, *others), finish, best.history, notes=(*notes,))


def _stream(a: nn.Module, b: nn.Module, batches: Iterable[Any], found: Sequence[Carrier]) -> dict[str, CrossMoments]:
    """Covariances between both networks at every point."""
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
    """Positive scales that match the standard deviations of ``b`` to those of ``a``, in balanced coordinates."""
    layouts = {place.point.name: Layout((place.axis,)) for place in found}
    order, start = within(g.restrict(kinds={"permutation"}), sym), identity(sym)
    ours = {name: moments[name].a.variance.cpu() for name in layouts}
    theirs = {name: transform(moments[name].b.variance.cpu(), layout, order) for name, layout in layouts.items()}
    for space in sym.spaces:
        if space.group.scales and not space.group.mixes:
            terms = []
            for m in carrying(layouts, space):
                one, other = (m.read(x).sum(-1) for x in (ours, theirs))
                usable = (one > 0) & (other > 0)
                ratio = torch.where(usable, (one / other.clamp_min(1e-300)).clamp_min(1e-300).log() / 2, 0.0)
                terms.append((m.leaf, usable, ratio))
            start = with_parts(start, space.name, scales=log_scales(start[space.name], terms).contiguous())
    return start


@dataclass(frozen=True, eq=False)
class Gates(Solver):
    """Alignment by gates: maximises how often gates of matched units agree, then the similarity of their weights.

    In spaces switched by ReLUs the pairing is the exact optimum; weights choose among pairings that gates leave open,
    and determine signs, units of other spaces, and scales.

    Attributes:
        a: Gates of the network that stays, as ``iw.gates.gate_patterns`` returns them.
        b: Gates of the network that moves, on the same inputs.
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
        """The agreement of gates by name of the ReLU; of one network with itself if ``both`` names it twice."""
        one, other = (dict(_switched(sym, getattr(self, side))) for side in both)
        return {name: Likeness.of_gates(axis, sym, on, other[name][1]) for name, (axis, on) in one.items()}


def _switched(sym: Symmetry, gates: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[Axis, Tensor]]]:
    """ReLUs whose gates move along one axis only: that axis, and the gates ``(C, E)`` along it."""
    for name, gate in gates.items():
        axes = sym.gates[name].axes if name in sym.gates else ()
        moving = [d for d, axis in enumerate(axes) if spaces_of([axis])]
        if len(moving) == 1 and axis_size(axes[moving[0]]) == gate.shape[moving[0]]:
            on = gate if gate.dtype == torch.bool else gate == 1  # a leaky ReLU is on where its slope is 1
            yield name, (axes[moving[0]], on.movedim(moving[0], 0).flatten(1))


def _ascended(posed: Problem, seen: Mapping[str, Likeness], features: float, weights: float) -> tuple[Problem, Descent]:
    """The problem with likenesses, and the end of a descent in it, from the end by likeness alone or the identity."""
    still = identity(posed.sym)
    whole, alone = (seeing(posed, seen, features, share) for share in (weights, 0.0))
    start = max(still, descend(alone, still, None, _OPTIONS).g, key=whole.objective)
    found = descend(whole, start, None, _OPTIONS)
    return whole, Descent(found.g, (whole.objective(still), *found.history))
