"""The scales that balance a network: log norms of all slices of a unit as close to zero as its scales allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..blocks import Block, align, blocks
from ..parent_axes import parent_dims
from ..spaces import Leaf, Space

if TYPE_CHECKING:
    from ..symmetry import Symmetry

_SWEEPS = 500
_MEMORY = 12  # sweeps that are extrapolated from
_LEAP = 10.0  # largest log scale that an extrapolation may add
_FLAT = 1e-10  # eigenvalues below this share of the largest are zero
_PIN = 1e4  # weight of a variance that must become 1


@dataclass(frozen=True)
class _Squares:
    """Sums of squares of a block over every dimension that no scale moves."""

    name: str
    values: Tensor
    leaves: tuple[Leaf, ...]
    weight: float


def balancing_scales(
    sym: Symmetry,
    state: Mapping[str, Tensor],
    pinned: frozenset[str] = frozenset(),
    based: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    tolerance: float = 1e-12,
) -> dict[str, Tensor]:
    """Log scales that minimise the sum of squared log norms of all slices, space by space until nothing changes.

    For a unit with slices of norms ``N_m`` and exponents ``e_m`` the best scales are the least-squares solution of
    ``log N_m + e_m . t = 0``. The sum of squared *norms* would have no minimum where a batch norm absorbs a scale.
    Slices that are exactly zero say nothing and are left out.

    Args:
        sym: The symmetry; spaces that are GL(n) are left to their own normal form.
        state: Tensors, batch norms folded.
        pinned: Tensors whose entries must become 1 instead.
        based: Where norms depend on bases and bases on scales: from log scales the tensors that carry a linear space,
            in the bases that go with these scales.
        tolerance: Change of the log scales in a sweep at which they count as balanced.

    Returns:
        Name of each space with scales to its log scales ``(k, p..., n)``.
    """
    scaled = {s.name: s for s in sym.spaces if s.group.scales and not s.group.mixes}
    sizes = {s.name: s.size for s in sym.spaces}
    logs = {
        name: torch.zeros(s.group.scales, *(sizes[p] for p in s.parents), s.size, dtype=torch.float64)
        for name, s in scaled.items()
    }
    members = _members(sym, state, scaled, pinned)
    linear = {s.name for s in sym.spaces if s.group.is_general}
    touched = {n for n, layout in sym.layouts.items() if any(linear & set(b.spaces) for b in blocks(layout))}
    settled = {n: [m for m in found if m[0].name not in touched] for n, found in members.items()}
    needed = _needed(sym, scaled)
    members = {n: [*settled[n], *(m for m in found if m[0].name in touched)] for n, found in members.items()}
    solvers = {n: _solver(space, members[n], scaled, needed[n]) for n, space in scaled.items() if members[n]}
    if not solvers:
        return logs

    idle = _idle(sym, logs)

    def sweep(flat: Tensor) -> Tensor:
        current = _split(flat, logs)
        here = members
        if based is not None:
            moving = _members(sym, based(current), scaled, pinned)
            here = {n: [*settled[n], *(m for m in moving[n] if m[0].name in touched)] for n in members}
        for name, solver in solvers.items():
            current[name] = current[name] + _step(scaled[name], here[name], solver, current, scaled)
        return flat + _without(idle, _joined(current) - flat, logs)

    return _split(fixed_point(sweep, _joined(logs), tolerance), logs)


def fixed_point(sweep: Callable[[Tensor], Tensor], x: Tensor, tolerance: float) -> Tensor:
    """The vector that ``sweep`` leaves as it is, by Anderson's extrapolation from the last few sweeps.

    Plain sweeps take thousands of rounds where scales can run along the network almost freely (grouped convolutions).
    """
    steps: list[Tensor] = []
    images: list[Tensor] = []
    image = x
    for _ in range(_SWEEPS):
        image = sweep(x)
        steps, images = [*steps, image - x][-_MEMORY:], [*images, image][-_MEMORY:]
        if steps[-1].abs().max() < tolerance:
            break
        if len(steps) == 1:
            x = image
            continue
        differences = torch.stack([a - b for a, b in pairwise(steps)], -1)
        mix = torch.linalg.lstsq(differences, steps[-1][:, None], driver="gelsd").solution[:, 0]
        x = images[-1] - torch.stack([a - b for a, b in pairwise(images)], -1) @ mix
        if (x - images[-1]).abs().max() > _LEAP:  # far from a fixed point, extrapolation may go astray
            x, steps, images = images[-1], [], []
    return image


def _idle(sym: Symmetry, logs: Mapping[str, Tensor]) -> Tensor:
    """Orthonormal columns: uniform changes of all generators that move no weight, since two spaces share a scale.

    A scale that a general linear space takes up in its basis counts too. Sweeps may drift along them for ever.
    """
    pieces = [block for layout in sym.layouts.values() for block in blocks(layout)]
    effects = [
        [
            float(sum(leaf.scale[k] for leaf in piece.leaves if isinstance(leaf, Leaf) and leaf.space == name))
            for name, t in logs.items()
            for k in range(len(t))
        ]
        for piece in pieces
    ]
    table = torch.tensor(effects, dtype=torch.float64)
    bases = [_variances(pieces, s.name) for s in sym.spaces if s.group.is_general]
    if bases:
        taken = torch.stack(bases, 1)
        table = table - taken @ (torch.linalg.pinv(taken) @ table)
    values, vectors = torch.linalg.eigh(table.mT @ table)
    return vectors[:, values < _FLAT * values.max().clamp_min(1.0)]


def _without(idle: Tensor, flat: Tensor, like: Mapping[str, Tensor]) -> Tensor:
    """A change of all log scales less its mean part along the idle columns."""
    parts = _split(flat, like)
    if not idle.shape[1]:
        return flat
    means = torch.cat([t.flatten(1).mean(1) for t in parts.values()])
    away = (idle @ (idle.mT @ means)).split([len(t) for t in parts.values()])
    return _joined({n: t - d.reshape(-1, *[1] * (t.ndim - 1)) for (n, t), d in zip(parts.items(), away)})


def _joined(logs: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in logs.values()])


def _split(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([t.numel() for t in like.values()])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts)}


def _needed(sym: Symmetry, scaled: Mapping[str, Space]) -> dict[str, Tensor]:
    """For each space which of its generators do more than scaling all units of the spaces inside it alike."""
    pieces = [block for layout in sym.layouts.values() for block in blocks(layout)]

    def effect(name: str, k: int) -> Tensor:
        found = [[leaf.scale[k] for leaf in p.leaves if isinstance(leaf, Leaf) and leaf.space == name] for p in pieces]
        return torch.tensor([float(sum(exponents)) for exponents in found], dtype=torch.float64)

    kept = {}
    for name, space in scaled.items():
        inside = [effect(c.name, k) for c in scaled.values() if name in c.parents for k in range(c.group.scales)]
        inside += [_variances(pieces, c.name) for c in sym.spaces if name in c.parents and c.group.is_general]
        kept[name] = torch.ones(space.group.scales, dtype=torch.float64)
        for k in range(space.group.scales if inside else 0):
            together = [*inside, effect(name, k)]
            if _rank(together) == _rank(inside):
                kept[name][k] = 0.0
            inside = together
    return kept


def _variances(pieces: list[Block], space: str) -> Tensor:
    """For each piece the power with which a multiple of a linear space's basis multiplies it."""
    found = [sum(leaf.variance for leaf in p.leaves if isinstance(leaf, Leaf) and leaf.space == space) for p in pieces]
    return torch.tensor([float(v) for v in found], dtype=torch.float64)


def _rank(rows: list[Tensor]) -> int:
    return int(torch.linalg.matrix_rank(torch.stack(rows)))


def _solver(space: Space, members: list[tuple[_Squares, int]], scaled: dict[str, Space], needed: Tensor) -> Tensor:
    """For every unit the matrix ``(p..., k, members)`` from log norms to the best change of its log scales."""
    one = {
        n: torch.zeros(s.group.scales, *([1] * (len(s.parents) + 1)), dtype=torch.float64) for n, s in scaled.items()
    }
    e = torch.tensor([[float(x) for x in squares.leaves[d].scale] for squares, d in members], dtype=torch.float64)
    e = e * needed
    known = torch.stack([_slice_squares(space, squares, d, one, scaled) > 0 for squares, d in members], -1)
    weights = known * torch.tensor([squares.weight for squares, _ in members], dtype=torch.float64)
    normal = torch.einsum("...m,mk,ml->...kl", weights, e, e)
    return -torch.linalg.pinv(normal, rtol=1e-9, hermitian=True) @ (e.T * weights[..., None, :])


def _step(
    space: Space,
    members: list[tuple[_Squares, int]],
    solver: Tensor,
    logs: dict[str, Tensor],
    scaled: dict[str, Space],
) -> Tensor:
    """Change of the log scales of one space that balances it while the others stay, ``(k, p..., n)``."""
    norms = torch.stack([0.5 * _slice_squares(space, squares, d, logs, scaled).log() for squares, d in members], -1)
    norms = norms.where(torch.isfinite(norms), 0.0)  # the solver gives zero slices no weight
    return (solver @ norms[..., None])[..., 0].movedim(-1, 0)


def _slice_squares(
    space: Space, squares: _Squares, dim: int, logs: dict[str, Tensor], scaled: dict[str, Space]
) -> Tensor:
    """Squared norms of the slices along one dimension under the current scales, ``(p..., n)``."""
    x = squares.values
    spaces = tuple(leaf.space for leaf in squares.leaves)
    for d, leaf in enumerate(squares.leaves):
        if leaf.space in scaled:
            exponents = torch.tensor([2 * float(e) for e in leaf.scale], dtype=torch.float64)
            factor = torch.exp(torch.einsum("k,k...->...", exponents, logs[leaf.space]))
            x = x * align(factor, parent_dims(scaled[leaf.space], d, spaces), x.ndim)
    kept = parent_dims(space, dim, spaces)
    rest = [d for d in range(x.ndim) if d not in kept]
    order = [*kept, *rest]
    return x.permute(order).flatten(len(kept)).sum(-1) if rest else x.permute(order)


def _members(
    sym: Symmetry, state: Mapping[str, Tensor], scaled: dict[str, Space], pinned: frozenset[str]
) -> dict[str, list[tuple[_Squares, int]]]:
    found: dict[str, list[tuple[_Squares, int]]] = {name: [] for name in scaled}
    for name, layout in sym.layouts.items():
        if name not in state:
            continue
        for block in blocks(layout):
            moving = {s for s, leaf in zip(block.spaces, block.leaves) if s in scaled and any(leaf.scale)}  # type: ignore[union-attr]
            keep = moving | {p for s in moving if s is not None for p in scaled[s].parents}
            if not moving:
                continue
            dims = [d for d, s in enumerate(block.spaces) if s in keep]
            rest = [d for d in range(len(block.leaves)) if d not in dims]
            values = block.read(state[name]).square()
            values = values.sum(rest, dtype=torch.float64) if rest else values.double()
            leaves = tuple(leaf for d, leaf in enumerate(block.leaves) if d in dims and isinstance(leaf, Leaf))
            squares = _Squares(name, values, leaves, _PIN if name in pinned else 1.0)
            for d, leaf in enumerate(leaves):
                if leaf.space in moving:
                    found[leaf.space].append((squares, d))
    return found
