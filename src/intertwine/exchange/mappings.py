"""Mappings of a symmetry for other tools: the front door of all formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..symmetry import Symmetry
from . import llm_compressor
from .proof import prove_scales
from .result import Entry, Mappings
from .scale_entries import ScaleEntries, scale_entries
from .subject import Subject, provable, subject_of

__all__ = ["FORMATS", "mappings"]

FORMATS = ("llm-compressor",)


def mappings(
    sym: Symmetry, format: str = "llm-compressor", model: nn.Module | None = None, example_inputs: Any = None
) -> Mappings:
    """What another tool needs of a symmetry, in its own words, each entry proved on numbers.

    Args:
        sym: The symmetry of a model.
        format: One of ``FORMATS``. ``"llm-compressor"``: mappings of AWQ and SmoothQuant.
        model: The network to prove the entries on; by default the one that the symmetry was found in, if it is still
            there. One without weights, or too large, is replaced by a small one of the same class.
        example_inputs: An example for it; by default the one that the symmetry was found with.

    Returns:
        The entries, and the reasons for what is not listed.

    Raises:
        ValueError: If there is no such format.

    Examples:
        >>> import torch, intertwine as iw
        >>> net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())
        >>> found = iw.symmetries(net, torch.randn(5, 4)).mappings("llm-compressor")
        >>> [str(entry) for entry in found.entries], found.proved
        (['0 -> 1', '1 -> 3'], True)
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}. Got {format!r}.")
    with torch.device("cpu"):  # whoever built the model on the meta device may still be at it
        subject = subject_of(sym, model, example_inputs)
        scales = scale_entries(subject)
        entries, notes = _proved(scales, subject)
    name = "a model" if subject.network is None else type(subject.network).__name__
    return Mappings(
        format, name, entries, scales.absent, llm_compressor.document(entries), llm_compressor.python(entries),
        (*sym.notes, *notes),
    )  # fmt: skip


def _proved(scales: ScaleEntries, subject: Subject) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The entries with their proofs, and notes."""
    found = provable(subject)
    if isinstance(found, str):
        return tuple(scales.entries.values()), (f"not proved: {found}",)
    shown, probe = found
    there = scales.mappings if shown is subject else scale_entries(shown).mappings
    proofs = {key: prove_scales(shown, probe, there[key]) for key in scales.entries if key in there}
    return tuple(replace(entry, proof=proofs.get(key)) for key, entry in scales.entries.items()), ()
