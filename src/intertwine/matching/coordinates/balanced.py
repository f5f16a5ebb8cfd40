"""Balanced coordinates: scales and bases in which two networks can be compared weight by weight.

Of all copies that scales and bases connect, the balanced one has (almost) the smallest sum of squared weights. A
network that was trained with weight decay is there already, and the norms of small slices, such as biases near zero,
hardly count: unlike those of ``symmetry.canonical``, which balances *log* norms and so lets every slice vote alike,
these coordinates are stable under noise.

    minimise  Σ_x exp(2 s_x) x²  −  2 κ Σ_x w_x s_x      over the log scales t of all units

where ``s_x`` is what the scales add to the logarithm of the weight ``x`` and ``w_x`` shares one vote among the entries
of a slice. The second term (``κ = 0.01``) keeps weights whose scale is not bounded below, such as the directions of a
weight norm, from vanishing; it is zero along changes that move no weight. The function is convex.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...symmetry.action import moved, tensors_of
from ...symmetry.blocks import align, blocks
from ...symmetry.gauge.balance import fixed_point
from ...symmetry.gauge.canonical import slices
from ...symmetry.gauge.folding import fold
from ...symmetry.parent_axes import parent_dims
from ...symmetry.spaces import Leaf, Space
from ...symmetry.transformation import Transformation, identity, with_parts

if TYPE_CHECKING:
    from ...symmetry import Symmetry

__all__ = ["Balanced", "balance", "balanced_coordinates"]

_KAPPA = 0.01
_ROUNDS = 30  # of bases and scales in turn
_SETTLED = 1e-12
# a sweep that changes less ends the search, for weights in that precision; slow modes are a thousand times further away
_SWEPT = {torch.float32: 1e-10, torch.float64: 1e-15}
_NOISE = 1e-9  # steps below it that do not shrink in so many sweeps are rounding
_PATIENCE = 10
_RIDGE = 1e-13  # added to curvatures, relative to their trace
_STEP = 2.0  # largest change of a log scale in one Newton step
_RANK = 1e-9  # smallest eigenvalue, relative to the largest, of a basis that is determined


@dataclass(frozen=True, eq=False)
class Balanced:
    """A network in balanced coordinates.

    Attributes:
        sym: Acts on ``state``; batch norms are folded.
        state: The tensors, in float64 on the CPU.
        to: The element that brought the network here.
        undetermined: Linear spaces whose basis the weights on neither side determine.
    """

    sym: Symmetry
    state: dict[str, Tensor]
    to: Transformation
    undetermined: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Entries:
    """Squares of a block, summed over the dimensions that no scale moves, and their share of a vote."""

    squares: Tensor
    votes: Tensor
    leaves: tuple[Leaf, ...]


def balance(model: nn.Module, sym: Symmetry, scales: bool = True, linear: bool = True) -> Balanced:
    """Fold the batch norms of a network and bring it into balanced coordinates; the network is left as it is."""
    folded = fold(sym, tensors_of(model))
    if not scales and not linear:
        return Balanced(folded.sym, folded.state, identity(folded.sym))
    live = tensors_of(model)
    double = any(live[name].dtype == torch.float64 for name in sym.layouts)
    to = balanced_coordinates(
        folded.sym, folded.state, scales, linear, _SWEPT[torch.float64 if double else torch.float32]
    )
    state = {**folded.state, **moved(folded.sym, to, folded.state)}
    general = [s for s in folded.sym.spaces if s.group.is_general] if linear else []
    return Balanced(folded.sym, state, to, tuple(s.name for s in general if _basis(folded.sym, state, s) is None))


def balanced_coordinates(
    sym: Symmetry,
    state: Mapping[str, Tensor],
    scales: bool = True,
    linear: bool = True,
    tolerance: float = 1e-15,
) -> Transformation:
    """The element that brings weights into balanced coordinates; orthogonal matrices remain open in linear spaces.

    Args:
        sym: The symmetry, batch norms folded.
        state: Tensors in float64.
        scales: Whether scales may move.
        linear: Whether bases of general linear spaces may move.
        tolerance: Change of the log scales in a sweep that ends the search.

    Returns:
        An element without permutations and signs.
    """
    g = identity(sym)
    general = [s for s in sym.spaces if s.group.is_general] if linear else []
    free = _free_generators(sym, {s.name for s in general})
    for _ in range(_ROUNDS if general else 1):  # norms depend on bases and bases on scales
        before = g
        for space in general:
            basis = _basis(sym, {**state, **moved(sym, g, state)}, space)
            if basis is not None:
                g = with_parts(identity(sym), space.name, linear=basis) @ g
        if scales:
            for name, logs in _scales(sym, {**state, **moved(sym, g, state)}, free, tolerance).items():
                g = with_parts(identity(sym), name, scales=logs) @ g
        if g.allclose(before, _SETTLED):
            break
    return g


def _basis(sym: Symmetry, state: Mapping[str, Tensor], space: Space) -> Tensor | None:
    """The symmetric ``M`` for which ``|M X|² + |M^-T Y|²`` is smallest, ``(p..., n, n)``; ``None`` if undetermined.

    ``X`` are the slices of variance +1 and ``Y`` those of variance -1. ``P = M²`` solves ``P C_X P = C_Y`` for the
    Gram matrices ``C``: their geometric mean. Where one of them has too low a rank there is no smallest sum, as in a
    chain of linear layers that grow narrower; then ``M`` makes the other one the identity.
    """
    grams: dict[int, Tensor] = {}
    for _, x, leaf in slices(sym, state, space):
        gram = x @ x.mT
        grams[leaf.variance] = grams[leaf.variance] + gram if leaf.variance in grams else gram
    bases = {side: torch.linalg.eigh(gram) for side, gram in grams.items() if side}
    full = {side for side, (values, _) in bases.items() if bool((values[..., 0] > _RANK * values[..., -1]).all())}
    if not full:
        return None
    if len(full) == 1:
        (side,) = full
        values, vectors = bases[side]
        return _power(values, vectors, -0.5 * side)
    values, vectors = bases[1]
    root, back = (_power(values, vectors, p) for p in (0.5, -0.5))
    middle, turned = torch.linalg.eigh(root @ grams[-1] @ root)
    square = back @ _power(middle, turned, 0.5) @ back
    values, vectors = torch.linalg.eigh((square + square.mT) / 2)
    return _power(values, vectors, 0.5)


def _power(values: Tensor, vectors: Tensor, exponent: float) -> Tensor:
    return (vectors * values.clamp_min(0).pow(exponent)[..., None, :]) @ vectors.mT


def _free_generators(sym: Symmetry, general: set[str]) -> dict[str, Tensor]:
    """For every space an orthonormal basis ``(k, r)`` of the scale generators that matter.

    Combinations that move nothing are left out, and so is what the general linear spaces inside a unit (a head) do
    as well.
    """
    pieces = [block for layout in sym.layouts.values() for block in blocks(layout)]
    found = {}
    for space in sym.spaces:
        if not space.group.scales or space.group.mixes:
            continue
        inside = {s.name for s in sym.spaces if space.name in s.parents and s.name in general}
        rows = [
            [float(e) for e in leaf.scale]
            for block in pieces
            if not inside & set(block.spaces)
            for leaf in block.leaves
            if isinstance(leaf, Leaf) and leaf.space == space.name
        ]
        table = torch.tensor(rows or [[0.0] * space.group.scales], dtype=torch.float64)
        _, sizes, vh = torch.linalg.svd(table, full_matrices=False)
        basis = vh[sizes > _RANK * sizes.max().clamp_min(1.0)].mT
        if basis.shape[1]:
            found[space.name] = basis
    return found


def _scales(
    sym: Symmetry, state: Mapping[str, Tensor], free: Mapping[str, Tensor], tolerance: float
) -> dict[str, Tensor]:
    """Name of each space with free scales to the log scales ``(k, p..., n)`` that balance it."""
    spaces = {s.name: s for s in sym.spaces if s.name in free}
    zero = {name: identity(sym)[name].scales for name in spaces}
    entries = _entries(sym, state, spaces)
    if not entries:
        return zero
    sizes = [t.numel() for t in zero.values()]

    def split(flat: Tensor) -> dict[str, Tensor]:
        return {name: part.reshape(zero[name].shape) for name, part in zip(zero, flat.split(sizes))}

    least, idle = float("inf"), 0

    def sweep(flat: Tensor) -> Tensor:
        nonlocal least, idle
        logs = split(flat)
        scaled = [part.squares * torch.exp(2 * _exponents(part, spaces, logs)) for part in entries]
        for name, space in spaces.items():
            step = _newton(space, entries, scaled, free[name])
            logs[name] = logs[name] + step
            _rescale(space, entries, scaled, step)
        new = torch.cat([t.flatten() for t in logs.values()])
        size = float((new - flat).abs().max())
        least, idle = min(size, least), 0 if size < 0.5 * least else idle + 1
        return flat if least < _NOISE and idle >= _PATIENCE else new  # rounding moves it for ever

    return split(fixed_point(sweep, torch.cat([t.flatten() for t in zero.values()]), tolerance))


def _entries(sym: Symmetry, state: Mapping[str, Tensor], spaces: Mapping[str, Space]) -> list[_Entries]:
    found = []
    for name, layout in sym.layouts.items():
        for block in blocks(layout) if name in state else ():
            moving = {x.space for x in block.leaves if isinstance(x, Leaf) and x.space in spaces and any(x.scale)}
            if not moving:
                continue
            kept = moving | {p for s in moving for p in spaces[s].parents}
            dims = [d for d, s in enumerate(block.spaces) if s in kept]
            rest = [d for d in range(len(block.leaves)) if d not in dims]
            squares = block.read(state[name]).square()
            squares = squares.sum(rest) if rest else squares
            leaves = tuple(leaf for d, leaf in enumerate(block.leaves) if d in dims and isinstance(leaf, Leaf))
            votes = (squares > 0).to(squares) * (_KAPPA * max(squares.shape, default=1) / max(squares.numel(), 1))
            found.append(_Entries(squares, votes, leaves))
    return found


def _newton(space: Space, entries: list[_Entries], scaled: list[Tensor], free: Tensor) -> Tensor:
    """One Newton step of the log scales of one space while the others stay, ``(k, p..., n)``."""
    slope = curve = torch.zeros(())
    for part, squares in zip(entries, scaled):
        for leaf, kept, rest in _sites(space, part):
            e = torch.tensor([float(x) for x in leaf.scale], dtype=free.dtype) @ free
            total, votes = (x.sum(rest) if rest else x for x in (squares, part.votes))
            order = [sorted(kept).index(d) for d in kept]
            total, votes = total.permute(order), votes.permute(order)
            slope = slope + 2 * (total - votes)[..., None] * e
            curve = curve + 4 * total[..., None, None] * torch.outer(e, e)
    if not curve.ndim:
        return torch.zeros(())
    ridge = (_RIDGE * curve.diagonal(dim1=-2, dim2=-1).sum(-1)).clamp_min(1e-100)  # units without weights stay
    step = -torch.linalg.solve(curve + ridge[..., None, None] * torch.eye(free.shape[1], dtype=free.dtype), slope)
    return (step.clamp(-_STEP, _STEP) @ free.mT).movedim(-1, 0)


def _rescale(space: Space, entries: list[_Entries], scaled: list[Tensor], step: Tensor) -> None:
    """Multiply the squares by what a step of one space makes of them, in place."""
    for part, squares in zip(entries, scaled):
        for leaf, kept, _ in _sites(space, part):
            e = torch.tensor([2 * float(x) for x in leaf.scale], dtype=step.dtype)
            squares *= align(torch.exp(torch.einsum("k,k...->...", e, step)), kept, squares.ndim)


def _sites(space: Space, part: _Entries) -> Iterator[tuple[Leaf, list[int], list[int]]]:
    """Where a part carries the scales of a space: the leaf, the dimensions of its units, and the others."""
    names = tuple(leaf.space for leaf in part.leaves)
    for dim, leaf in enumerate(part.leaves):
        if leaf.space == space.name and any(leaf.scale):
            kept = parent_dims(space, dim, names)
            yield leaf, kept, [d for d in range(part.squares.ndim) if d not in kept]


def _exponents(part: _Entries, spaces: Mapping[str, Space], logs: Mapping[str, Tensor]) -> Tensor:
    """What the scales add to the logarithm of every entry."""
    names = tuple(leaf.space for leaf in part.leaves)
    total = torch.zeros_like(part.squares)
    for dim, leaf in enumerate(part.leaves):
        if leaf.space in spaces and any(leaf.scale):
            e = torch.tensor([float(x) for x in leaf.scale], dtype=total.dtype)
            term = torch.einsum("k,k...->...", e, logs[leaf.space])
            total = total + align(term, parent_dims(spaces[leaf.space], dim, names), total.ndim)
    return total
