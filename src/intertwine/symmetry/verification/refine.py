"""A symmetry without what fails on numbers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from ...errors import VerificationError
from ..action import moved
from ..admissible import admissible
from ..blocks import map_leaves
from ..description import Description
from ..spaces import Fixed, FixedAxis, Leaf, Space
from ..transformation import random, with_parts
from .probe import Probe
from .verify import kinds_of, verify

Described = TypeVar("Described", bound=Description)


def refine(sym: Described, model: nn.Module, inputs: Any, **options: Any) -> Described:
    """Drop every kind of every space that changes the function on these inputs, and say so in ``notes``.

    Of several generators of scales or signs only those that fail are dropped, each tried alone. A wrong rule that is
    right for some combination of generators only loses that combination too.

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
    while (report := verify(sym, model, inputs, strict=False, **options)).failed:
        failed = report.failed
        blamed = [(space, kind) for space, kind in failed if space != "all"]
        if not blamed:
            raise VerificationError(
                f"each space must be checked alone to be blamed. Got failures of all spaces together only: {failed}. "
                "Use per_space=True and more seeds."
            )
        probe = Probe(sym, model, inputs, options.get("randomise", True))
        wrong = {(s, k): _failing(sym, probe, s, k, options.get("seeds", 3), report.rtol) for s, k in blamed}
        for (space, kind), generators in wrong.items():
            sym = drop(sym, space, kind, generators)
    return sym


def _failing(sym: Description, probe: Probe, space: str, kind: str, seeds: int, rtol: float) -> tuple[int, ...] | None:
    """Generators of scales or signs that fail alone; ``None`` where they are all, or none can be told from the rest."""
    part = {"scale": "scales", "sign": "signs"}.get(kind)
    count = getattr(sym.space(space).group, part) if part else 1
    if part is None or count == 1:
        return None
    failing = []
    for k in range(count):
        errors = []
        for seed in range(seeds):
            g = random(sym, seed, {kind}).restrict(spaces={space})
            alone = torch.full_like(getattr(g[space], part), 0.0 if kind == "scale" else 1.0)
            alone[k] = getattr(g[space], part)[k]
            g = with_parts(g, space, **{part: alone})
            errors.append(probe.error(moved(sym, admissible(sym, g, probe.tensors), probe.tensors)))
        if not max(errors) <= rtol:
            failing.append(k)
    return tuple(failing) if 0 < len(failing) < count else None


def drop(sym: Described, space: str, kind: str, generators: Collection[int] | None = None) -> Described:
    """``sym`` without one kind (``"permutation"``, ``"scale"``, ``"sign"``, ``"linear"``) of elements of one space.

    All ``generators`` of scales or signs by default. A space without a kind, and without children, becomes fixed axes.
    """
    old = sym.space(space)
    count = {"scale": old.group.scales, "sign": old.group.signs}.get(kind, 0)
    left = [k for k in range(count) if generators is not None and k not in generators]
    reason = f"{kind} failed verification" + (f" in {count - len(left)} of {count} generators" if left else "")
    changes: dict[str, dict[str, Any]] = {
        "permutation": {"permutes": False},
        "scale": {"scales": left},
        "sign": {"signs": left},
        "linear": {"mixes": False},
    }
    new = replace(old, reasons=(*old.reasons, reason), group=old.group.reduced(**changes[kind]))
    some = f" ({count - len(left)} of {count} generators)" if left else ""
    parents = {parent for s in sym.spaces for parent in s.parents}
    gone = not kinds_of(new) and space not in parents
    layouts, features, gates = (
        {n: map_leaves(lay, lambda leaf: _rewritten(leaf, new, gone, kind, left)) for n, lay in described.items()}
        for described in (sym.layouts, sym.features, sym.gates)
    )
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
        features=features,
        gates=gates,
        fixed=tuple(fixed),
        notes=(*sym.notes, f"dropped: {kind} of {space}{some}, which changed the function on the given inputs"),
    )


def _rewritten(leaf: Leaf, space: Space, gone: bool, kind: str, left: list[int]) -> Leaf | Fixed:
    """A leaf reduced to what its space still has."""
    if leaf.space != space.name:
        return leaf
    if gone:
        return Fixed(leaf.size, space.reasons[-1])
    if kind == "scale":
        return replace(leaf, scale=tuple(leaf.scale[k] for k in left))
    if kind == "sign":
        return replace(leaf, sign=tuple(leaf.sign[k] for k in left))
    return replace(leaf, variance=leaf.variance if space.group.mixes else 0)
