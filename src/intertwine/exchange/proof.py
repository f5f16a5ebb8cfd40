"""Proof on numbers: random scales of one mapping in every layer, and a control that leaves one tensor out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..symmetry.description import Description
from ..symmetry.verification.probe import Probe
from .result import Proof
from .scales import ScaleMapping, scaled

__all__ = ["prove_scales"]


def prove_scales(sym: Description, probe: Probe, mappings: Sequence[ScaleMapping], model: str, seed: int = 0) -> Proof:
    """Multiply what the mappings write by ``1 / s`` and what they read by ``s``, with random ``s`` for every channel.

    Args:
        sym: The symmetry.
        probe: A float64 copy of the network.
        mappings: One mapping in all of its layers.
        model: What the network is called.
        seed: Seed of the scales.

    Returns:
        The errors.
    """
    generator = torch.Generator().manual_seed(seed)
    changed: dict[str, Tensor] = {}
    for mapping in mappings:
        space = sym.space(mapping.space)
        shape = [*(sym.space(parent).size for parent in space.parents), space.size]
        logs = torch.randn(shape, generator=generator, dtype=torch.float64) / 2
        for use in (*mapping.writes, *mapping.reads):
            before = changed.get(use.tensor, probe.tensors[use.tensor])
            changed[use.tensor] = scaled(sym, mapping, use, before, logs)
    error = probe.error(changed)
    control = 0.0
    for use in (use for mapping in mappings for use in mapping.reads):
        control = max(control, probe.error({name: t for name, t in changed.items() if name != use.tensor}))
        if control > probe.rtol:
            break
    return Proof(error, control, probe.rtol, model)
