"""Freedoms that tensors which agree hold in place: orders of the spaces that they carry, scales, signs and bases."""

from collections.abc import Collection, Iterator

from ...symmetry.blocks import Block, blocks
from ...symmetry.spaces import Layout, Leaf, Space
from ...symmetry.symmetry import Symmetry

Freedom = tuple[str, str, int]  # a space, a kind, and which of its generators


def pinned(sym: Symmetry, agreeing: Collection[str]) -> set[Freedom]:
    """What cannot move without moving tensors that agree."""
    pieces = [block for name in agreeing for block in blocks(sym.layouts[name])]
    found: set[Freedom] = {(s, "permutation", 0) for name in agreeing for s in sym.layouts[name].spaces}
    grown = True
    while grown:
        more = {freedom for block in pieces for freedom in _held(block, found)}
        grown = not more <= found
        found |= more
    return found


def freedoms(space: Space) -> set[Freedom]:
    """What may move a space."""
    kinds = {"permutation": space.group.permutes, "linear": space.group.mixes}
    counts = {"scale": space.group.scales, "sign": space.group.signs}
    found = {(space.name, kind, 0) for kind, there in kinds.items() if there}
    return found | {(space.name, kind, k) for kind, count in counts.items() for k in range(count)}


def moving(layout: Layout) -> set[Freedom]:
    """The orders, scales, signs and bases that move a tensor."""
    orders: set[Freedom] = {(s, "permutation", 0) for s in layout.spaces}
    return orders | {f for block in blocks(layout) for some in _moving(block).values() for f in some}


def flipping(block: Block) -> set[Freedom]:
    """The signs and bases that negate one block where they flip all units of their space."""
    found: set[Freedom] = set()
    for kind in ("sign", "linear"):
        for freedom in _moving(block)[kind]:
            found ^= {freedom}  # twice is not at all
    return found


def _moving(block: Block) -> dict[str, list[Freedom]]:
    """The scales, signs and bases that move one block."""
    leaves: list[Leaf] = [leaf for _, leaf in block.carried]
    return {
        "scale": [(x.space, "scale", k) for x in leaves for k, e in enumerate(x.scale) if e],
        "sign": [(x.space, "sign", k) for x in leaves for k, e in enumerate(x.sign) if e % 2],
        "linear": [(x.space, "linear", 0) for x in leaves if x.variance],
    }


def _held(block: Block, known: Collection[Freedom]) -> Iterator[Freedom]:
    """What cannot move because one block would: of each kind the only one that is not known to be still."""
    for found in _moving(block).values():
        left = [f for f in found if f not in known]
        if len(left) == 1:
            yield left[0]
