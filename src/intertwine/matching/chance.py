"""Networks that share nothing with a given one but what training or chance gives any network of its kind."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..symmetry.blocks import blocks
from ..symmetry.gauge.folding import Folded
from ..symmetry.spaces import Leaf

__all__ = ["unrelated"]

_CHUNK = 256  # units that are rotated together: larger rotations cost more and say the same


def unrelated(folded: Folded, seed: int) -> Folded:
    """A network whose units are unrelated to those of ``folded``, as a null hypothesis for their likeness.

    Every tensor is rotated along each axis that carries a space, by a random rotation of its own that keeps the mean
    over units. Sizes, means and second moments along fixed axes stay (dead inputs, smooth filters, all that networks
    of one task share), while which unit is wired to which is lost. Vectors are shuffled.

    Args:
        folded: Weights with batch norms folded.
        seed: Same seed, same network.

    Returns:
        The other network, with the same symmetry.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in folded.state.items():
        pieces = blocks(folded.sym.layouts[name])
        partly = any(rows is not None for block in pieces for rows in block.rows)
        state[name] = tensor.clone() if partly else tensor  # a piece that is the whole tensor takes its place
        for block in pieces:
            x = block.read(tensor).clone()
            if sum(n > 1 for n in x.shape) < 2:
                x = x.flatten()[torch.randperm(x.numel(), generator=generator)].reshape(x.shape)
            else:
                for dim in (d for d, leaf in enumerate(block.leaves) if isinstance(leaf, Leaf)):
                    _rotate(x.movedim(dim, 0), generator)
            state[name] = block.write(state[name], x)
    return replace(folded, state=state)


def _rotate(x: Tensor, generator: torch.Generator) -> None:
    """Rotate a tensor along its first dimension, in place."""
    for chunk in torch.randperm(len(x), generator=generator).split(_CHUNK):
        some = x[chunk]
        x[chunk] = (_rotation(len(chunk), generator).to(x) @ some.flatten(1)).reshape(some.shape)


def _rotation(n: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal matrix that keeps the vector of ones."""
    q, r = torch.linalg.qr(torch.randn(n - 1, n - 1, generator=generator, dtype=torch.float64))
    turned = torch.eye(n, dtype=torch.float64)
    turned[1:, 1:] = q * r.diagonal().sign()
    normal = torch.full((n,), n**-0.5, dtype=torch.float64)
    normal[0] += 1  # the reflection along it takes the first axis to that of the ones
    mirror = torch.eye(n, dtype=torch.float64) - torch.outer(normal, normal) * (2 / normal.square().sum())
    return mirror @ turned @ mirror
