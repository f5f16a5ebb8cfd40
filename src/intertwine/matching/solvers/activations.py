"""Alignment by activations, or by weights and activations together: units that respond alike are matched.

Covariances of hidden features are streamed once over the data; after that no model runs. Where Li et al. (2015) and Git
Re-Basin match one layer at a time by hand-written rules, the layouts of features say where spaces act.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ...features import tap
from ...features.batches import peek
from ...features.moments import CrossMoments
from ...symmetry.action import moved, tensors_of, transform
from ...symmetry.admissible import admissible
from ...symmetry.blocks import Block, blocks, map_leaves
from ...symmetry.parent_axes import parent_dims
from ...symmetry.spaces import Axis, Fixed, Layout, Leaf, Space
from ...symmetry.transformation import Transformation, identity, with_parts
from ..carriers import Place, places
from .block_update import closest_rotation, monomial_step
from .solver import Solution, Solver

if TYPE_CHECKING:
    from ...symmetry.symmetry import Symmetry
    from ..coordinates.networks import Networks
    from ..coordinates.problem import Problem

__all__ = ["Activations"]

_SWEEPS = 20
_TIES = 1e-6  # share of the weights at least: they decide between units that never respond


@dataclass(frozen=True, eq=False)
class _Seen:
    """What two networks have in common at one place.

    Attributes:
        axis: How the channels move.
        likeness: ``(C, C)``, channels of ``a`` first: correlations over the number of channels, or covariances over
            both total variances where a basis may rotate. The trace is what alignment maximises, at most 1.
    """

    axis: Axis
    likeness: Tensor


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
        """Check the options.

        Raises:
            ValueError: If ``share`` lies outside 0 to 1.
        """
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie between 0 and 1. Got {self.share}.")

    def solve(self, networks: Networks) -> Solution:
        """The element, with ``J`` after every sweep.

        Raises:
            ValueError: If there is no loader, features are not finite, or no space can be seen in the output of any
                module.
        """
        sym = networks.sym
        if networks.loader is None:
            raise ValueError("loader must be given to align by activations. Got none. Pass batches of inputs.")
        first, batches = peek(networks.loader)
        found = places(networks.a, sym, first)
        if not found:
            raise ValueError(
                "model must show at least one space in the output of a module. Got none. Align by weights instead."
            )
        posed = networks.problem(torch.float64)
        models = [_coordinates(sym, g, m) for g, m in ((posed.to_a, networks.a), (posed.to_b, networks.b))]
        moments = _stream(models[0], models[1], batches, found)
        seen = [_likeness(posed.sym, place, moments[place.point.name]) for place in found]
        g, history = _ascend(posed, seen, min(self.share, 1 - _TIES))
        full = posed.lift(g)
        if self.rescale and "scale" in networks.kinds:
            scales = _scales(sym, found, moments, posed, g)
            full = ~posed.to_a @ (scales @ (posed.to_a @ full))
        hidden = [s.name for s in sym.spaces if not any(s.name in place.spaces for place in found)]
        notes = (f"seen in no module's output, so matched by weights only: {', '.join(hidden)}",) if hidden else ()
        g = admissible(sym, full, tensors_of(networks.b))
        return Solution(g, history[-1], tuple(history), notes=notes)


def _coordinates(sym: Symmetry, g: Transformation, model: nn.Module) -> nn.Module:
    return model if g.is_identity(0.0) else sym.act(admissible(sym, g, tensors_of(model)), model)


def _stream(a: nn.Module, b: nn.Module, batches: Iterable[Any], found: Sequence[Place]) -> dict[str, CrossMoments]:
    """Covariances between both networks at every place.

    Raises:
        ValueError: If they are not finite.
    """
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


def _likeness(sym: Symmetry, place: Place, m: CrossMoments) -> _Seen:
    spaces = {s.name: s for s in sym.spaces}

    def leaf(old: Leaf) -> Leaf:
        if spaces[old.space].group.mixes:
            return replace(old, scale=(), sign=(), variance=1)
        return replace(old, scale=(), sign=old.sign if spaces[old.space].group.signs else (), variance=0)

    covariance, variances = m.covariance.cpu(), (m.a.variance.cpu(), m.b.variance.cpu())
    if any(spaces[name].group.mixes for name in place.spaces):
        sizes = [v.sum().sqrt() for v in variances]
        likeness = covariance / (sizes[0] * sizes[1]).clamp_min(1e-300)
    else:
        sizes = [v.sqrt() for v in variances]
        scale = torch.outer(*sizes)
        likeness = torch.where(scale > 0, covariance / scale.clamp_min(1e-300), 0.0) / len(covariance)
    return _Seen(map_leaves(Layout((place.axis,)), leaf).axes[0], likeness)


def _ascend(posed: Problem, seen: list[_Seen], share: float) -> tuple[Transformation, list[float]]:
    """Improve one space after the other until nothing changes."""
    norms = [sum(float(t.square().sum()) for t in state.values()) ** 0.5 for state in (posed.a, posed.b)]
    weights = (1 - share) / max(norms[0] * norms[1], 1e-300)
    features = share / len(seen)

    def total(g: Transformation) -> float:
        return weights * posed.objective(g) + features * sum(float(_moved(s, g, posed.sym).trace()) for s in seen)

    g, history = identity(posed.sym), []
    best = total(g)
    history.append(best)
    order = sorted(posed.sym.spaces, key=lambda s: len(s.parents))
    for sweep in range(_SWEEPS):
        start = best
        resolved = {s.name for s in order} if sweep else set()
        for space in order:
            if not (space.group.permutes or space.group.signs or space.group.mixes):
                continue
            step = _step(posed, seen, g, space, resolved, 0.0 if sweep == 0 else weights, features)
            resolved.add(space.name)
            candidate = step @ g
            value = total(candidate)
            if value > best + 1e-12 * abs(best) or sweep == 0:
                g, best = candidate, value
        if best < start:  # the first sweep takes every step: before it, there is no order to compare
            g, best = identity(posed.sym), start
        history.append(best)
        if sweep and best <= start + 1e-9 * abs(start):
            break
    return g, history


def _step(
    posed: Problem,
    seen: list[_Seen],
    g: Transformation,
    space: Space,
    resolved: set[str],
    weights: float,
    features: float,
) -> Transformation:
    """The best element of one space after ``g``."""
    costs: dict[tuple[int, ...], Tensor] = {}

    def add(row: tuple[int, ...], gain: Tensor) -> None:
        costs[row] = costs[row] + gain if row in costs else gain

    still = (0,) * space.group.signs
    for one in seen:
        likeness = _moved(one, g, posed.sym)
        for block in blocks(Layout((one.axis,))):
            for dim, leaf in enumerate(block.leaves):
                if isinstance(leaf, Leaf) and leaf.space == space.name:
                    gain, in_order = _gain(likeness, block, space, dim, resolved)
                    row = tuple(e % 2 for e in leaf.sign) if in_order and leaf.sign else still
                    add(row, features * gain)
    if weights or not costs:
        for row, gain in _weight_gains(posed, g, space):
            add(row or still, (weights or 1.0) * gain)
    if not costs:
        return identity(posed.sym)
    if space.group.mixes:
        return with_parts(identity(posed.sym), space.name, linear=closest_rotation(sum(costs.values())))  # type: ignore[arg-type]
    permutation, signs = monomial_step(costs, space.group.signs, space.group.permutes)
    return with_parts(identity(posed.sym), space.name, permutation=permutation, signs=signs)


def _gain(likeness: Tensor, block: Block, space: Space, dim: int, resolved: set[str]) -> tuple[Tensor, bool]:
    """How alike units of one space are at a place, ``(p..., n, n)``, and whether signs count.

    Dimensions of fixed axes and of spaces that are resolved are compared in order. Over the others the Frobenius norm
    is taken, which no permutation, sign or rotation of those units changes.
    """
    rows = block.rows[0]
    part = likeness if rows is None else likeness[rows][:, rows]
    part = part.reshape(*block.shape, *block.shape)
    parents = parent_dims(space, dim, block.spaces)[:-1]
    free = [
        d for d, s in enumerate(block.spaces) if d != dim and d not in parents and s is not None and s not in resolved
    ]
    count = len(block.shape)
    left = list(range(count))
    right = [count + d if d == dim or d in free else d for d in range(count)]
    ordered = [d for d in range(count) if d != dim and d not in parents and d not in free]
    kept = [*parents, dim, count + dim]
    if not free:
        return torch.einsum(part, left + right, kept), True
    squares = torch.einsum(part.square(), left + right, kept + ordered).clamp_min(0).sqrt()
    return squares.sum(list(range(len(kept), squares.ndim))) if ordered else squares, False


def _weight_gains(posed: Problem, g: Transformation, space: Space) -> Iterable[tuple[tuple[int, ...], Tensor]]:
    """Inner products of the weights of all pairs of units, with the others where ``g`` has them."""
    members = posed.members[space.name]
    names = {m.tensor for m in members}
    here = {name: posed.b[name] for name in names}
    here = {**here, **moved(posed.sym, g, here, list(names))}
    for m in members:
        x, y = (m.view(m.block.read(state[m.tensor])) for state in (posed.a, here))
        yield m.row, (x @ y.mT).cpu()


def _moved(seen: _Seen, g: Transformation, sym: Symmetry) -> Tensor:
    """The likeness with the channels of ``b`` moved by ``g``."""
    count = len(seen.likeness)
    layout = Layout((Fixed(count, "channels of a"), seen.axis))
    return transform(seen.likeness, layout, g)


def _scales(
    sym: Symmetry, found: Sequence[Place], moments: Mapping[str, CrossMoments], posed: Problem, g: Transformation
) -> Transformation:
    """Positive scales that bring standard deviations of ``b`` to those of ``a``, in balanced coordinates."""
    scaled = {s.name: s for s in sym.spaces if s.group.scales and not s.group.mixes}
    start = identity(sym)
    normal = {
        name: torch.zeros(*start[name].permutation.shape, s.group.scales, s.group.scales, dtype=torch.float64)
        for name, s in scaled.items()
    }
    right = {
        name: torch.zeros(*start[name].permutation.shape, s.group.scales, dtype=torch.float64)
        for name, s in scaled.items()
    }
    order = g.restrict(kinds={"permutation"})
    for place in found:
        m = moments[place.point.name]
        ours = m.a.variance.cpu()
        theirs = transform(m.b.variance.cpu(), Layout((place.axis,)), _as_full(order, start))
        for block in blocks(Layout((place.axis,))):
            x, y = block.read(ours), block.read(theirs)
            for dim, leaf in enumerate(block.leaves):
                if not isinstance(leaf, Leaf) or leaf.space not in scaled or not any(leaf.scale):
                    continue
                dims = parent_dims(scaled[leaf.space], dim, block.spaces)
                rest = [d for d in range(x.ndim) if d not in dims]
                one, other = (
                    v.permute([*dims, *rest]).flatten(len(dims)).sum(-1) if rest else v.permute(dims) for v in (x, y)
                )
                usable = (one > 0) & (other > 0)
                ratio = torch.where(usable, (one / other.clamp_min(1e-300)).clamp_min(1e-300).log() / 2, 0.0)
                e = torch.tensor([float(v) for v in leaf.scale], dtype=torch.float64)
                normal[leaf.space] += usable[..., None, None] * torch.outer(e, e)
                right[leaf.space] += ratio[..., None] * e
    for name in scaled:
        logs = (torch.linalg.pinv(normal[name], rtol=1e-9, hermitian=True) @ right[name][..., None])[..., 0]
        start = with_parts(start, name, scales=logs.movedim(-1, 0).contiguous())
    return start


def _as_full(order: Transformation, like: Transformation) -> Transformation:
    """Permutations as an element of the networks' own symmetry."""
    for name, e in order.elements.items():
        like = with_parts(like, name, permutation=e.permutation)
    return like
