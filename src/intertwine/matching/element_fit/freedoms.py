"""Freedoms that tensors which agree hold in place, and flips of whole spaces at once, which no single step undoes."""

from collections.abc import Collection, Iterable
from functools import reduce
from operator import xor

import torch

from ...symmetry.action import transform
from ...symmetry.blocks import Block, blocks
from ...symmetry.detection.equations import BinarySpan
from ...symmetry.gauge.canonical import Folded
from ...symmetry.spaces import Layout, Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..judgement.deviation import relative

AGREES = 2.0**-7  # relative distance of a tensor that a cast to bfloat16 leaves

Freedom = tuple[str, str, int]  # a space, a kind, and which of its generators


def pinned(sym: Symmetry, agreeing: Collection[str]) -> set[Freedom]:
    """What cannot move without moving tensors that agree."""
    pieces = [block for name in agreeing for block in blocks(sym.layouts[name])]
    found: set[Freedom] = {(s, "permutation", 0) for name in agreeing for s in sym.layouts[name].spaces}
    while True:
        left = ([f for f in some if f not in found] for block in pieces for some in _moving(block).values())
        more = {some[0] for some in left if len(some) == 1}  # of a kind the only one that is not known to be still
        if not more:
            return found
        found |= more


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


def unflipped(a: Folded, b: Folded, g: Transformation, far: Collection[str]) -> Transformation:
    """``g`` with whole spaces flipped where that leaves fewer tensors negated.

    What flips negate are the words of a linear code over the integers mod 2; what stays negated is a word of the
    coset of what is, the lightest of which is sought (syndrome decoding, up to two tensors). Of equally many it is the
    largest tensor, for with the gain of a batch norm its mean would be negated, too. Tensors that ``g`` does not make
    agree are ``far``.
    """
    sym = a.sym
    pieces = [(name, block) for name, layout in sym.layouts.items() for block in blocks(layout)]
    near = {name: transform(a.state[name], sym.layouts[name], g) for name in far}

    def minus(name: str, block: Block) -> bool:
        return relative(-block.read(near[name]), block.read(b.state[name])) <= AGREES

    negated = [k for k, (name, block) in enumerate(pieces) if name in far and minus(name, block)]
    if not negated:
        return g
    known = [k for k, (name, _) in enumerate(pieces) if name not in far or k in negated]
    flips = sorted(f for space in sym.spaces for f in freedoms(space) if f[1] in ("sign", "linear"))
    code = BinarySpan(_word(k for k in known if flip in flipping(pieces[k][1])) for flip in flips)
    whole: dict[str, int] = {}
    for k in known:
        whole[pieces[k][0]] = whole.get(pieces[k][0], 0) | 1 << k
    size = {word: b.state[name].numel() for name, word in whole.items()}
    left = _lightest(code, _word(negated), sorted(size, key=lambda word: size[word]))
    now = {whole[pieces[k][0]] for k in negated}
    if left is None or (len(left), -sum(size[w] for w in left)) >= (len(now), -sum(size[w] for w in now)):
        return g
    made = code.reduced(reduce(xor, left, _word(negated)))[1]
    return _flipped(sym, [flip for k, flip in enumerate(flips) if made >> k & 1]) @ g


def _lightest(code: BinarySpan, word: int, others: Iterable[int]) -> tuple[int, ...] | None:
    """The fewest others, two at most, whose sum with a word is one of a code, the last of equals; or ``None``."""
    rest, rests = code.reduced(word)[0], {code.reduced(other)[0]: other for other in others}
    if not rest:
        return ()
    if rest in rests:
        return (rests[rest],)
    return next(((one, rests[rest ^ left]) for left, one in rests.items() if rest ^ left in rests), None)


def _word(places: Iterable[int]) -> int:
    return sum(1 << k for k in places)


def _flipped(sym: Symmetry, flips: Iterable[Freedom]) -> Transformation:
    """The element that flips all units of some spaces."""
    found = identity(sym)
    for space, kind, k in flips:
        e = found[space]
        if kind == "sign":
            signs = e.signs.clone()
            signs[k] *= -1
            found = with_parts(found, space, signs=signs)
        else:
            minus = -torch.ones(e.permutation.shape, dtype=torch.float64)
            found = with_parts(found, space, linear=torch.diag_embed(minus))
    return found
