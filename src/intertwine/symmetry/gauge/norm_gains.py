"""Gains of RMS norms put into the weights that read them, which sets the residual stream free to rotate.

A gain per unit ties the units of a residual stream to their axes: what remains is permutations, signs and one scale for
every norm. Those scales can bring every gain to one. A norm without gains commutes with rotations, and the stream of
the folded network has the whole orthogonal group (SliceGPT, Ashkboos et al. 2024, section 3.2, for this use of it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..action import act_, rewritable, tensors_of
from ..find import symmetries
from ..spaces import Leaf
from ..transformation import Transformation, identity, with_parts
from .canonical import check_weights
from .signs import independent, solve_signs

if TYPE_CHECKING:
    from ..spaces import Space
    from ..symmetry import Symmetry

__all__ = ["fold_norm_gains"]


def fold_norm_gains(model: nn.Module, example_inputs: Any, sym: Symmetry | None = None) -> nn.Module:
    """A copy of a model whose RMS norms have gains of one: the same function, with a residual stream that can rotate.

    A gain is a parameter vector that is its module's only tensor and has a scale of its own. It becomes a constant: the
    copy has no parameter of that name, so compare and align folded networks with folded networks. Gains that weights
    elsewhere share, as before an output that is tied to the embedding, stay where they are.

    Args:
        model: The model. It is left as it is.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        sym: The symmetry of the model where it is known already.

    Returns:
        The folded copy.

    Raises:
        ValueError: If there is no gain that can be folded, or one is zero somewhere.

    Examples:
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
    sym = symmetries(model, example_inputs) if sym is None else sym
    twin = rewritable(sym, model)
    live = tensors_of(twin)
    check_weights(sym, live)
    g, folded = identity(sym), []
    for space in sym.spaces:
        gains = _gains(twin, sym, space)
        for name, _ in gains:
            if bool((live[name] == 0).any()):
                raise ValueError(f"gains must not be zero to be folded. Got a zero in {name!r}.")
        if gains:
            g = _to_one(g, space, gains, live)
            folded += [name for name, _ in gains]
    if not folded:
        raise ValueError("model must have norms with gains that can be folded. Got none.")
    act_(sym, g, live)
    for name in folded:
        _fix(twin, name)
    return twin


def _gains(model: nn.Module, sym: Symmetry, space: Space) -> list[tuple[str, Leaf]]:
    """Gains of a space that scales and signs can bring to one all together, with their leaves."""
    found: list[tuple[str, Leaf]] = []
    for name, layout in sym.layouts.items():
        leaf = layout.axes[0] if layout.axes else None
        if len(layout.axes) != 1 or not isinstance(leaf, Leaf) or leaf.space != space.name or space.parents:
            continue
        module = model.get_submodule(name.rpartition(".")[0])
        alone = len(list(module.parameters())) == 1 and not list(module.buffers())
        if not alone or not any(leaf.scale) or name in sym.aliases.values():
            continue
        rows = torch.tensor([[float(e) for e in x.scale] for _, x in [*found, (name, leaf)]])
        free = int(torch.linalg.matrix_rank(rows)) == len(rows)
        flips = independent([tuple(e % 2 for e in x.sign) for _, x in [*found, (name, leaf)]])
        if free and flips:
            found.append((name, leaf))
    return found


def _to_one(g: Transformation, space: Space, gains: list[tuple[str, Leaf]], live: dict[str, Tensor]) -> Transformation:
    """``g`` with the scales and signs of a space that make its gains one."""
    values = torch.stack([live[name].detach().to("cpu", torch.float64) for name, _ in gains])
    rows = torch.tensor([[float(e) for e in leaf.scale] for _, leaf in gains], dtype=torch.float64)
    scales = torch.linalg.pinv(rows) @ -values.abs().log()
    parities = [tuple(e % 2 for e in leaf.sign) for _, leaf in gains]
    signs = solve_signs(parities, [value < 0 for value in values], space.group.signs, values[0].shape)
    return with_parts(g, space.name, scales=scales, signs=signs)


def _fix(model: nn.Module, name: str) -> None:
    """Replace a gain, which is one by now up to rounding, by a constant."""
    place, _, last = name.rpartition(".")
    module = model.get_submodule(place)
    ones = torch.ones_like(getattr(module, last).detach())
    delattr(module, last)
    module.register_buffer(last, ones, persistent=False)
