"""Permutation specifications: which permutation moves each axis of each tensor.

git-re-basin (Ainsworth et al. 2023) takes ``axes_to_perm``: for every tensor the name of a permutation, or ``None``,
for each axis. universal_neural_functional (Zhou et al. 2024) takes the same with numbers, negative for axes that stay.
Axes where a permutation moves blocks of channels, as heads of attention, or stands beside others, as in packed
projections, are in ``blocks``: neither tool has words for them, and there they must be split first.
"""

from __future__ import annotations

from typing import Any

from ..permutations import permutation_entries, units_of
from ..result import Absent, Mappings
from ..subject import Proving, Subject

__all__ = ["specification"]


def specification(subject: Subject, proving: Proving) -> Mappings:
    """The permutation of every tensor axis."""
    units = units_of(subject.sym)
    entries, absent = permutation_entries(subject, proving, units)
    axes: dict[str, list[str | None]] = {name: [None] * len(lay.axes) for name, lay in subject.sym.layouts.items()}
    blocks: list[dict[str, Any]] = []
    for unit in units:
        for h in unit.held:
            if h.block == 1 and not unit.space.parents:
                axes[h.tensor][h.axis] = unit.space.name
            else:
                place = {"tensor": h.tensor, "axis": h.axis, "permutation": unit.space.name}
                where = {"block": h.block} if h.block else {"positions": [list(p) for p in h.positions]}
                blocks.append({**place, **where, "for_each_unit_of": list(unit.space.parents)})
    numbers = {name: i for i, name in enumerate(dict.fromkeys(p for perms in axes.values() for p in perms if p))}
    document = {
        "axes_to_perm": axes,
        "perm_spec": {name: [numbers.get(p, -1) if p else -1 for p in perms] for name, perms in axes.items()},
        "blocks": blocks,
    }
    named = {name: tuple(perms) for name, perms in axes.items()}
    python = f"axes_to_perm = {named!r}\nspec = permutation_spec_from_axes_to_perm(axes_to_perm)\n"
    split = sorted({b["tensor"] for b in blocks})
    if split:
        why = "units are blocks of channels, or one set for each unit of another space: see blocks"
        absent = (*absent, Absent(tuple(split), f"{len(split)} tensors", why))
    return Mappings("", "", entries, absent, document, python, proving.notes)
