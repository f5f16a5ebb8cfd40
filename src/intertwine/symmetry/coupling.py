"""Groups of tensors that scales, bases and batch norms tie together: what must be in memory at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from .blocks import blocks
from .spaces import Leaf

if TYPE_CHECKING:
    from .symmetry import Symmetry

__all__ = ["coupled", "restricted"]


def coupled(sym: Symmetry) -> list[list[str]]:
    """Names of tensors in groups whose scales and bases can be chosen group by group.

    Two tensors are tied where one scale generator or one basis moves both, or where they belong to one batch norm. So
    the residual stream of a transformer ties every norm's gain to the layers that read it, not one block to another.

    Args:
        sym: The symmetry.

    Returns:
        Groups in the order of the network.
    """
    mixing = {s.name for s in sym.spaces if s.group.mixes}
    ties: dict[tuple[str, object], list[str]] = {}
    for name, layout in sym.layouts.items():
        leaves = {leaf for block in blocks(layout) for leaf in block.leaves if isinstance(leaf, Leaf)}
        keys = {(leaf.space, k) for leaf in leaves for k, e in enumerate(leaf.scale) if e}
        for key in {*keys, *((leaf.space, "basis") for leaf in leaves if leaf.space in mixing and leaf.variance)}:
            ties.setdefault(key, []).append(name)
    for norm in sym.batch_norms:
        names = (norm.mean, norm.variance, norm.weight, norm.bias)
        ties[norm.variance, "norm"] = [n for n in names if n is not None]
    root = {name: name for name in sym.layouts}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for names in ties.values():
        for name in names[1:]:
            root[find(name)] = find(names[0])
    groups: dict[str, list[str]] = {}
    for name in sym.layouts:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())


def restricted(sym: Symmetry, names: Iterable[str]) -> Symmetry:
    """The symmetry of some tensors alone, with the spaces that they carry."""
    layouts = {name: sym.layouts[name] for name in names}
    present = {s for layout in layouts.values() for block in blocks(layout) for s in block.spaces if s is not None}
    norms = tuple(norm for norm in sym.batch_norms if norm.variance in layouts)
    spaces = tuple(s for s in sym.spaces if s.name in present)
    return replace(sym, spaces=spaces, layouts=layouts, batch_norms=norms, aliases={})
