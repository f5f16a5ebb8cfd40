"""Distances of aligned networks and cosines of matched units, with their chance levels."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..._io.lazy import State
from ..._words import counted
from ...groups.sampling import haar, keeping_ones
from ...symmetry import Symmetry, Transformation
from ...symmetry.action import transform
from ...symmetry.blocks import blocks, parent_dims, summed
from ...symmetry.spaces import Layout
from ...symmetry.transformation import identity
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem
from ..solvers.coordinate_descent import CoordinateDescent, descend
from ..solvers.steps import profiles

Agreement = tuple[dict[str, Tensor], float, float]
"""The cosine of every unit with its partner by space, ``(p..., n)``, NaN if one has no weights; and the distances
``|a - b| / |a|`` before and after."""
_SHORT = CoordinateDescent(tolerance=1e-3, sweeps=10)
_CHUNK = 256  # units rotated together: larger rotations cost more and tell no more


def agreement(networks: Networks, g: Transformation) -> Agreement:
    """Agreement of ``a`` with the moved ``b``, in ``a``'s balanced coordinates if scales or bases are searched."""
    if not {"scale", "linear"} & set(networks.kinds):
        return compared(networks.stated, g)
    left, right = networks.balanced
    posed = Problem.plain(left.sym, left.state, right.state)
    return compared(posed, left.to @ g @ ~right.to, left.to @ ~right.to)


def compared(stated: Problem, g: Transformation, start: Transformation | None = None) -> Agreement:
    """The agreement of ``a`` with ``b`` moved by ``start`` and by ``g``, reading one tensor of each at a time."""
    sym = stated.sym
    size = gap = left = 0.0
    units: dict[str, Tensor] = {}  # <a, b>, <a, a>, <b, b>

    def add(name: str, layout: Layout) -> None:
        # a function, so that one tensor is released before the next is read
        nonlocal size, gap, left
        ours, theirs = stated.a[name], stated.b[name]
        sides = ours, theirs if start is None else transform(theirs, layout, start), transform(theirs, layout, g)
        for block in blocks(layout):
            x, before, after = map(block.read, sides)
            size, gap, left = size + _square(x), gap + _square(x - before), left + _square(x - after)
            products = (x * after, x * x, after * after) if block.carried else ()
            for dim, leaf in block.carried:
                dims = parent_dims(sym.space(leaf.space), dim, block.spaces)
                units[leaf.space] = units.get(leaf.space, 0) + torch.stack([summed(p, dims) for p in products])

    for name, layout in sym.layouts.items():
        if name in stated.a:
            add(name, layout)
    found = {s.name: units.get(s.name, torch.zeros(3)) for s in sym.spaces}
    cosines = {name: inner / (ours * theirs).sqrt() for name, (inner, ours, theirs) in found.items()}
    apart, near = ((x / size) ** 0.5 if size else 0.0 for x in (gap, left))
    return cosines, apart, near


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) ** 2


def unweighted(quality: Mapping[str, Tensor]) -> list[str]:
    """A note for each space with units whose weights are all zero in one network."""
    said = "of {} without weights in one network: any match is as good"
    counts = {name: int(cosines.isnan().sum()) for name, cosines in quality.items()}
    return [f"{counted(n, 'unit')} {said.format(name)}" for name, n in counts.items() if n]


def cosines_by_chance(stated: Problem, seed: int, search: bool) -> dict[str, float]:
    """By space, the mean cosine of units that a short search, or none, finds in a network unrelated to ``b``."""
    names = [name for name in stated.sym.layouts if name in stated.a and name in stated.b]
    sym = replace(stated.sym, layouts={name: stated.sym.layouts[name] for name in names})
    other = replace(stated, sym=sym, b=unrelated(sym, stated.b, seed))
    g = identity(sym)
    if search:
        g = descend(other, profiles(other), torch.Generator().manual_seed(seed), _SHORT).g
    cosines, _, _ = compared(other, g)
    known = {name: x[~x.isnan()] for name, x in cosines.items()}
    return {name: float(x.mean()) for name, x in known.items() if len(x)}


def unrelated(sym: Symmetry, tensors: State, seed: int) -> dict[str, Tensor]:
    """A network whose units are unrelated to those of a given one, as a null hypothesis for their similarity.

    Every tensor is rotated along each axis that carries a space, by its own random rotation that keeps the mean over
    units. Sizes, means and second moments along fixed axes stay (dead inputs, smooth filters, everything that networks
    of one task share), while the wiring between units is lost. Vectors are shuffled.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, layout in sym.layouts.items():
        tensor, pieces = tensors[name], blocks(layout)
        partly = any(rows is not None for block in pieces for rows in block.rows)
        state[name] = tensor.clone() if partly else tensor  # a piece that is the whole tensor replaces it
        for block in pieces:
            x = block.read(tensor).clone()
            if sum(n > 1 for n in x.shape) < 2:
                x = x.flatten()[torch.randperm(x.numel(), generator=generator)].reshape(x.shape)
            else:
                for along in (x.movedim(dim, 0) for dim, _ in block.carried):
                    for chunk in torch.randperm(len(along), generator=generator).split(_CHUNK):
                        some = along[chunk]
                        turn = keeping_ones(haar(len(chunk), generator)).to(x)
                        along[chunk] = (turn @ some.flatten(1)).reshape(some.shape)
            state[name] = block.write(state[name], x)
    return state
