"""Networks that share nothing with a given one but what training or chance gives any network of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...groups.sampling import haar, keeping_ones
from ...symmetry.blocks import blocks
from ...symmetry.gauge.batch_norms import Folded
from ...symmetry.transformation import identity
from ..coordinates.problem import Problem
from ..solvers.coordinate_descent import CoordinateDescent, descend
from ..solvers.starts import profiles
from .agreement import streamed_agreement

if TYPE_CHECKING:
    from ...symmetry import Symmetry

__all__ = ["unrelated"]

_SHORT = CoordinateDescent(tolerance=1e-3, sweeps=10)
_CHUNK = 256  # units that are rotated together: larger rotations cost more and say the same


def unrelated(folded: Folded, seed: int) -> Folded:
    """A network whose units are unrelated to those of ``folded``, as a null hypothesis for their likeness.

    Every tensor is rotated along each axis that carries a space, by a random rotation of its own that keeps the mean
    over units. Sizes, means and second moments along fixed axes stay (dead inputs, smooth filters, all that networks
    of one task share), while which unit is wired to which is lost. Vectors are shuffled.
    """
    return replace(folded, state=_unrelated(folded.sym, folded.state, seed))


def cosines_by_chance(stated: Problem, seed: int, search: bool) -> dict[str, float]:
    """The mean cosine of matched units, by space, that a search finds in a network unrelated to ``b``.

    The search is a short one from one start, so that it costs less than that of the networks themselves.

    Args:
        stated: The two networks; ``b`` gives the weights that are mixed.
        seed: Same seed, same cosines.
        search: Whether units are matched by weights; else they are paired as they come.
    """
    names = [name for name in stated.sym.layouts if name in stated.a and name in stated.b]
    sym = replace(stated.sym, layouts={name: stated.sym.layouts[name] for name in names})
    other = Problem(sym, stated.a, _unrelated(sym, stated.b, seed), stated.to_a, stated.to_b, stated.full)
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
                for dim, _ in block.carried:
                    _rotate(x.movedim(dim, 0), generator)
            state[name] = block.write(state[name], x)
    return state


def _rotate(x: Tensor, generator: torch.Generator) -> None:
    """Rotate a tensor along its first dimension, in place."""
    for chunk in torch.randperm(len(x), generator=generator).split(_CHUNK):
        some = x[chunk]
        x[chunk] = (keeping_ones(haar(len(chunk), generator)).to(x) @ some.flatten(1)).reshape(some.shape)
