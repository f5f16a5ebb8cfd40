"""Gains of RMS norms put into the weights that read them, which sets the residual stream free to rotate.

A gain for each unit ties the units of a residual stream to their axes. A norm without gains commutes with rotations,
and the stream of the folded network has the whole orthogonal group (SliceGPT, Ashkboos et al. 2024, section 3.2, for
this use of it).
"""

from typing import Any

from torch import nn

from ..._evaluation import in_usual_mode
from ..affine.norm_parameters import norms
from ..affine.norms import fold_norms
from ..affine.rewriter import Rewriter


@in_usual_mode
def fold_norm_gains(model: nn.Module, example_inputs: Any) -> nn.Module:
    """A copy of a model whose RMS norms have gains of one: the same function, with a residual stream that can rotate.

    A gain is a parameter vector that is its module's only tensor and has a scale of its own. It becomes a constant: the
    copy has no parameter of that name, so compare and align folded networks with folded networks. Gains that weights
    elsewhere share, as before an output that is tied to the embedding, stay where they are.

    Args:
        model: The model. It is left as it is.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.

    Raises:
        ValueError: If there is no gain that can be folded.

    Examples:
        >>> import torch
        >>> import intertwine as iw
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.norm, self.last = nn.Linear(3, 6), nn.RMSNorm(6), nn.Linear(6, 2)
        ...     def forward(self, x):
        ...         return self.last(self.norm(self.first(x)))
        >>> model, x = Block(), torch.randn(5, 3)
        >>> folded = fold_norm_gains(model, x)
        >>> iw.testing.assert_same_function(model, folded, x)
        >>> [[s.group.mixes for s in iw.symmetries(m, x).spaces] for m in (model, folded)]
        [[False], [True]]
    """
    rewriter = Rewriter(model, example_inputs, extend=False)
    fold_norms(rewriter, biases=False)
    rewriter.prove()
    twin = rewriter.finished()
    folded = {norm.gain.view.parameter for norm in norms(rewriter.graph) if bool((norm.gain.numbers == 1).all())}
    alone = [name for name in folded if _is_alone(twin.get_submodule(name.rpartition(".")[0]))]
    if not alone:
        raise ValueError("model must have norms with gains that can be folded. Got none.")
    for name in alone:
        _fix(twin, name)
    return twin


def _is_alone(module: nn.Module) -> bool:
    return len(list(module.parameters())) == 1 and not list(module.buffers())


def _fix(model: nn.Module, name: str) -> None:
    """Replace a parameter by a constant."""
    place, _, last = name.rpartition(".")
    module = model.get_submodule(place)
    constant = getattr(module, last).detach()
    delattr(module, last)
    module.register_buffer(last, constant, persistent=False)
