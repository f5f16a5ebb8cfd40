"""A symmetry without what fails on numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from ..errors import VerificationError
from .blocks import map_leaves
from .spaces import Fixed, FixedAxis, Leaf, Space
from .verify import kinds_of, measure

if TYPE_CHECKING:
    from .symmetry import Symmetry

__all__ = ["drop", "refine"]


def refine(sym: Symmetry, model: nn.Module, inputs: Any, **options: Any) -> Symmetry:
    """Drop every kind of every space that changes the function on these inputs, and say so in ``notes``.

    Args:
        sym: The symmetry.
        model: The model.
        inputs: Example inputs.
        **options: As for ``verify``.

    Returns:
        A symmetry that passes ``verify`` with the same options; the same object if nothing fails.

    Raises:
        VerificationError: If spaces fail only together, so that none can be blamed.
    """
    while failed := measure(sym, model, inputs, **options).failed:
        blamed = [(space, kind) for space, kind in failed if space != "all"]
        if not blamed:
            raise VerificationError(
                f"each space must be checked alone to be blamed. Got failures of all spaces together only: {failed}. "
                "Use per_space=True and more seeds."
            )
        for space, kind in blamed:
            sym = drop(sym, space, kind)
    return sym


def drop(sym: Symmetry, space: str, kind: str) -> Symmetry:
    """``sym`` without one kind of elements of one space.

    Args:
        sym: The symmetry.
        space: Name of the space.
        kind: ``"permutation"``, ``"scale"``, ``"sign"`` or ``"linear"``.

    Returns:
        A new symmetry; a space that has no kind left, and no children, becomes fixed axes.
    """
    reason = f"{kind} failed verification"
    changes: dict[str, dict[str, Any]] = {
        "permutation": {"permutable": False},
        "scale": {"scales": 0},
        "sign": {"signs": 0},
        "linear": {"linear": "none"},
    }
    old = sym.space(space)
    new = replace(old, reasons=(*old.reasons, reason), **changes[kind])
    parents = {parent for s in sym.spaces for parent in s.parents}
    gone = not kinds_of(new) and space not in parents
    layouts = {n: map_leaves(lay, lambda leaf: _rewritten(leaf, new, gone)) for n, lay in sym.layouts.items()}
    fixed = [*sym.fixed]
    if gone:
        fixed += [
            FixedAxis(name, axis, reason)
            for name, layout in sym.layouts.items()
            for axis, (before, after) in enumerate(zip(layout.axes, layouts[name].axes))
            if before != after
        ]
    return replace(
        sym,
        spaces=tuple(new if s.name == space else s for s in sym.spaces if not (gone and s.name == space)),
        layouts=layouts,
        fixed=tuple(fixed),
        notes=(*sym.notes, f"dropped: {kind} of {space}, which changed the function on the given inputs"),
    )


def _rewritten(leaf: Leaf, space: Space, gone: bool) -> Leaf | Fixed:
    """A leaf reduced to what its space still has."""
    if leaf.space != space.name:
        return leaf
    if gone:
        return Fixed(leaf.size, space.reasons[-1])
    return replace(
        leaf,
        scale=leaf.scale if space.scales else (),
        sign=leaf.sign if space.signs else (),
        variance=leaf.variance if space.linear != "none" else 0,
    )
