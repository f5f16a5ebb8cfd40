"""Mappings of a symmetry for other tools: the front door of all formats."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._evaluation import in_usual_mode
from .._words import near
from ..symmetry import Symmetry
from .exported_model import Proving, Subject, subject_of
from .formats import graph, llm_compressor, model_optimizer, perm_spec, spinquant, torch_pruning
from .result import Entry, Mappings
from .scale_entries import scale_entries
from .verification import prove_scales


@in_usual_mode
def mappings(
    sym: Symmetry, format: str = "llm-compressor", model: nn.Module | None = None, example_inputs: Any = None
) -> Mappings:
    """What another tool needs of a symmetry, in its own words, each entry verified numerically.

    | format | tool | what |
    |---|---|---|
    | ``llm-compressor`` | llm-compressor | mappings of AWQ and SmoothQuant |
    | ``model-optimizer`` | NVIDIA Model Optimizer | layers that a scale before quantisation fuses into |
    | ``spinquant``, ``quarot`` | SpinQuant, QuaRot | where orthogonal matrices go: R1, R2, and why R3, R4 are online |
    | ``torch-pruning`` | Torch-Pruning | channels that go together |
    | ``perm-spec`` | git-re-basin, universal neural functionals | the permutation that moves each tensor axis |
    | ``graph`` | metanetworks | nodes, edges and their symmetry as plain JSON |

    Args:
        sym: The symmetry of a model.
        format: One of ``FORMATS``.
        model: The network to prove the entries on; by default the one that the symmetry was found in, as long as
            someone holds it. One without weights, or too large, is replaced by a small one of the same class.
        example_inputs: An example for it; by default the one that the symmetry was found with.

    Raises:
        ValueError: If there is no such format, or weights are quantised already.

    Examples:
        >>> import torch, intertwine as iw
        >>> net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())
        >>> found = iw.symmetries(net, torch.randn(5, 4)).mappings("llm-compressor")
        >>> [str(entry) for entry in found.entries], found.proved
        (['0 -> 1'], True)
    """
    if format not in FORMATS:
        close = near(format, FORMATS)
        raise ValueError(f"format must be one of {', '.join(FORMATS)}. Got {format!r}.{close}")
    with torch.device("cpu"):  # whoever built the model on the meta device may still be at it
        subject = subject_of(sym, model, example_inputs)
        found = FORMATS[format](subject, Proving(subject))
    notes = (*sym.notes, *subject.notes, *found.notes)
    return replace(found, format=format, model=subject.name, notes=notes, graph=sym.graph, networks=sym.networks)


def _scales(subject: Subject, proving: Proving) -> tuple[tuple[Entry, ...], Mappings]:
    """Entries of scale mappings with their proofs."""
    scales = scale_entries(subject)
    entries, notes = tuple(scales.entries.values()), proving.notes
    if proving.probe is not None:
        there = scales.mappings if proving.subject is subject else scale_entries(proving.subject).mappings
        proofs = {
            key: prove_scales(proving.subject, proving.probe, there[key]) for key in scales.entries if key in there
        }
        entries = tuple(replace(entry, proof=proofs.get(key)) for key, entry in scales.entries.items())
    return entries, Mappings("", "", entries, scales.absent, notes=notes)


def _llm_compressor(subject: Subject, proving: Proving) -> Mappings:
    entries, found = _scales(subject, proving)
    return replace(
        found, document=llm_compressor.document(entries, sorted(subject.last)), python=llm_compressor.python(entries)
    )


def _model_optimizer(subject: Subject, proving: Proving) -> Mappings:
    entries, found = _scales(subject, proving)
    document = model_optimizer.document(entries, subject.network)
    return replace(found, document=document, python=model_optimizer.python(document))


FORMATS: dict[str, Callable[[Subject, Proving], Mappings]] = {
    "llm-compressor": _llm_compressor,
    "model-optimizer": _model_optimizer,
    "spinquant": spinquant.rotations,
    "quarot": spinquant.rotations,
    "torch-pruning": torch_pruning.groups,
    "perm-spec": perm_spec.specification,
    "graph": graph.graph,
}
