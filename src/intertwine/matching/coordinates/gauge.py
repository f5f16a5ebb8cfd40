"""The gauge in which streams may rotate: gains and biases of norms folded, so that the group is as large as it can be.

A gain per unit ties a stream to its axes; folded into the maps that read it, the norm sees a length alone and the
stream's group grows from permutations to rotations. Networks are folded before they are aligned, and the line between
them is that between their folded forms, of which each computes its own function.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...errors import VerificationError
from ...symmetry.folding.norms import NORMALISING, fold_norms, level_biases, rotatable
from ...symmetry.folding.offsets import centre, push_biases
from ...symmetry.folding.rewriter import Rewriter
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, with_parts
from .problem import keeping

_MANY = 3  # tensors that share a basis


@dataclass(frozen=True, eq=False)
class Gauge:
    """How networks of one architecture are folded."""

    sym: Symmetry  # Of the folded networks
    ones: frozenset[str]  # Streams of which layer norms take the mean: rotations keep the vector of ones there
    added: tuple[str, ...]  # Tensors that the folded networks have more, as ``fold`` says
    example_inputs: Any
    known: tuple[tuple[nn.Module, nn.Module], ...]  # Networks that were folded already, each with its folded form

    def __call__(self, model: nn.Module) -> nn.Module:
        """A network in this gauge: other weights, the same function.

        Raises:
            ValueError: If it folds into another form.
        """
        for one, folded in self.known:
            if model is one or model is folded:
                return folded
        made = _fold(model, self.example_inputs)
        if made is None or _form(made[0]) != _form(self.sym):
            raise ValueError("model must fold as the networks that were aligned. Got another form: align it itself.")
        return made[2]

    def kept(self, g: Transformation) -> Transformation:
        """The closest element that keeps the vector of ones exactly where it has to be kept."""
        for name in self.ones:
            if (linear := g[name].linear) is not None:
                g = with_parts(g, name, linear=keeping(linear), signs=torch.ones_like(g[name].signs))
        return g


def gauge_of(models: Sequence[nn.Module], example_inputs: Any, sym: Symmetry) -> Gauge | None:
    """The gauge in which a space that many tensors share may rotate, where it may not as the networks come.

    ``None`` where no group grows, or the networks do not fold alike.
    """
    program = sym.origin.program if sym.origin is not None else None
    if program is None or not any(call.op in NORMALISING for call in program.calls):
        return None
    found = [one for model in models if (one := _fold(model, example_inputs)) is not None]
    if len(found) < len(models) or any(_form(one[0]) != _form(found[0][0]) for one in found):
        return None
    first, ones, _, added = found[0]
    folded = replace(first, dtype=sym.dtype, notes=sym.notes, path_only=sym.path_only, caches=sym.caches)
    return Gauge(folded, ones, added, example_inputs, tuple((m, one[2]) for m, one in zip(models, found)))


def _fold(model: nn.Module, example_inputs: Any) -> tuple[Symmetry, frozenset[str], nn.Module, tuple[str, ...]] | None:
    """The symmetry of a folded network, streams whose mean counts, the network, and what was added to it."""
    try:
        rewriter = Rewriter(model, example_inputs, biases=False)
        for step in (fold_norms, push_biases, centre, level_biases):
            step(rewriter)
        sym, centred = rotatable(rewriter)
        carried = Counter(name for layout in sym.layouts.values() for name in layout.spaces)
        streams = {s.name for s in sym.spaces if s.group.is_orthogonal and carried[s.name] >= _MANY and not s.parents}
        if not streams:
            return None
        rewriter.prove()
    except (ValueError, VerificationError):  # nothing that can be folded, or not without a change
        return None
    return sym, frozenset(streams & centred), rewriter.finished(), tuple(rewriter.added)


def _form(sym: Symmetry) -> tuple[object, object]:
    return sym.spaces, sym.layouts
