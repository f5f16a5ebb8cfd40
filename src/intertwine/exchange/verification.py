"""Numerical verification of a mapping: random scales in every layer, and a control that leaves one tensor out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..symmetry.verification.probe import Probe
from .exported_model import Subject
from .result import Proof
from .scales import ScaleMapping, scaled


def prove_scales(subject: Subject, probe: Probe, mappings: Sequence[ScaleMapping], seed: int = 0) -> Proof:
    """Multiply what the mappings write by ``1 / s`` and what they read by ``s``, ``s`` random for every channel."""
    generator = torch.Generator().manual_seed(seed)
    changed: dict[str, Tensor] = {}
    for mapping in mappings:
        space = subject.sym.space(mapping.space)
        shape = [*(subject.sym.space(parent).size for parent in space.parents), space.size]
        logs = torch.randn(shape, generator=generator, dtype=torch.float64) / 2
        for name in dict.fromkeys(use.tensor for use in (*mapping.writes, *mapping.reads)):
            before, c = changed.get(name, probe.tensors[name]), subject.offsets.get(name, 0.0)
            changed[name] = scaled(subject.sym, mapping, name, before + c, logs) - c
    error = probe.error(changed)
    control = 0.0
    for use in (use for mapping in mappings for use in mapping.reads):
        control = max(control, probe.error({name: t for name, t in changed.items() if name != use.tensor}))
        if control > probe.rtol:
            break
    return Proof(error, control, probe.rtol, subject.described)
