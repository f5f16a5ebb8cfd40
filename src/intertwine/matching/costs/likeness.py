"""Likeness of the channels of two networks at one point of their runs, by responses or by gates; and these points."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...features import Point, layers, tap
from ...features.batches import head, size
from ...symmetry.blocks import map_leaves
from ...symmetry.spaces import Axis, Fixed, Layout, Leaf, axis_size, spaces_of
from ...symmetry.symmetry import Symmetry
from ..coordinates.problem import Problem, unscaled

_AT_ONCE = 1 << 20  # examples and positions whose agreements are exact in float32
_EXAMPLES = 4


class Likeness(NamedTuple):
    """What two networks have in common at one point, as one more tensor of the problem.

    How alike channels are that meet is ``tr L(g) = <1, L g>``: the inner product of the identity with the likeness, of
    which the second axis moves.
    """

    layout: Layout  # Channels of ``a``, which stay, and how those of ``b`` move in the coordinates of a ``Problem``
    matrix: Tensor  # ``(C, C)``, channels of ``a`` first; its trace is what alignment maximises

    @staticmethod
    def of_responses(axis: Axis, sym: Symmetry, covariance: Tensor, variances: tuple[Tensor, Tensor]) -> "Likeness":
        """Correlations over the number of channels; covariances over total variances where a basis may rotate."""
        if any(sym.space(name).group.mixes for name in spaces_of([axis])):
            sizes = [v.sum().sqrt() for v in variances]
            return Likeness(_searched(axis, sym), covariance / (sizes[0] * sizes[1]).clamp_min(1e-300))
        scale = torch.outer(*(v.sqrt() for v in variances))
        matrix = torch.where(scale > 0, covariance / scale.clamp_min(1e-300), 0.0) / len(covariance)
        return Likeness(_searched(axis, sym), matrix)

    @staticmethod
    def of_gates(axis: Axis, sym: Symmetry, a: Tensor, b: Tensor) -> "Likeness":
        """How much more often channels ``(C, E)`` are both on or both off than not; no scale and no sign changes it."""
        x, y = (t.float() * 2 - 1 for t in (a, b))
        parts = ((p @ q.T).double().cpu() for p, q in zip(x.split(_AT_ONCE, 1), y.split(_AT_ONCE, 1)))
        counts = sum(parts, torch.zeros(len(a), len(b), dtype=torch.float64))  # exact
        return Likeness(_searched(axis, sym, signed=False), counts)


def _searched(axis: Axis, sym: Symmetry, signed: bool = True) -> Layout:
    """Channels of ``a`` and an axis of ``b`` without scales, as it moves in balanced coordinates."""

    def leaf(old: Leaf) -> Leaf:
        group = sym.space(old.space).group
        new = unscaled(old, group)
        return new if signed or group.mixes else replace(new, sign=(0,) * group.signs)

    return map_leaves(Layout((Fixed(axis_size(axis), "channels of a"), axis)), leaf)


def seeing(stated: Problem, seen: Mapping[str, Likeness], features: float, weights: float) -> Problem:
    """The problem of which the objective is how alike channels are at every place ``p``, and how alike weights are.

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
    axis: Axis  # How its channels are made of spaces, and how they move with them

    @property
    def spaces(self) -> frozenset[str]:
        """Names of the spaces that can be seen here."""
        return frozenset(spaces_of([self.axis]))


def carriers(model: nn.Module, sym: Symmetry, batch: Any) -> tuple[Carrier, ...]:
    """Find where the hidden features of a model move with its spaces.

    The engine wrote down how the output of every module moves (``Symmetry.features``; Proposition 3.4: written axes
    move by ``A``, read ones by ``phi(A)``); here these layouts meet the points at which features can be read.

    Returns:
        The carriers in running order; of points that hold the same features the first one only.

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
