"""Relations between the features of two networks: how A's are laid out as B's before channels are mapped."""

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ...features.points import Point


@dataclass(frozen=True)
class Relation:
    """How A's features at the tap are laid out as B's, before any map of channels."""

    # ``"same"``, ``"resize"`` (maps of another size, interpolated linearly), ``"to_tokens"`` or ``"to_maps"`` (the same
    # positions in another order of axes)
    kind: Literal["same", "resize", "to_tokens", "to_maps"]
    positions: tuple[int, ...]  # Sizes of B's axes beside batch and channels
    channel_dim: int  # B's channel axis, 1 or -1

    def __call__(self, x: Tensor) -> Tensor:
        """Lay out features of A as B's."""
        if self.kind == "resize":
            mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(self.positions)]
            smaller = len(self.positions) == 2 and any(s < t for s, t in zip(self.positions, x.shape[2:]))
            return F.interpolate(x, self.positions, mode=mode, align_corners=False, antialias=smaller)
        if self.kind == "to_tokens":
            return x.flatten(2).transpose(1, 2)
        if self.kind == "to_maps":
            return x.transpose(1, 2).unflatten(2, self.positions)
        return x


def relate(a: Point, b: Point) -> Relation:
    """How features at a point of A are laid out as those at a point of B.

    Maps of other sizes are interpolated; maps ``(N, C, H, W)`` and tokens ``(N, H W, C)`` are the same positions.

    Raises:
        ValueError: If they cannot be related without inventing positions.
    """
    tokens_a, tokens_b = (len(p.shape) == 2 and p.channel_dim == -1 for p in (a, b))
    space_a, space_b = (p.shape[:-1] if p.channel_dim == -1 else p.shape[1:] for p in (a, b))
    if a.channel_dim == b.channel_dim and space_a == space_b:
        return Relation("same", space_b, b.channel_dim)
    if a.channel_dim == b.channel_dim == 1 and len(space_a) == len(space_b) >= 1:
        return Relation("resize", space_b, 1)
    if tokens_b and a.channel_dim == 1 and len(space_a) >= 1 and prod(space_a) == space_b[0]:
        return Relation("to_tokens", space_b, -1)
    if tokens_a and b.channel_dim == 1 and len(space_b) >= 1 and prod(space_b) == space_a[0]:
        return Relation("to_maps", space_b, 1)
    raise ValueError(
        f"features of A must be laid out like B's: vectors with vectors, maps with maps of any size, tokens with as "
        f"many tokens or positions. Got {a.shape} at {a.name!r} of A and {b.shape} at {b.name!r} of B. Choose layers "
        "before, or after, both have pooled."
    )
