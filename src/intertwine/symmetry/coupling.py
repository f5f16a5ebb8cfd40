"""Groups of tensors that scales, bases and batch norms couple, and which must therefore be in memory together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

import torch
from torch import Tensor

from .._nested import by_key
from ..groups import SpaceGroup
from .blocks import blocks, carrying, map_leaves
from .detection.equations import BinarySpan, word_of
from .spaces import Axis, Fixed, Layout, Leaf, Space, axis_size, spaces_of
from .symmetry import Symmetry


def coupled(sym: Symmetry) -> list[list[str]]:
    """Groups of tensor names whose scales and bases can be chosen independently, in the order of the network.

    Two tensors are coupled if one scale generator or one basis moves both, or if they belong to one batch norm. So the
    residual stream of a transformer couples every norm's gain to the layers that read it, but not block to block.
    """
    carried = [(n, leaf) for n, layout in sym.layouts.items() for leaf in layout.leaves]
    scales = ((leaf.space, k, name) for name, leaf in carried for k, e in enumerate(leaf.scale) if e)
    bases = ((leaf.space, -1, name) for name, leaf in carried if leaf.space in sym.mixing and leaf.variance)
    together = Joined(sym.layouts)
    for norm in sym.batch_norms:
        together.join(n for n in (norm.mean, norm.variance, norm.weight, norm.bias) if n is not None)
    for names in by_key(((space, k), name) for space, k, name in chain(scales, bases)).values():
        together.join(names)
    return together.groups()


@dataclass(frozen=True)
class Components:
    """A network cut into components along the spaces that they share, such as a residual stream."""

    names: tuple[tuple[str, ...], ...]  # The tensors of every component, in the order of the network
    # For each space that several components carry: its sign generators that act in more than one of them
    shared: Mapping[str, tuple[int, ...]]


def components(sym: Symmetry, limit: int) -> Components:
    """Groups of coupled tensors, joined along their spaces while a component has at most ``limit`` weights.

    Spaces that touch the fewest weights join first. A space stays shared only if it stands alone (it has no parents or
    children, and no matrix mixes its units) and if its shared signs show in tensors that carry no other space.
    """
    sizes = {name: prod(layout.shape) for name, layout in sym.layouts.items()}
    together = Joined(sym.layouts)
    for names in coupled(sym):
        together.join(names)
    carried = sym.carriers
    split: list[Space] = []

    def reached(space: Space) -> int:
        return sum(sizes[name] for name in together.around(carried[space.name]))

    for space in sorted(sym.spaces, key=reached):
        alone = not (space.parents or space.group.mixes or space.name in sym.outer)
        if alone and reached(space) > limit and len(together.parts(carried[space.name])) > 1:
            split.append(space)
        else:
            together.join(carried[space.name])
    found: dict[str, tuple[int, ...]] = {}
    for space in split:
        signs = _shared_signs(sym, space, together, carried[space.name])
        if signs is None:
            together.join(carried[space.name])
        else:
            found[space.name] = signs
    shared = {n: signs for n, signs in found.items() if len(together.parts(carried[n])) > 1}
    return Components(tuple(map(tuple, together.groups())), shared)


def _shared_signs(sym: Symmetry, space: Space, together: Joined, names: Iterable[str]) -> tuple[int, ...] | None:
    """Sign generators of a space that act in several components; ``None`` if no tensor with this space alone tells."""
    rows = [
        (together.root(m.tensor), m.row, {*m.block.spaces} <= {space.name, None})
        for m in carrying({name: sym.layouts[name] for name in names}, space)
    ]
    odd = [(k, root) for root, row, _ in rows for k, e in enumerate(row) if e]  # even ones may be left out
    parts = {k: {root for j, root in odd if j == k} for k in range(space.group.signs)}
    alone = [row for _, row, only in rows if only]
    signs = tuple(k for k, roots in parts.items() if len(roots) > 1)
    clean = [row for row in alone if not any(e for k, e in enumerate(row) if k not in signs)]
    return signs if BinarySpan(map(word_of, clean)).rank == len(signs) else None


class Joined:
    """Names in groups that are joined step by step (a union-find)."""

    def __init__(self, names: Iterable[str]) -> None:
        self._up = {name: name for name in names}

    def root(self, name: str) -> str:
        """The representative of a name's group."""
        while self._up[name] != name:
            self._up[name] = self._up[self._up[name]]
            name = self._up[name]
        return name

    def join(self, names: Iterable[str]) -> None:
        """Join names, and the groups that they are in, into one group."""
        every = [*names]
        for name in every[1:]:
            self._up[self.root(name)] = self.root(every[0])

    def parts(self, names: Iterable[str]) -> set[str]:
        """The representatives of the groups of some names."""
        return {self.root(name) for name in names}

    def around(self, names: Iterable[str]) -> list[str]:
        """All names in the groups of some names."""
        roots = self.parts(names)
        return [name for name in self._up if self.root(name) in roots]

    def groups(self) -> list[list[str]]:
        """The groups, in the order of their first names."""
        return [*by_key((self.root(name), name) for name in self._up).values()]


def narrowed(sym: Symmetry, names: Iterable[str]) -> Symmetry:
    """A symmetry with only some of its tensors; all of its spaces stay, even those that none of these carries."""
    kept = {*names}
    if sym.layouts.keys() <= kept:
        return sym
    norms = (norm for norm in sym.batch_norms if {norm.mean, norm.variance, norm.weight, norm.bias} - {None} <= kept)
    layouts = {name: layout for name, layout in sym.layouts.items() if name in kept}
    return replace(sym, layouts=layouts, batch_norms=tuple(norms))


def restricted(sym: Symmetry, names: Iterable[str]) -> Symmetry:
    """The symmetry of some tensors alone, with the spaces that they carry."""
    part = narrowed(sym, names)
    present = frozenset().union(*(layout.spaces for layout in part.layouts.values()))
    return replace(part, spaces=tuple(s for s in part.spaces if s.name in present), aliases={})


def regrouped(sym: Symmetry, groups: Mapping[str, SpaceGroup], leaf: Callable[[Leaf], Leaf | Fixed]) -> Symmetry:
    """A symmetry with other groups for some of its spaces and other leaves in its layouts."""
    spaces = tuple(replace(s, group=groups.get(s.name, s.group)) for s in sym.spaces)
    return replace(sym, spaces=spaces, layouts={name: map_leaves(x, leaf) for name, x in sym.layouts.items()})


def kept_rows(sym: Symmetry, space: str | Sequence[str], keep: Sequence[int]) -> dict[str, dict[int, Tensor]]:
    """Rows to keep, by tensor and axis, if only the units ``keep`` of a space (or of several) are kept.

    Examples:
        >>> from torch import nn
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> rows = kept_rows(iw.symmetries(model, torch.randn(5, 3)), "0.weight[0]", [0, 5])
        >>> {name: {axis: r.tolist() for axis, r in axes.items()} for name, axes in rows.items()}
        {'0.weight': {0: [0, 5]}, '0.bias': {0: [0, 5]}, '2.weight': {1: [0, 5]}}
    """
    units, chosen = torch.as_tensor(sorted(keep)), {space} if isinstance(space, str) else set(space)
    found: dict[str, dict[int, Tensor]] = {}
    for name, layout in sym.layouts.items():
        for dim, axis in enumerate(layout.axes):
            for one in chosen.intersection(spaces_of([axis])):
                rows, before = axis_rows(axis, one, units), found.setdefault(name, {}).get(dim)
                found[name][dim] = rows if before is None else rows[torch.isin(rows, before)]
    return found


def axis_rows(axis: Axis, space: str, units: Tensor) -> Tensor:
    """Rows of an axis to keep, in order."""
    found = []
    for block in blocks(Layout((axis,))):
        rows = block.read(torch.arange(axis_size(axis)))
        for dim, leaf in block.carried:
            rows = rows.index_select(dim, units) if leaf.space == space else rows
        found.append(rows.flatten())
    return torch.cat(found).sort().values
