"""Mappings of a symmetry for other tools: the front door of all formats."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from ..symmetry import Symmetry, symmetries
from ..symmetry.verification.probe import Probe
from . import llm_compressor
from .proof import prove_scales
from .result import Entry, Mappings
from .scale_entries import ScaleEntries, scale_entries
from .small import LARGEST, small_model

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
    network = sym.origin.model if model is None else model
    example = sym.origin.example_inputs if example_inputs is None else example_inputs
    with torch.device("cpu"):  # whoever built the model on the meta device may still be at it
        scales = scale_entries(sym, _names(sym, network))
        entries, notes = _proved(scales, sym, network, example)
    listed = tuple(entries.values())
    return Mappings(
        format, type(network).__name__ if network is not None else "a model", listed, scales.absent,
        llm_compressor.document(listed), llm_compressor.python(listed), (*sym.notes, *notes),
    )  # fmt: skip


def _names(sym: Symmetry, network: nn.Module | None) -> Collection[str]:
    """Names of all modules; of those that hold tensors or returned any where only the description is left."""
    if network is not None:
        return [name for name, _ in network.named_modules() if name]
    every = [*(name.rpartition(".")[0] for name in sym.layouts), *(tap.partition("#")[0] for tap in sym.features)]
    return list(dict.fromkeys(every))


def _proved(
    scales: ScaleEntries, sym: Symmetry, network: nn.Module | None, example: Any
) -> tuple[dict[tuple[str, ...], Entry], tuple[str, ...]]:
    """The entries with their proofs, and notes."""
    entries = dict(scales.entries)
    if network is None:
        return entries, ("not proved: the model is gone. Give model and example_inputs.",)
    weights, meta = sum(p.numel() for p in network.parameters()), any(p.is_meta for p in network.parameters())
    if meta or weights > LARGEST:
        small = small_model(network, example)
        if small is None and meta:
            return entries, ("not proved: the model has no weights, and no small one of its class could be built.",)
        if small is not None:
            network, example = small
            try:
                sym = symmetries(network, example)
            except CaptureError as error:
                return entries, (f"not proved: {error}",)
            scales = scale_entries(sym, _names(sym, network))
    probe, said = Probe(sym, network, example), _described(network)
    return {
        key: replace(entry, proof=prove_scales(sym, probe, scales.mappings[key], said))
        if key in scales.mappings
        else entry
        for key, entry in entries.items()
    }, ()


def _described(network: nn.Module) -> str:
    return f"{type(network).__name__} with {sum(p.numel() for p in network.parameters()):,} weights"
