"""Bounds on how many tensors of two matched networks can be unchanged, whatever scales are fitted to the others."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from ...symmetry.action import transform
from ...symmetry.blocks import Block, align, blocks, parent_dims
from ...symmetry.gauge.batch_norms import Folded
from ...symmetry.spaces import Layout, Space
from ...symmetry.transformation import Transformation
from .deviation import Deviation

_NEAR = 0.5  # relative distance up to which a fitted basis may have blurred a tensor that was not changed
_CHANGED = 2.0**-8  # median relative deviation above any cast's: bfloat16 leaves 2^-11, and fitted scales double that
_FEW = 3  # tensors that may differ even where they are most: what was changed hides that those beside it were not
_SAMPLE = 64  # units of a dimension that are looked at: a median of so many squared is known to a few per cent
_ROUNDS = 4  # fits of one dimension after the other: each leaves a tenth of the error
_FITTED = 2  # entries for each fitted scale from which on a fit does not explain every tensor


def may_be_unchanged(a: Folded, b: Folded, g: Transformation, found: Deviation, part: bool = False) -> bool:
    """Whether most tensors, by number or by weights, or all but a few may be unchanged, though not equal under ``g``.

    Tensors with hardly more weights than scales of their own, as gains and biases, do not count where they differ. Of a
    part of the networks one tensor is enough: the others that are unchanged may be in other parts.

    Other tensors that were changed blur the scales that were fitted to all. So each tensor gets the scales that suit it
    alone; if its median weight still differs by more than a cast explains, no element of these units makes it equal.

    Args:
        a: Weights to move, batch norms folded.
        b: Weights to meet.
        g: The element that matches their units.
        found: Their deviation under ``g``.
        part: Whether they are a part of the networks.

    Returns:
        ``False`` where no fit to a part of the tensors can show that they are.
    """
    spaces = {s.name: s for s in a.sym.spaces}
    telling, near = [], []
    for name in found.informative:
        layout = a.sym.layouts[name]
        if any(spaces[s].group.mixes for s in layout.spaces):
            same = found.distances[name] < _NEAR
        else:
            same = _median(transform(a.state[name], layout, g), b, name, spaces) <= _CHANGED
        near += [name] if same else []
        telling += [name] if same or _tells(b.state[name], layout, spaces) else []
    weights, all_ = (sum(found.sizes[n] for n in some) for some in (near, telling))
    few = len(telling) - len(near) <= _FEW
    return bool(near) and (part or few or 2 * len(near) >= len(telling) or 2 * weights >= all_)


def _tells(x: Tensor, layout: Layout, spaces: Mapping[str, Space]) -> bool:
    """Whether a tensor has more weights than scales of its own could fit."""
    shapes = {block: block.read(x).shape for block in blocks(layout)}
    count = sum(prod(shape[d] for d in dims) for block, shape in shapes.items() for dims in _scaled(block, spaces))
    return x.numel() >= _FITTED * count


def _scaled(block: Block, spaces: Mapping[str, Space]) -> list[list[int]]:
    """The dimensions of a block along which scales move it, each with those of the space's parents."""
    return [parent_dims(spaces[leaf.space], d, block.spaces) for d, leaf in block.carried if any(leaf.scale)]


def _median(near: Tensor, b: Folded, name: str, spaces: Mapping[str, Space]) -> float:
    """Median relative deviation of a sample of entries, under scales of this tensor alone."""
    ratios = []
    for block in blocks(b.sym.layouts[name]):
        corner = tuple(slice(_SAMPLE) for _ in block.leaves)
        size = b.spread.get(name, b.state[name])
        x, y, sizes = (block.read(t)[corner].double() for t in (near, b.state[name], size))
        gap = (_fitted(x, y, block, spaces) - y).abs()
        ratios.append(torch.where(gap == 0, 0.0, gap / sizes.abs().clamp_min(1e-300)).flatten())
    return float(torch.cat(ratios).median()) if ratios else 0.0


def _fitted(x: Tensor, y: Tensor, block: Block, spaces: Mapping[str, Space]) -> Tensor:
    """One block with the scales that bring it closest to another, dimension by dimension."""
    scaled = _scaled(block, spaces)
    if x.numel() < _FITTED * sum(prod(x.shape[d] for d in dims) for dims in scaled):
        return x
    for _ in range(_ROUNDS if len(scaled) > 1 else len(scaled)):
        for dims in scaled:
            rest = [d for d in range(x.ndim) if d not in dims]
            inner, squares = ((x * t).permute(*dims, *rest).flatten(len(dims)).sum(-1) for t in (y, x))
            x = x * align((inner / squares.clamp_min(1e-300)).clamp_min(0), dims, x.ndim)
    return x
