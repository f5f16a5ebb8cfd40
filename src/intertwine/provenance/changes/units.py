"""Hidden units whose weights changed most, and those that were removed or added: all their weights are zero."""

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from ..._words import counted
from ...symmetry.action import moved
from ...symmetry.blocks import blocks, parent_dims, summed
from ...symmetry.spaces import Leaf
from ...symmetry.transformation import Transformation
from ..difference import MovedUnit
from .element_words import Finding
from .pairs import Pairs

_TOP = 10  # units that are listed
_NAMED = 8


def moved_units(pairs: Pairs, g: Transformation, changed: Collection[str]) -> tuple[MovedUnit, ...]:
    """The units whose weights changed most, over all tensors that write or read them."""
    sym = pairs.sym
    touched = {s for n in changed if n in sym.layouts for block in blocks(sym.layouts[n]) for s in block.spaces}
    sums: dict[str, list[Tensor]] = {}
    for name, layout in sym.layouts.items():
        if not any(s in touched for block in blocks(layout) for s in block.spaces if s is not None):
            continue
        x = moved(sym, g, pairs.a, [name]).get(name, pairs.a[name]).float()
        squares = (pairs.b[name].float() - x).square(), x.square()
        for block in blocks(layout):
            for dim, leaf in block.carried:
                if leaf.space in touched:
                    dims = parent_dims(sym.space(leaf.space), dim, block.spaces)
                    new = [summed(block.read(t), dims) for t in squares]
                    old = sums.get(leaf.space)
                    sums[leaf.space] = new if old is None else [p + q for p, q in zip(old, new)]
    found = []
    for space, (gap, size) in sums.items():
        relative = (gap / size.clamp_min(1e-30)).sqrt()
        top = relative.flatten().topk(min(_TOP, relative.numel()))
        for value, index in zip(top.values.tolist(), top.indices.tolist()):
            if value > 0:
                unit = torch.unravel_index(torch.tensor(index), relative.shape)
                found.append(MovedUnit(sym.titles[space], tuple(int(i) for i in unit), value))
    return tuple(sorted(found, key=lambda u: -u.relative)[:_TOP])


def units_of_zeros(pairs: Pairs, g: Transformation, names: Iterable[str], kind: str) -> Iterator[Finding]:
    """One finding for every space some of whose units are zero in all the tensors that were pruned, or filled."""
    gone: dict[str, Tensor] = {}
    where: dict[str, list[str]] = {}
    sym = pairs.sym
    for name in (n for n in names if n in sym.layouts):
        before = moved(sym, g, pairs.a, [name]).get(name, pairs.a[name])
        for block in blocks(sym.layouts[name]):
            x, y = (block.read(t) != 0 for t in (before, pairs.b[name]))
            for dim, leaf in enumerate(block.leaves):
                if isinstance(leaf, Leaf):
                    dims = parent_dims(sym.space(leaf.space), dim, block.spaces)
                    rest = [d for d in range(x.ndim) if d not in dims]
                    here = [t.permute(*dims, *rest).flatten(len(dims) - 1 if not rest else len(dims)) for t in (x, y)]
                    there, left = (t.any(-1) if rest else t for t in (here if kind == "pruned" else here[::-1]))
                    known = gone.get(leaf.space)
                    gone[leaf.space] = there & ~left if known is None else known & ~left
                    where.setdefault(leaf.space, []).append(name)
    for space, units in gone.items():
        count = int(units.sum())
        if 0 < count < units.numel():
            ours = g[space].permutation.reshape(units.shape)[units]  # numbers in the first network
            numbers = sorted(ours.tolist()) if kind == "pruned" else units.flatten().nonzero().flatten().tolist()
            named = f" ({', '.join(map(str, numbers))})" if count <= _NAMED else ""
            said = "removed: their weights are zero" if kind == "pruned" else "added: their weights were zero"
            text = f"{count} of {counted(units.numel(), 'unit')} of {sym.titles[space]} {said}{named}"
            yield Finding("units removed" if kind == "pruned" else "units added", text, tuple(where[space]))
