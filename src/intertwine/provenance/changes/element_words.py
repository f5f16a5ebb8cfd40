"""Findings on units in words: which heads were swapped, which units permuted, scaled, removed or changed most."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import exp
from typing import Any

import torch
from torch import Tensor

from ..._words import counted, listed
from ...groups import Element
from ...symmetry import Symmetry, Transformation
from ...symmetry.description import holds_heads
from ...symmetry.spaces import Leaf, Space
from ..difference import Finding, MovedUnit
from ..units import by_unit
from .layers import block_of, pattern_of
from .pairs import Pairs

_NAMED = 6  # most units named one by one
_CHAIN = 4  # most matrices that carry a space that is no stream
_SEEN = 1e-4  # log scales large enough to mention
_ATTENTION = re.compile(r"att|head|qkv|[._](q|k|v|query|key|value)(_|\.|$)")


def element_findings(pairs: Pairs, g: Transformation) -> Iterator[Finding]:
    """Findings on what an element does, space by space, with layers grouped if they share it.

    Units that moved up because others were removed, or down because others were added, count as no permutation.
    """
    sym, carried = pairs.sym, pairs.sym.carriers
    said: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    gains = list(folded_gains(pairs, g))
    if gains:
        folded = all(now for _, now, *_ in gains)
        names = tuple(name for name, *_ in gains)
        how = "folded into the layers that read them" if folded else "taken out of the layers that read them"
        text = f"{counted(len(names), 'gain')} {how} ({listed(names)})"
        yield Finding("gains folded" if folded else "gains unfolded", text, names)
    taken = {(space, k) for _, _, space, k in gains}
    for space in sym.spaces:
        e, names = g[space.name], carried[space.name]
        if e.is_identity(0.0) or not names:
            continue
        noun = _noun(sym, space, names)
        for kind, words in _parts(e, noun, [k for k in range(len(e.scales)) if (space.name, k) not in taken]):
            if kind != "permuted" or not pairs.in_order(space.name, e.permutation):
                said.setdefault((kind, noun, pattern_of(space.name)), []).append((space.name, words))
    for (kind, *_), many in said.items():
        tensors = dict.fromkeys(name for space, _ in many for name in carried[space])
        yield Finding(kind, _together([(sym.titles[space], words) for space, words in many]), tuple(tensors))


def _parts(e: Element, noun: str, generators: list[int]) -> Iterator[tuple[str, str]]:
    """Kinds of changes that an element makes to one space, with words."""
    if e.displaced:
        yield "permuted", _permuted(e.permutation, noun)
    logs = e.scales[generators]
    scaled, flipped = (logs.abs() > _SEEN).any(0), (e.signs < 0).any(0)
    if bool(scaled.any()):
        factors = [exp(float(x)) for x in logs[logs.abs() > _SEEN].flatten()]
        low, high = min(factors), max(factors)
        by = f"{low:.4g}" if high - low <= 1e-3 * high else f"factors from {low:.3g} to {high:.3g}"
        yield "scaled", f"{_units(scaled, noun)} scaled by {by}, what reads them by the inverse"
    if bool(flipped.any()):
        yield "signs flipped", f"signs of {_units(flipped, noun)} flipped"
    if e.linear is not None:
        yield "basis changed", f"{counted(e.linear[..., 0, 0].numel(), 'basis change')} of {e.group.n} dimensions"


def _permuted(order: Tensor, noun: str) -> str:
    flat = order.reshape(-1, order.shape[-1])
    moved = (flat != torch.arange(flat.shape[-1])).nonzero()[:, 1].tolist()
    if len(flat) > 1 or len(moved) > _NAMED:
        return f"{noun}s permuted ({len(moved)} of {counted(flat.numel(), noun)} moved)"
    if len(moved) == 2:
        return f"{noun}s {moved[0]} and {moved[1]} swapped"
    return f"{_numbered(moved, noun)} permuted"


def _numbered(places: Sequence[int], noun: str) -> str:
    return f"{noun}{'s' * (len(places) > 1)} {', '.join(map(str, places))}"


def _units(chosen: Tensor, noun: str) -> str:
    places = chosen.flatten().nonzero().flatten().tolist()
    if len(places) == chosen.numel() > 1:
        return f"all {len(places)} {noun}s"
    few = chosen.ndim == 1 and len(places) <= _NAMED
    return _numbered(places, noun) if few else f"{len(places)} of {counted(chosen.numel(), noun)}"


def _together(many: list[tuple[str, str]]) -> str:
    """One line for all spaces of one role, over all layers."""
    (first, text), *_, (last, _) = many[0], *many
    if len(many) == 1:
        return f"{text} ({first})"
    layers = counted(len(many), "layer")
    if len(Counter(words for _, words in many)) == 1:
        return f"{text} in each of {layers} ({first}, {'..., ' * (len(many) > 2)}{last})"
    said = [f"{words} ({place})" for place, words in many]
    return "; ".join(said if len(many) <= _NAMED else [*said[:2], f"and so on in {layers}"])


def _noun(sym: Symmetry, space: Space, names: Sequence[str]) -> str:
    """The noun for the units of a space."""
    attention = any(_ATTENTION.search(n) for n in names)
    if any(restriction.kind == "positions" for restriction in space.restrictions):
        return "rotary pair"
    inner = [other for other in sym.spaces if space.name in other.parents]
    if inner:
        shared = any(holds_heads(other, sym.layouts) for other in inner)
        return f"{'key/value ' * shared}head" if attention else "group"
    if space.parents:
        return "query head" if holds_heads(space, sym.layouts) else "head dimension" if attention else "unit"
    matrices = [n for n in names if len(sym.layouts[n].axes) > 1]
    stream = len(matrices) > _CHAIN and len({block_of(n) for n in matrices}) > 2  # several blocks read and write it
    return "channel" if stream or any(len(sym.layouts[n].axes) == 4 for n in names) else "unit"


def folded_gains(pairs: Pairs, g: Transformation) -> Iterator[tuple[str, bool, str, int]]:
    """Gains that became or were ones, by the scale of their space: name, whether folded, space, generator."""
    for name, layout in pairs.sym.layouts.items():
        leaf = layout.axes[0] if len(layout.axes) == 1 else None
        for k, exponent in enumerate(leaf.scale if isinstance(leaf, Leaf) else ()):
            if isinstance(leaf, Leaf) and exponent and bool((g[leaf.space].scales[k].abs() > _SEEN).any()):
                was, now = (bool(((x[name].float() - 1).abs() < _SEEN).all()) for x in (pairs.a, pairs.b))
                if was != now:
                    yield name, now, leaf.space, k


_TOP = 10  # units that are listed
_FEW = 8
_NEAR = 0.5  # least cosine of units that were matched


def moved_units(pairs: Pairs, g: Transformation, changed: Collection[str]) -> tuple[MovedUnit, ...]:
    """The units whose weights changed most, over all tensors that write or read them."""
    sym = pairs.sym
    touched = {s for n in changed if n in sym.layouts for s in sym.layouts[n].spaces}
    sums: dict[str, Tensor] = {}
    for name in (n for n, layout in sym.layouts.items() if layout.spaces & touched):
        x = pairs.before(name, g).float()
        for space, new in by_unit(sym, name, (pairs.b[name].float() - x).square(), x.square()):
            sums[space] = sums.get(space, 0) + torch.stack(new)
    found = []
    for space, (gap, size) in ((s, pair) for s, pair in sums.items() if s in touched):
        relative = (gap / size.clamp_min(1e-30)).sqrt()
        top = relative.flatten().topk(min(_TOP, relative.numel()))
        for value, index in zip(top.values.tolist(), top.indices):
            if value > 0:
                unit = torch.unravel_index(index, relative.shape)
                found.append(MovedUnit(sym.titles[space], tuple(int(i) for i in unit), value))
    return tuple(sorted(found, key=lambda u: -u.relative)[:_TOP])


def _matched(pairs: Pairs, g: Transformation, space: str, both: Tensor) -> bool:
    """Whether each unit that both networks have points more along its partner than elsewhere, over all its tensors."""
    sums: Any = 0
    for name in pairs.sym.carriers[space]:
        x, y = pairs.before(name, g).double(), pairs.b[name].double()
        for other, new in by_unit(pairs.sym, name, x * y, x.square(), y.square()):
            sums = sums + torch.stack(new) if other == space else sums
    return bool((sums[0] >= _NEAR * (sums[1] * sums[2]).sqrt())[both].all())


def missing_units(pairs: Pairs, g: Transformation, names: Iterable[str], kind: str) -> Iterator[Finding]:
    """One finding for every space with units that only one network has, or that are zero in all the pruned tensors.

    ``kind`` is that of the tensors: ``"pruned"``, or ``"filled"`` for units that were added. What lies within a unit
    that is gone is not counted again.
    """
    gone: dict[str, Tensor] = {}
    where: dict[str, list[str]] = {}
    sym, pruned = pairs.sym, kind == "pruned"
    for name in (n for n in names if n in sym.layouts):
        for space, counts in by_unit(sym, name, *((x != 0).float() for x in (pairs.before(name, g), pairs.b[name]))):
            there, left = (x > 0 for x in (counts if pruned else counts[::-1]))
            gone[space] = gone.get(space, there) & ~left
            where.setdefault(space, []).append(name)
    alone = pairs.alone(g)
    for space, units in alone.items():
        if (pairs.units[space][1] < pairs.units[space][0]) == pruned:
            gone[space] = gone.get(space, False) | units
            where[space] = [*sym.carriers[space]]
    for space, units in gone.items():
        parents = sym.space(space).parents
        for dim, parent in ((d, p) for d, p in enumerate(parents) if p in alone):
            dims = {dim, *map(parents.index, sym.space(parent).parents)}
            within = alone[parent].reshape([n if d in dims else 1 for d, n in enumerate(units.shape)])
            units = units & ~within
        count = int(units.sum())
        if 0 < count < units.numel():
            said = "removed" if pruned else "added"
            if space in alone and not _matched(pairs, g, space, ~alone[space]):
                text = (
                    f"{count} of {counted(units.numel(), 'unit')} of {sym.titles[space]} {said}: which, cannot be told"
                )
                yield Finding(f"units {said}", text, tuple(where[space]))
                continue
            # their numbers in the first network, and in the second
            before, now = g[space].permutation.reshape(units.shape)[units], units.flatten().nonzero().flatten()
            numbers = sorted((before if pruned else now).tolist())
            named = f" ({', '.join(map(str, numbers))})" if count <= _FEW else ""
            # as many as before if no tensor became smaller
            still = "" if space in pairs.units else f": their weights {'are' if pruned else 'were'} zero"
            text = f"{count} of {counted(units.numel(), 'unit')} of {sym.titles[space]} {said}{still}{named}"
            yield Finding(f"units {said}", text, tuple(where[space]))
