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
        state[name] = tensor.clone()
        for block in blocks(folded.sym.layouts[name]):
            x = block.read(state[name])
            if sum(n > 1 for n in x.shape) < 2:
                x = x.flatten()[torch.randperm(x.numel(), generator=generator)].reshape(x.shape)
            else:
                for dim, leaf in enumerate(block.leaves):
                    x = _rotated(x, dim, generator) if isinstance(leaf, Leaf) else x
            state[name] = block.write(state[name], x)
    return replace(folded, state=state)


def _rotated(x: Tensor, dim: int, generator: torch.Generator) -> Tensor:
    y = x.movedim(dim, 0).flatten(1)
    order = torch.randperm(len(y), generator=generator)
    pieces = [_rotation(len(chunk), generator).to(y) @ y[chunk] for chunk in order.split(_CHUNK)]
    return torch.cat(pieces).reshape(x.movedim(dim, 0).shape).movedim(0, dim)


def _rotation(n: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal matrix that keeps the vector of ones."""
    basis = torch.eye(n, dtype=torch.float64)
    basis[:, 0] = 1
    basis = torch.linalg.qr(basis).Q
    q, r = torch.linalg.qr(torch.randn(n - 1, n - 1, generator=generator, dtype=torch.float64))
    turned = basis.clone()
    turned[:, 1:] = basis[:, 1:] @ (q * r.diagonal().sign())
    return turned @ basis.mT
