"""Mappings of a symmetry for other tools: the entry point to all formats."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._evaluation import in_usual_mode
from .._words import check_known
from ..symmetry import Symmetry
from .exported_model import Proving, Subject, subject_of
from .permutations import graph, groups, specification
from .result import Mappings
from .rotation import rotations
from .scale_formats import llm_compressor, model_optimizer


@in_usual_mode
def mappings(
    sym: Symmetry, format: str = "llm-compressor", model: nn.Module | None = None, example_inputs: Any = None
) -> Mappings:
    """The symmetry of a model in the format of another tool, with each entry verified numerically.

    | format | tool | what |
    |---|---|---|
    | ``llm-compressor`` | llm-compressor | mappings of AWQ and SmoothQuant |
    | ``model-optimizer`` | NVIDIA Model Optimizer | layers into which a scale before quantisation fuses |
    | ``spinquant``, ``quarot`` | SpinQuant, QuaRot | where orthogonal matrices go: R1, R2, and why R3, R4 are online |
    | ``torch-pruning`` | Torch-Pruning | channels that are removed together |
    | ``perm-spec`` | git-re-basin, universal neural functionals | the permutation that moves each tensor axis |
    | ``graph`` | metanetworks | nodes, edges and their symmetry as plain JSON |

    Args:
        sym: The symmetry of a model.
        format: One of ``FORMATS``.
        model: The network on which entries are proved; by default the one in which the symmetry was found, if it still
            exists. A network without weights, or too large, is replaced by a small one of the same class.
        example_inputs: An example for it; by default the one with which the symmetry was found.

    Raises:
        ValueError: If there is no such format, or weights are already quantised.

    Examples:
        >>> import torch, intertwine as iw
        >>> net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())
        >>> found = iw.symmetries(net, torch.randn(5, 4)).mappings("llm-compressor")
        >>> [str(entry) for entry in found.entries], found.proved
        (['0 -> 1'], True)
    """  # noqa: DOC502 - raised by checks
    check_known("format", format, FORMATS)
    with torch.device("cpu"):  # the caller may still be in a meta-device context
        subject = subject_of(sym, model, example_inputs)
        found = FORMATS[format](subject, Proving(subject))
    notes = (*sym.notes, *subject.notes, *found.notes)
    return replace(found, format=format, model=subject.name, notes=notes, graph=sym.graph, networks=sym.networks)


FORMATS: dict[str, Callable[[Subject, Proving], Mappings]] = {
    "llm-compressor": llm_compressor,
    "model-optimizer": model_optimizer,
    "spinquant": rotations,
    "quarot": rotations,
    "torch-pruning": groups,
    "perm-spec": specification,
    "graph": graph,
}
