"""Stitched networks ``S(f, f~, l, phi) = f~_{>l} . phi . f_{<=l}`` (paper 1, Def. 4.1): trunk, layer, tail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..features.points import Point
from ..programs import Part
from .layer import StitchingLayer

TailNorm = Literal["eval", "train"]


@dataclass(frozen=True)
class Relation:
    """Layout of A's features at the tap like B's, before any map of channels."""

    # ``"same"``, ``"resize"`` (maps of another size, interpolated linearly), ``"to_tokens"`` or ``"to_maps"`` (the same
    # positions in another order of axes)
    kind: Literal["same", "resize", "to_tokens", "to_maps"]
    positions: tuple[int, ...]  # Sizes of B's axes other than batch and channels
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
    """The layout of features at a point of A like those at a point of B.

    Maps of other sizes are interpolated; maps ``(N, C, H, W)`` and tokens ``(N, H W, C)`` hold the same positions.

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


class Trunk(nn.Module):
    """``f_{<=l}``, frozen: from inputs to everything that crosses the cut, the tap first. Always in evaluation mode."""

    def __init__(self, a: Part, b: Part | None, relation: Relation, dtype: torch.dtype) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.relation = relation
        self._dtype = dtype
        self.train(False)

    def train(self, mode: bool = True) -> Trunk:
        """Stay in evaluation mode: a frozen network's batch norms must not drift."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The tap's value, laid out like B's, the skip connections, and what B computes from the input alone."""
        tap, *skips = self.a(*inputs)
        others = () if self.b is None else self.b(*inputs)
        return self.relation(tap).to(self._dtype), *(s.to(self._dtype) for s in skips), *others


class Stitched(nn.Module):
    """A stitched network: trunk of A, stitching layer, tail of B, and maps of the skip connections, if any.

    Trunk and tail hold copies of the models' weights, shared by all networks of a pair and never written; the tail's
    batch-norm statistics are its own. Only the layers have parameters. ``train()`` puts them in training mode, but
    never the trunk. The tail's batch norms use the batch's statistics and update the running ones by
    ``tail_norm="train"`` (the reference code's way), and use B's by ``"eval"``. All arguments are attributes.
    """

    def __init__(
        self,
        trunk: Trunk,
        layer: StitchingLayer,
        tail: Part,
        skip_layers: Sequence[StitchingLayer] = (),
        tail_norm: TailNorm = "eval",
    ) -> None:
        super().__init__()
        if tail_norm not in ("eval", "train"):
            raise ValueError(f'tail_norm must be "eval" or "train". Got {tail_norm!r}.')
        self.trunk, self.layer, self.tail = trunk, layer, tail
        self.skip_layers = nn.ModuleList(skip_layers)
        self.tail_norm = tail_norm
        self.train(False)

    def train(self, mode: bool = True) -> Stitched:
        """Training mode for the layers; the tail's batch norms follow ``tail_norm``."""
        super().train(mode)
        self.tail.train(mode and self.tail_norm == "train")
        return self

    def forward(self, *inputs: Tensor) -> Tensor:
        """The stitched network's output for input tensors."""
        return self.finish(self.trunk(*inputs))

    def finish(self, crossing: Sequence[Tensor]) -> Tensor:
        """Layer and tail behind what ``trunk`` returned, which is computed once for any number of stitched networks."""
        tap, *others = crossing
        for i, skip_layer in enumerate(self.skip_layers):
            others[i] = skip_layer(others[i])
        return self.tail(self.layer(tap), *others)[0]

    def evaluated(self) -> Callable[[Sequence[Tensor]], tuple[Tensor, ...]]:
        """The maps, as evaluated, from what ``trunk`` returns to what ``tail`` reads, for a whole pass."""
        layer, *skip_layers = (one.fixed() for one in self.layers)

        def mapped(crossing: Sequence[Tensor]) -> tuple[Tensor, ...]:
            tap, *others = crossing
            return layer(tap), *(f(x) for f, x in zip(skip_layers, others)), *others[len(skip_layers) :]

        return mapped

    @property
    def layers(self) -> list[StitchingLayer]:
        """The stitching layer, then those of the skip connections."""
        return [self.layer, *cast("list[StitchingLayer]", list(self.skip_layers))]

    @property
    def classes(self) -> int:
        """Number of classes that the outputs distinguish."""
        return self.tail.program.values[self.tail.outputs[0].id].shape[1]

    def trainable(self) -> list[nn.Parameter]:
        """Parameters of the stitching layers."""
        return [*self.layer.parameters(), *self.skip_layers.parameters()]
