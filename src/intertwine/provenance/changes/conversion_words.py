"""Conversions of names and layouts in words, layers that share one said together."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

from ..._words import counted, listed
from ...matching.correspondence.entries import Entry
from ..difference import Finding
from .layers import pattern_of

_NAMED = 3
_WORDS = {  # of each kind, and of some seen from the other side
    "transposed": "transposed: (inputs, outputs) instead of (outputs, inputs) or back, as Conv1D has it",
    "split": "parts of one tensor before: split",
    "reshaped": "of another shape with the same entries",
    "repeated": "the same rows several times: heads that shared keys and values have their own",
    "untied": "a copy of a tensor that another name has too: untied",
}
_TURNED = {
    "split": ("fused", "parts of one tensor now: fused"),
    "untied": ("tied", "one tensor with another now: tied"),
}
Entries = Mapping[str, Sequence[Entry]]  # of each tensor


def conversion_findings(found: Entries, plain: Sequence[str], turned: bool) -> Iterator[Finding]:
    """What was done to names and layouts.

    Args:
        found: Entries of tensors that have another name or layout in the other checkpoint.
        plain: Tensors that have not.
        turned: Whether these are the tensors before.
    """
    sources = {name: list(dict.fromkeys(e.b.name for e in some)) for name, some in found.items()}
    renamed = tuple(name for name in found if sources[name] != [name])
    if renamed:
        pairs = dict.fromkeys((pattern_of(n), " + ".join(map(pattern_of, sources[n]))) for n in renamed)
        shown = [f"{new} {'is now' if turned else 'was'} {old}" for new, old in pairs if new != old][:_NAMED]
        words = "; ".join([*shown, *["..."] * (len(pairs) > _NAMED)])
        yield Finding("renamed", f"{counted(len(renamed), 'tensor')} under other names: {words}", renamed)
    uses = Counter([*plain, *(other for names in sources.values() for other in names)])
    grouped: dict[str, list[str]] = {}
    for name, some in found.items():
        for kind in _kinds(some, uses):
            grouped.setdefault(kind, []).append(name)
    for kind, names in grouped.items():
        said = _WORDS.get(kind, "")
        if kind == "rotary":
            said = _rotary(*next(filter(None, map(_swapped, found[names[0]]))), turned)
        if kind == "fused":
            said = f"{'split into' if turned else 'fused from'} {_fused(found, names)}"
        if turned:
            kind, said = ("split", said) if kind == "fused" else _TURNED.get(kind, (kind, said))
        roles = listed(dict.fromkeys(map(pattern_of, names)))
        yield Finding(kind, f"{counted(len(names), 'tensor')} {said} ({roles})", tuple(names))


def source_words(entries: Sequence[Entry]) -> str:
    """Where a tensor comes from, in a few words."""
    names = " + ".join(dict.fromkeys(e.b.name for e in entries))
    moved = len(entries) > len({e.b.name for e in entries}) or _strided(entries[0])
    moved = moved or any(_swapped(e) or not e.b.whole for e in entries)
    return names + ", transposed" * _transposed(entries[0]) + ", rows reordered" * moved


def _kinds(entries: Sequence[Entry], uses: Mapping[str, int]) -> Iterator[str]:
    """What was done to one tensor."""
    first, sources = entries[0], Counter(e.b.name for e in entries)
    if len(sources) > 1:
        yield "fused"
    elif uses[first.b.name] > 1:
        yield "untied" if first.b.whole and len(first.a.shape) > 1 else "split"
    if len(sources) == 1 and sum(prod(e.sizes) for e in entries) > prod(first.b.shape):
        yield "repeated"
        return
    shapes = [tuple(n for n in region.shape if n > 1) for region in (first.a, first.b)]
    if _transposed(first):
        yield "transposed"
    elif len(entries) == 1 and first.a.whole and first.b.whole and len(shapes[0]) != len(shapes[1]):
        yield "reshaped"
    if len(first.a.shape) > 1 and any(map(_swapped, entries)):
        yield "rotary"


def _transposed(e: Entry) -> bool:
    """Whether the rows of one are columns of the other."""
    moved = [k for k in e.order if e.sizes[k] > 1]
    return len(moved) > 1 and (moved[0] == max(moved) or moved[-1] == min(moved))


def _swapped(e: Entry) -> tuple[int, int] | None:
    """Sizes of two neighbouring indices that changed places, one of them two: rotary dimensions in another layout."""
    pairs = [(e.sizes[j], e.sizes[i]) for i, j in pairwise(e.order) if i == j + 1 and len(e.order) > 3]
    return next((sizes for sizes in pairs if 2 in sizes), None)


def _strided(e: Entry) -> bool:
    return any(len(dim) > 1 for dim in e.a.factors)


def _rotary(one: int, other: int, turned: bool) -> str:
    halves = one == 2 != other  # before them
    way = "from halves to interleaved pairs" if halves != turned else "from interleaved pairs to halves"
    return f"permuted as rotary conversion does, {way} of heads of {one * other} dimensions"


def _fused(found: Entries, names: Sequence[str]) -> str:
    """Of what, and how rows of several tensors lie: one tensor after the other, or head by head."""
    some = found[next((n for n in names if len(found[n][0].a.shape) > 1), names[0])]
    parts = list(dict.fromkeys(e.b.name.removesuffix(".weight").rpartition(".")[2] for e in some))
    grids = [next((dim for dim in e.a.factors if len(dim) > 1), None) for e in some]
    how = ""
    if not any(grids) and all(e.b.whole for e in some):
        how = ", one after the other"
    elif len(some) == len(parts) and all(grids):
        (_, start, stop, _) = grids[0][1]
        how = f", head by head ({stop - start} rows at a time)"
    return f"{len(parts)} each{how}: {' + '.join(parts)}"
