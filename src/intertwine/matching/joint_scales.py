"""Scales of all spaces fitted at once: where one tensor joins two spaces, fits in turn hardly move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..symmetry.action import moved
from ..symmetry.blocks import align, blocks
from ..symmetry.element import parent_dims
from ..symmetry.spaces import Leaf, Space
from ..symmetry.transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from ..symmetry.symmetry import Symmetry

__all__ = ["joint_scales"]

_STEPS = 4  # Gauss-Newton steps
_ITERATIONS = 400  # of conjugate gradients in each
_EXACT = 1e-13  # fall of the squared gradient that ends them
_LEAP = 1.0  # largest change of a log scale in one step
_SETTLED = 1e-13

Logs = dict[str, Tensor]


@dataclass(frozen=True)
class _Sums:
    """Sums over one block along all dimensions that no scale moves: of ``v x²`` and of ``v x (y - x)``."""

    leaves: tuple[Leaf, ...]
    squares: Tensor
    gaps: Tensor


def joint_scales(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], g: Transformation, votes: Mapping[str, float]
) -> Transformation:
    """``g`` with the scales for which ``Σ v |g a - b|² / |b|²`` is smallest, by Gauss-Newton steps.

    Args:
        sym: The symmetry, batch norms folded.
        a: Tensors to move.
        b: Tensors to meet.
        g: An element that brings ``a`` close to ``b``.
        votes: How much each tensor says.

    Returns:
        The fitted element.
    """
    spaces = {s.name: s for s in sym.spaces if s.group.scales and not s.group.mixes}
    for _ in range(_STEPS if spaces else 0):
        sums = _sums(sym, {**a, **moved(sym, g, a)}, b, spaces, votes)
        step = _solved(sums, spaces, {name: torch.zeros_like(g[name].scales) for name in spaces})
        largest = max(float(t.abs().max()) for t in step.values())
        for name, logs in step.items():
            g = with_parts(identity(sym), name, scales=logs.clamp(-_LEAP, _LEAP)) @ g
        if largest < _SETTLED:
            break
    return g


def _sums(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    spaces: Mapping[str, Space],
    votes: Mapping[str, float],
) -> list[_Sums]:
    found = []
    for name, layout in sym.layouts.items():
        vote = votes[name] * b[name].numel() / b[name].square().sum().clamp_min(1e-300)
        for block in blocks(layout):
            moving = {x.space for x in block.leaves if isinstance(x, Leaf) and x.space in spaces and any(x.scale)}
            if not moving:
                continue
            kept = moving | {p for s in moving for p in spaces[s].parents}
            rest = [d for d, s in enumerate(block.spaces) if s not in kept]
            leaves = tuple(x for x in block.leaves if isinstance(x, Leaf) and x.space in kept)
            x, y = block.read(a[name]), block.read(b[name])
            both = (vote * x * x, vote * x * (y - x))
            squares, gaps = (t.sum(rest) if rest else t for t in both)
            found.append(_Sums(leaves, squares, gaps))
    return found


def _solved(sums: list[_Sums], spaces: Mapping[str, Space], zero: Logs) -> Logs:
    """The least-squares step by conjugate gradients, preconditioned by the curvature of every scale alone."""
    right = _gathered(sums, spaces, zero, [part.gaps for part in sums])
    curve = _gathered(sums, spaces, zero, [part.squares for part in sums], squared=True)
    known = {name: torch.where(c > 0, 1.0 / c.clamp_min(1e-300), 0.0) for name, c in curve.items()}
    x, residual = zero, right
    ahead = {name: known[name] * t for name, t in residual.items()}
    direction, size = ahead, _inner(residual, ahead)
    first = size
    for _ in range(_ITERATIONS):
        if not size > _EXACT**2 * first:
            break
        image = _gathered(sums, spaces, zero, [s.squares * _exponents(s, spaces, direction) for s in sums])
        bent = _inner(direction, image)
        if not bent > 0:
            break
        x, residual = _plus(x, size / bent, direction), _plus(residual, -size / bent, image)
        ahead = {name: known[name] * t for name, t in residual.items()}
        size, before = _inner(residual, ahead), size
        direction = _plus(ahead, size / before, direction)
    return x


def _exponents(part: _Sums, spaces: Mapping[str, Space], logs: Logs) -> Tensor:
    """What log scales add to the logarithm of every entry."""
    names = tuple(leaf.space for leaf in part.leaves)
    total = torch.zeros_like(part.squares)
    for dim, leaf in enumerate(part.leaves):
        if leaf.space in spaces and any(leaf.scale):
            term = torch.einsum("k,k...->...", _row(leaf), logs[leaf.space])
            total = total + align(term, parent_dims(spaces[leaf.space], dim, names), total.ndim)
    return total


def _gathered(
    sums: list[_Sums], spaces: Mapping[str, Space], zero: Logs, values: list[Tensor], squared: bool = False
) -> Logs:
    """Values of all entries summed for every scale that moves them, times its exponent (or the square of that)."""
    found = dict(zero)
    for part, value in zip(sums, values):
        names = tuple(leaf.space for leaf in part.leaves)
        for dim, leaf in enumerate(part.leaves):
            if leaf.space in spaces and any(leaf.scale):
                kept = parent_dims(spaces[leaf.space], dim, names)
                rest = [d for d in range(value.ndim) if d not in kept]
                total = value.permute([*kept, *rest]).flatten(len(kept)).sum(-1) if rest else value.permute(kept)
                e = _row(leaf).square() if squared else _row(leaf)
                found[leaf.space] = found[leaf.space] + e.reshape(-1, *[1] * total.ndim) * total
    return found


def _row(leaf: Leaf) -> Tensor:
    return torch.tensor([float(e) for e in leaf.scale], dtype=torch.float64)


def _inner(x: Logs, y: Logs) -> float:
    return sum(float((t * y[name]).sum()) for name, t in x.items())


def _plus(x: Logs, factor: float, y: Logs) -> Logs:
    return {name: t + factor * y[name] for name, t in x.items()}
