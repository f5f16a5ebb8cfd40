"""Distances of aligned networks and cosines of matched units, and what they would be by chance."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..._words import counted
from ...groups.sampling import haar, keeping_ones
from ...symmetry import Symmetry, Transformation
from ...symmetry.action import moved, transform
from ...symmetry.blocks import blocks, parent_dims, summed
from ...symmetry.gauge.batch_norms import Folded
from ...symmetry.spaces import Layout
from ...symmetry.transformation import identity
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem
from ..solvers.coordinate_descent import CoordinateDescent, descend
from ..solvers.starts import profiles

Agreement = tuple[dict[str, Tensor], float, float]
"""By space the cosine of every unit with its partner, ``(p..., n)``, NaN where one has no weights; and the distances
``|a - b| / |a|`` before and after."""
_SHORT = CoordinateDescent(tolerance=1e-3, sweeps=10)
_CHUNK = 256  # units that are rotated together: larger rotations cost more and say the same


def agreement(networks: Networks, g: Transformation) -> Agreement:
    """``a`` compared with the moved ``b`` in the coordinates in which ``a`` is balanced.

    Where scales and bases are not searched, weights are compared as they are.
    """
    if not {"scale", "linear"} & set(networks.kinds):
        return streamed_agreement(networks.stated, g)
    left, right = networks.balanced
    before, after = (
        right.state if h.is_identity(0.0) else {**right.state, **moved(left.sym, h, right.state)}
        for h in (left.to @ ~right.to, left.to @ g @ ~right.to)
    )
    return _summed(networks.sym, left.sym.layouts, lambda name: (left.state[name], before[name], after[name]))


def streamed_agreement(stated: Problem, g: Transformation) -> Agreement:
    """The same by permutations and signs, reading one tensor of each network at a time."""
    layouts = {name: layout for name, layout in stated.sym.layouts.items() if name in stated.a}

    def read(name: str) -> tuple[Tensor, Tensor, Tensor]:
        theirs = stated.b[name]
        return stated.a[name], theirs, transform(theirs, layouts[name], g)

    return _summed(stated.sym, layouts, read)


def _summed(
    sym: Symmetry, layouts: Mapping[str, Layout], read: Callable[[str], tuple[Tensor, Tensor, Tensor]]
) -> Agreement:
    """The agreement of tensors as they are in ``a``, in ``b``, and in the moved ``b``."""
    size = gap = left = 0.0
    units: dict[str, list[Tensor]] = {}  # <a, b>, <a, a>, <b, b>

    def add(layout: Layout, *sides: Tensor) -> None:
        # a function, so that nothing of one tensor is held while the next one is read
        nonlocal size, gap, left
        for block in blocks(layout):
            x, before, after = map(block.read, sides)
            size, gap, left = size + _square(x), gap + _square(x - before), left + _square(x - after)
            products = (x * after, x * x, after * after) if block.moved else ()
            for dim, leaf in block.carried:
                dims = parent_dims(sym.space(leaf.space), dim, block.spaces)
                sums = [summed(p, dims) for p in products]
                known = units.get(leaf.space)
                units[leaf.space] = sums if known is None else [old + new for old, new in zip(known, sums)]

    for name, layout in layouts.items():
        add(layout, *read(name))
    found = {s.name: units.get(s.name, [torch.zeros(())] * 3) for s in sym.spaces}
    cosines = {name: inner / (ours * theirs).sqrt() for name, (inner, ours, theirs) in found.items()}
    apart, near = ((x / size) ** 0.5 if size else 0.0 for x in (gap, left))
    return cosines, apart, near


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) ** 2


def unweighted(quality: Mapping[str, Tensor]) -> list[str]:
    """A note for each space with units whose weights are all zero in one of the networks."""
    counts = {name: int(cosines.isnan().sum()) for name, cosines in quality.items()}
    return [
        f"{counted(n, 'unit')} of {name} without weights in one network: any match is as good"
        for name, n in counts.items()
        if n
    ]


def unrelated(folded: Folded, seed: int) -> Folded:
    """A network whose units are unrelated to those of ``folded``, as a null hypothesis for their likeness.

    Every tensor is rotated along each axis that carries a space, by a random rotation of its own that keeps the mean
    over units. Sizes, means and second moments along fixed axes stay (dead inputs, smooth filters, all that networks
    of one task share), while which unit is wired to which is lost. Vectors are shuffled.
    """
    return replace(folded, state=_unrelated(folded.sym, folded.state, seed))


def cosines_by_chance(stated: Problem, seed: int, search: bool) -> dict[str, float]:
    """The mean cosine of matched units, by space, that a short search finds in a network unrelated to ``b``.

    Without ``search`` units are paired as they come.
    """
    names = [name for name in stated.sym.layouts if name in stated.a and name in stated.b]
    sym = replace(stated.sym, layouts={name: stated.sym.layouts[name] for name in names})
    other = replace(stated, sym=sym, b=_unrelated(sym, stated.b, seed))
    g = identity(sym)
    if search:
        g = descend(other, profiles(other), torch.Generator().manual_seed(seed), _SHORT).g
    cosines, _, _ = streamed_agreement(other, g)
    known = {name: x[~x.isnan()] for name, x in cosines.items()}
    return {name: float(x.mean()) for name, x in known.items() if len(x)}


def _unrelated(sym: Symmetry, tensors: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in tensors.items():
        if name not in sym.layouts:
            continue
        pieces = blocks(sym.layouts[name])
        partly = any(rows is not None for block in pieces for rows in block.rows)
        state[name] = tensor.clone() if partly else tensor  # a piece that is the whole tensor takes its place
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
