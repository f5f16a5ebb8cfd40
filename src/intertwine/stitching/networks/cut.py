"""Two networks cut at a tap: what every stitched network there shares."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ...programs import Part
from ..layer import StitchingLayer
from .stitched import Stitched, Trunk

Skip = Literal["a", "mapped", "b"]


@dataclass(frozen=True)
class Crossing:
    """One value that crosses the cut."""

    c_in: int  # Channels of A
    c_out: int  # Channels of B
    channel_dim: int  # The channel axis, 1 or -1

    def __str__(self) -> str:
        return f"{self.c_in} to {self.c_out} channels along axis {self.channel_dim}"


@dataclass(frozen=True)
class Cut:
    """Two models cut at a tap, ready to be stitched by any number of layers.

    Attributes:
        at: Layer of A and layer of B.
        trunk: ``f_{<=l}``.
        tail: ``f~_{>l}``; every stitched network gets a fork of it.
        target: B up to its tap (and its own skips): the features that a direct matching aims at.
        tap: Widths and channel axis there, for the layer.
        skip: What becomes of skip connections.
        skips: The same for the values that cross the cut beside the tap and depend on weights.
        notes: What a reader should know.
    """

    at: tuple[str, str]
    trunk: Trunk
    tail: Part
    target: Part
    tap: Crossing
    skip: Skip
    skips: tuple[Crossing, ...]
    notes: tuple[str, ...] = ()

    @property
    def mapped(self) -> tuple[Crossing, ...]:
        """What a stitching layer of its own maps: the tap, and with ``skip="mapped"`` the skip connections."""
        return (self.tap, *self.skips) if self.skip == "mapped" else (self.tap,)

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(self.tail.buffers()).device

    @property
    def inside_block(self) -> bool:
        """Whether other values than the tap cross the cut, as inside residual blocks: the paper's ``*``."""
        return bool(self.skips)

    @property
    def name(self) -> str:
        """The layer's name, both where they differ."""
        a, b = self.at
        return a if a == b else f"{a} -> {b}"

    def stitch(
        self,
        layer: StitchingLayer,
        skip_layers: Sequence[StitchingLayer] = (),
        tail_norm: Literal["eval", "train"] = "eval",
    ) -> Stitched:
        """A stitched network with its own tail statistics; trunk and weights are shared.

        Args:
            layer: For the widths and the channel axis of ``tap``.
            skip_layers: With ``skip="mapped"`` one for each of ``skips``.
            tail_norm: See :class:`Stitched`.

        Raises:
            ValueError: If widths or the number of skip layers do not fit.
        """
        wanted = len(self.mapped) - 1
        if len(skip_layers) != wanted:
            raise ValueError(
                f"skip_layers must be {wanted} here (skip={self.skip!r}, {len(self.skips)} values cross beside the "
                f"tap). Got {len(skip_layers)}."
            )
        for one, crossing in zip([layer, *skip_layers], self.mapped):
            found = Crossing(one.c_in, one.c_out, one.channel_dim)
            if found != crossing:
                raise ValueError(f"layer must map {crossing}. Got one for {found}.")
        return Stitched(self.trunk, layer, self.tail.fork(), skip_layers, tail_norm)
