"""Units in words: which heads were swapped, which units permuted, scaled, removed or changed most."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import exp

import torch
from torch import Tensor

from ..._words import counted
from ...groups import Element
from ...symmetry.action import moved
from ...symmetry.blocks import blocks, parent_dims, summed
from ...symmetry.spaces import Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation
from ..difference import Finding, MovedUnit
from .layers import block_of, pattern_of
from .paired_tensors import Pairs

_NAMED = 6  # units that are named one by one
_CHAIN = 4  # matrices that may carry a space without its being a stream
_SEEN = 1e-4  # log scales that are worth a word
_ATTENTION = re.compile(r"att|head|qkv|[._](q|k|v|query|key|value)(_|\.|$)")


def element_findings(
    sym: Symmetry,
    g: Transformation,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    in_order: Collection[str] = (),
) -> list[Finding]:
    """What an element does, space by space, layers that share it said together.

    Args:
        sym: The symmetry.
        g: The element that moves ``before``.
        before: Tensors of the first network.
        after: Tensors of the second.
        in_order: Spaces whose units only moved up because others are gone, or came.
    """
    carried = sym.carriers
    said: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    gains = list(_folded_gains(sym, g, before, after))
    taken = {(space, k) for _, _, space, k in gains}
    for space in sym.spaces:
        e, names = g[space.name], carried[space.name]
        if e.is_identity(0.0) or not names:
            continue
        noun = _noun(sym, space, names)
        for kind, words in _parts(e, noun, [k for k in range(len(e.scales)) if (space.name, k) not in taken]):
            if kind == "permuted" and space.name in in_order:
                continue
            said.setdefault((kind, noun, pattern_of(space.name)), []).append((space.name, words))
    found = [_folded(gains)] if gains else []
    for (kind, *_), many in said.items():
        tensors = dict.fromkeys(name for space, _ in many for name in carried[space])
        found.append(Finding(kind, _together([(sym.titles[space], words) for space, words in many]), tuple(tensors)))
    return found


def _parts(e: Element, noun: str, generators: list[int]) -> Iterator[tuple[str, str]]:
    """Kinds of what an element does to one space, with words."""
    if e.displaced:
        yield "permuted", _permuted(e.permutation, noun)
    logs = e.scales[generators] if generators else e.scales[:0]
    scaled = (logs.abs() > _SEEN).any(0) if logs.numel() else torch.zeros(0, dtype=torch.bool)
    if bool(scaled.any()):
        yield "scaled", _scaled(logs, scaled, noun)
    flipped = (e.signs < 0).any(0) if e.signs.numel() else torch.zeros(0, dtype=torch.bool)
    if bool(flipped.any()):
        yield "signs flipped", f"signs of {_units(flipped, noun)} flipped"
    if e.linear is not None:
        count = e.linear.reshape(-1, *e.linear.shape[-2:]).shape[0]
        yield "basis changed", f"{counted(count, 'basis change')} of {e.group.n} dimensions"


def _permuted(order: Tensor, noun: str) -> str:
    flat = order.reshape(-1, order.shape[-1])
    moved = (flat != torch.arange(flat.shape[-1])).nonzero().tolist()
    if flat.shape[0] == 1 and len(moved) == 2:
        return f"{noun}s {moved[0][1]} and {moved[1][1]} swapped"
    if flat.shape[0] == 1 and len(moved) <= _NAMED:
        return f"{noun}s {', '.join(str(unit) for _, unit in moved)} permuted"
    return f"{noun}s permuted ({len(moved)} of {counted(flat.numel(), noun)} moved)"


def _scaled(logs: Tensor, scaled: Tensor, noun: str) -> str:
    factors = [exp(float(x)) for x in logs[logs.abs() > _SEEN].flatten()]
    low, high = min(factors), max(factors)
    by = f"{low:.4g}" if high - low <= 1e-3 * high else f"factors from {low:.3g} to {high:.3g}"
    return f"{_units(scaled, noun)} scaled by {by}, what reads them by the inverse"


def _units(chosen: Tensor, noun: str) -> str:
    flat = chosen.flatten()
    places = flat.nonzero().flatten().tolist()
    if len(places) == len(flat) and len(places) > 1:
        return f"all {len(places)} {noun}s"
    if chosen.ndim == 1 and len(places) <= _NAMED:
        return f"{noun}{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}"
    return f"{len(places)} of {counted(len(flat), noun)}"


def _together(many: list[tuple[str, str]]) -> str:
    """One line for the spaces of one role, all layers together."""
    words = Counter(text for _, text in many)
    if len(many) == 1:
        return f"{many[0][1]} ({many[0][0]})"
    if len(words) == 1:
        return f"{many[0][1]} in each of {counted(len(many), 'layer')} ({many[0][0]}, ..., {many[-1][0]})"
    if len(many) <= _NAMED:
        return "; ".join(f"{text} ({place})" for place, text in many)
    head = "; ".join(f"{text} ({place})" for place, text in many[:2])
    return f"{head}; and so on in {counted(len(many), 'layer')}"


def _noun(sym: Symmetry, space: Space, names: Sequence[str]) -> str:
    """What the units of a space are called."""
    if any(space.name in other.parents for other in sym.spaces):
        return "head" if any(_ATTENTION.search(n) for n in names) else "group"
    if space.parents:
        if any(_ATTENTION.search(n) for n in names) and not space.group.scales and space.group.permutes:
            return "query head" if _heads_within(sym, space) else "head dimension"
        return "head dimension" if any(_ATTENTION.search(n) for n in names) else "unit"
    if _stream(sym, names):
        return "channel"
    return "channel" if any(len(sym.layouts[n].axes) == 4 for n in names) else "unit"


def _heads_within(sym: Symmetry, space: Space) -> bool:
    """Whether units of a space are themselves products with another axis, as query heads of one group are."""
    for layout in sym.layouts.values():
        for block in blocks(layout):
            dims = [d for d, leaf in enumerate(block.leaves) if isinstance(leaf, Leaf) and leaf.space == space.name]
            if dims and len(block.leaves) > dims[0] + 1 and len(block.rows) < len(block.leaves) - 1:
                return True
    return False


def _stream(sym: Symmetry, names: Sequence[str]) -> bool:
    """Whether a space goes through several blocks, each of which reads and writes it."""
    matrices = [n for n in names if len(sym.layouts[n].axes) > 1]
    return len(matrices) > _CHAIN and len({block_of(n) for n in matrices}) > 2


def _folded_gains(
    sym: Symmetry, g: Transformation, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> Iterator[tuple[str, bool, str, int]]:
    """Gains that became ones, or were ones, by the scale of their space: name, whether folded, space, generator."""
    for name, layout in sym.layouts.items():
        if len(layout.axes) != 1 or not isinstance(leaf := layout.axes[0], Leaf):
            continue
        e = g[leaf.space]
        for k, exponent in enumerate(leaf.scale):
            if not exponent or not bool((e.scales[k].abs() > _SEEN).any()):
                continue
            ones = [bool(((state[name].float() - 1).abs() < _SEEN).all()) for state in (before, after)]
            if ones[0] != ones[1]:
                yield name, ones[1], leaf.space, k


def _folded(gains: list[tuple[str, bool, str, int]]) -> Finding:
    names = tuple(name for name, *_ in gains)
    into = all(folded for _, folded, *_ in gains)
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    said = "folded into the layers that read them" if into else "taken out of the layers that read them"
    return Finding(
        "gains folded" if into else "gains unfolded", f"{counted(len(names), 'gain')} {said} ({shown})", names
    )


_TOP = 10  # units that are listed
_FEW = 8


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
            named = f" ({', '.join(map(str, numbers))})" if count <= _FEW else ""
            said = "removed: their weights are zero" if kind == "pruned" else "added: their weights were zero"
            text = f"{count} of {counted(units.numel(), 'unit')} of {sym.titles[space]} {said}{named}"
            yield Finding("units removed" if kind == "pruned" else "units added", text, tuple(where[space]))
