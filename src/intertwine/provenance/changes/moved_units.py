"""Hidden units whose weights changed most."""

from collections.abc import Collection

import torch
from torch import Tensor

from ...symmetry.action import moved
from ...symmetry.blocks import blocks, summed
from ...symmetry.parent_axes import parent_dims
from ...symmetry.transformation import Transformation
from ..difference import MovedUnit
from .pairs import Pairs

_TOP = 10


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
