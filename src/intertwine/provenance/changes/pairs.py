"""Pairs of tensors of two checkpoints under the model's names, and differences of names and layouts in words."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from ..._io.lazy import LazyState, State, check_unpacked
from ..._nested import by_key
from ..._words import counted, listed
from ...matching.correspondence.entries import Entry, converted
from ...matching.judgement.layers import moved_layers, renumbered
from ...symmetry import Symmetry, Transformation
from ...symmetry.action import moved
from ...symmetry.coupling import kept_rows, narrowed
from ...symmetry.spaces import Fixed
from ..difference import Finding
from ..units import Rows, widths
from .conversions import convert, elsewhere
from .layers import layer_findings, pattern_of

_NAMED = 3
_WORDS = {  # for each kind, and for some from the other side
    "transposed": "transposed: (inputs, outputs) instead of (outputs, inputs) or back, as Conv1D has it",
    "split": "parts of one tensor before: split",
    "reshaped": "of another shape with the same entries",
    "repeated": "the same rows several times, as if heads that shared keys and values, or experts, had got their own",
    "untied": "a copy of a tensor that another name has too: untied",
}
_TURNED = {
    "split": ("fused", "parts of one tensor now: fused"),
    "untied": ("tied", "one tensor with another now: tied"),
}
Entries = Mapping[str, Sequence[Entry]]  # of each tensor


@dataclass(frozen=True, eq=False)
class Pairs:
    """Tensors that correspond to each other."""

    sym: Symmetry  # The symmetry of the compared tensors
    a: State  # Tensors before, under the names of the model
    b: State  # Tensors after
    sources: Mapping[str, str]  # For each pair, in network order: its name in the other checkpoint
    missing: State  # Tensors that disappeared
    new: State  # Tensors that were added
    converted: bool  # Whether some names or layouts differ
    resized: Mapping[str, tuple[int, int]]  # Entries, before and after, of resized tensors, padded with zeros
    layers: bool  # Whether some layers hold earlier layers with other numbers
    units: Mapping[str, tuple[int, int]]  # For resized spaces: units before and after
    places: Mapping[str, Tensor]  # Where the units of the smaller network are, among those of the other
    findings: tuple[Finding, ...]  # How names, shapes and layouts were converted
    ambiguous: tuple[str, ...]  # Tensors with an ambiguous partner, each with the reason

    def before(self, name: str, g: Transformation) -> Tensor:
        """A tensor before, moved by an element."""
        found = moved(self.sym, g, self.a, [name]) if name in self.sym.layouts else {}
        return found[name] if name in found else self.a[name]

    def alone(self, g: Transformation) -> dict[str, Tensor]:
        """For every resized space, which units ``(p..., n)`` only one network has: in the other they are zeros."""
        own = {space: torch.arange(g[space].group.n).expand_as(g[space].permutation) for space in self.units}
        placed = {s: own[s] if n < m else g[s].permutation for s, (m, n) in self.units.items()}
        return {s: ~torch.isin(placed[s], self.places[s]) for s in self.units}

    def common(self, g: Transformation) -> Rows:
        """Rows of units that both networks have."""
        found: dict[str, dict[int, Tensor]] = {}
        for space, alone in self.alone(g).items():
            both = (~alone.reshape(-1, alone.shape[-1]).all(0)).nonzero().flatten().tolist()
            for name, axes in kept_rows(self.sym, space, both).items():
                for dim, rows in axes.items():
                    before = found.setdefault(name, {}).get(dim, rows)
                    found[name][dim] = rows[torch.isin(rows, before)]
        return found

    def in_order(self, space: str, order: Tensor) -> bool:
        """Whether a space lost or gained units, and the common units are in the same order."""
        before, after = self.units.get(space, (0, 0))
        if before == after:
            return False
        kept = order[..., self.places[space]] if after < before else order[torch.isin(order, self.places[space])]
        return bool((kept.diff() > 0).all())


def paired(sym: Symmetry, a: State, b: State, entries: Sequence[Entry] | None = None) -> Pairs:
    """Pair the tensors of two checkpoints: by name, by content, and over the common part where sizes differ.

    At least one has the model's names; ``entries`` give the correspondence to the other, if programs revealed it.

    Raises:
        ValueError: If nothing is left to compare, or weights are not real numbers.
    """
    for side, state in (("a", a), ("b", b)):
        _check_real(side, state)
    check_unpacked(a, b)
    turned = _fitting(sym, a) > _fitting(sym, b)  # the names of a are kept
    in_time = lambda ours, theirs: (ours, theirs) if turned else (theirs, ours)  # of target and source: before, after
    target, source = (a, b) if turned else (b, a)
    layers = moved_layers(a, b) if entries is None else {}
    if layers:
        source = renumbered(source, target, moved_layers(b, a) if turned else layers)
    tied = lambda n, other, state: n not in state or torch.equal(state[n], state.get(other, state[n]))
    loose = {n for n, other in sym.aliases.items() if not tied(n, other, target)}
    own = [n for n in target if n not in sym.aliases or n in loose]
    ties = {n for n, other in sym.aliases.items() if n not in loose and tied(n, other, source)}
    if entries is None:
        offered = dict.fromkeys(n for n in source if n not in {*own} | ties)
        unlike = {n: [n] for n in own if n in source and elsewhere(target[n], source[n])}
        done = convert(target, source, {**unlike, **{n: offered for n in own if n not in source}})
        found: Entries = done.entries
        ambiguous = tuple(done.ambiguous.values())
    else:
        found, ambiguous = by_key((e.a.name, e) for e in entries if not e.identity), ()
    used = {e.b.name for some in found.values() for e in some}
    made = converted(source, found, [n for n in own if n in source])
    sides = widths(sym, target, made)
    whole, ours, theirs = sides.padded(sides.places)
    names = [n for n in own if n in made and (n in whole.layouts or (n not in sym.layouts and _alike(ours, theirs, n)))]
    if not {*names} & (sym.layouts or target).keys():
        raise ValueError(
            "a and b must be of one architecture. Got no tensor that both hold under one name and shape, or that is "
            f"found by what it holds: {_first(a)} in a, {_first(b)} in b."
        )
    known = {*names} | ties | used
    copies = {n: m for n in ties for m in _copies(n, sym.aliases[n], found, source, known)}
    known |= {*copies.values()}
    only = [n for n in own if n not in names], [n for n in source if n not in known]
    missing, new = in_time(*map(_some, (target, source), only))
    before, after = in_time(ours, theirs)
    whole_before, whole_after = in_time(target, made)
    resized = {n: (whole_before[n].numel(), whole_after[n].numel()) for n in names if not _alike(target, made, n)}
    sizes = in_time(*sides.sizes)
    return Pairs(
        sym=narrowed(whole, names),
        a=_some(before, names),
        b=_some(after, names),
        sources={n: _source_words(found[n]) if n in found else n for n in names},
        missing=missing,
        new=new,
        converted=bool(found),
        resized=resized,
        layers=bool(layers),
        units={s: (sizes[0][s], sizes[1][s]) for s in sides.differing},
        places=sides.places,
        findings=(
            *layer_findings(layers, a, b),
            *_resized(resized, sym, whole_before, whole_after),
            *(_copy_finding(n, m, turned) for n, m in copies.items()),
            *_conversion_findings(found, [n for n in names if n not in found], turned),
        ),
        ambiguous=ambiguous,
    )


def _copies(name: str, kept: str, found: Entries, source: State, known: Collection[str]) -> list[str]:
    """The tensor of the other checkpoint that a tied one became under another name, equal to the one it was tied to."""
    entries = found.get(kept, ())
    if name in source or len(entries) != 1 or not entries[0].b.whole:
        return []
    x, others = source[entries[0].b.name], (n for n in source if n not in known)
    return [n for n in others if source[n].shape == x.shape and torch.equal(source[n], x)][:1]


def _copy_finding(name: str, other: str, turned: bool) -> Finding:
    said = f"{other}, an own tensor {'now' if turned else 'before'} with the values of the one that it is tied to"
    return Finding("untied" if turned else "tied", f"{name} is {said}", (name,))


def _some(state: State, names: Iterable[str]) -> State:
    return LazyState.renamed(state, {n: n for n in names})


def _alike(x: State, y: State, name: str) -> bool:
    return x[name].shape == y[name].shape


def _fitting(sym: Symmetry, state: State) -> int:
    """Number of the model's tensors that a checkpoint holds by name and shape."""
    return sum(n in state and state[n].shape == layout.shape for n, layout in sym.layouts.items())


def _resized(names: Iterable[str], sym: Symmetry, before: State, after: State) -> Iterator[Finding]:
    """Findings on label axes with other sizes (the common part is compared), and on added or removed hidden units."""
    other: dict[bool, list[str]] = {False: [], True: []}
    for name in names:
        sizes = list(zip(sym.layouts[name].axes, before[name].shape, after[name].shape))
        dim = next((d for d, (axis, m, n) in enumerate(sizes) if m != n and isinstance(axis, Fixed)), None)
        for narrower in {n < m for axis, m, n in sizes if m != n and not isinstance(axis, Fixed)}:
            other[narrower].append(name)
        if dim is not None:
            _, m, n = sizes[dim]
            reason = next((f.reason for f in sym.fixed if f.tensor == name and f.axis == dim), "axis")
            rows = f"{n - m} new rows" if n > m else f"{m - n} rows are gone"
            text = f"{name} resized from {m} to {n} along axis {dim} ({reason}): {rows}; the common ones are compared"
            yield Finding("vocabulary resized" if reason.startswith("vocabulary") else "resized", text, (name,))
    for narrower, some in other.items():
        said = "narrower: units are gone" if narrower else "wider: units were added"
        if some:
            text = f"{counted(len(some), 'tensor')} {said} ({listed(some)})"
            yield Finding("narrowed" if narrower else "widened", text, tuple(some))


def _check_real(side: str, state: State) -> None:
    """Refuse integer or 8-bit weights, which are quantised, and complex numbers."""
    for name, x in state.items():
        found = str(x.dtype).removeprefix("torch.")
        if x.is_complex():
            raise ValueError(f"{name} of {side} must hold real numbers. Got {found}: hold torch.view_as_real of it.")
        if x.is_floating_point() and x.dtype.itemsize < 2:
            raise ValueError(f"{name} of {side} must have 16 bits or more. Got {found}: dequantise the weights first.")
        weight = name.endswith("weight") or (name.endswith("bias") and x.ndim < 2)  # GPT-2 calls its mask attn.bias
        if weight and not x.is_floating_point():
            raise ValueError(f"{name} of {side} must hold real numbers. Got {found}: dequantise the weights first.")


def _first(state: State) -> str:
    name = next(iter(state), None)
    return "nothing" if name is None else f"{name!r} {tuple(state[name].shape)}"


def _conversion_findings(found: Entries, plain: Sequence[str], turned: bool) -> Iterator[Finding]:
    """Findings on changed names and layouts of tensors that were found elsewhere; ``plain`` ones kept theirs.

    ``turned`` says that these are the tensors before.
    """
    sources = {name: list(dict.fromkeys(e.b.name for e in some)) for name, some in found.items()}
    renamed = tuple(name for name in found if sources[name] != [name])
    if renamed:
        pairs = dict.fromkeys((pattern_of(n), " + ".join(map(pattern_of, sources[n]))) for n in renamed)
        shown = [f"{new} {'is now' if turned else 'was'} {old}" for new, old in pairs if new != old][:_NAMED]
        words = "; ".join([*shown, *["..."] * (len(pairs) > _NAMED)])
        yield Finding("renamed", f"{counted(len(renamed), 'tensor')} under other names: {words}", renamed)
    uses = Counter([*plain, *(other for names in sources.values() for other in names)])
    for kind, names in by_key((kind, name) for name, some in found.items() for kind in _kinds(some, uses)).items():
        said = _WORDS.get(kind, "")
        if kind == "rotary":
            said = _rotary(*next(filter(None, map(_swapped, found[names[0]]))), turned)
        if kind == "fused":
            said = f"{'split into' if turned else 'fused from'} {_fused(found, names)}"
        if turned:
            kind, said = ("split", said) if kind == "fused" else _TURNED.get(kind, (kind, said))
        roles = listed(dict.fromkeys(map(pattern_of, names)))
        yield Finding(kind, f"{counted(len(names), 'tensor')} {said} ({roles})", tuple(names))


def _source_words(entries: Sequence[Entry]) -> str:
    """The origin of a tensor, in a few words."""
    names = " + ".join(dict.fromkeys(e.b.name for e in entries))
    moved = len(entries) > len({e.b.name for e in entries}) or any(len(dim) > 1 for dim in entries[0].a.factors)
    moved = moved or any(_swapped(e) or not e.b.whole for e in entries)
    return names + ", transposed" * _transposed(entries[0]) + ", rows reordered" * moved


def _kinds(entries: Sequence[Entry], uses: Mapping[str, int]) -> Iterator[str]:
    """Kinds of conversions of one tensor."""
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
    """Whether rows of one are columns of the other."""
    moved = [k for k in e.order if e.sizes[k] > 1]
    return len(moved) > 1 and (moved[0] == max(moved) or moved[-1] == min(moved))


def _swapped(e: Entry) -> tuple[int, int] | None:
    """Sizes of two adjacent indices that were swapped, one of them two: rotary dimensions in another layout."""
    pairs = [(e.sizes[j], e.sizes[i]) for i, j in pairwise(e.order) if i == j + 1 and len(e.order) > 3]
    return next((sizes for sizes in pairs if 2 in sizes), None)


def _rotary(one: int, other: int, turned: bool) -> str:
    halves = one == 2 != other  # before them
    way = "from halves to interleaved pairs" if halves != turned else "from interleaved pairs to halves"
    return f"permuted as rotary conversion does, {way} of heads of {one * other} dimensions"


def _fused(found: Entries, names: Sequence[str]) -> str:
    """The fused parts, and how their rows lie: one tensor after the other, or head by head."""
    some = found[next((n for n in names if len(found[n][0].a.shape) > 1), names[0])]
    parts = list(dict.fromkeys(e.b.name.removesuffix(".weight").rpartition(".")[2] for e in some))
    grids = [next((dim for dim in e.a.factors if len(dim) > 1), None) for e in some]
    how = ""
    if not any(grids) and all(e.b.whole for e in some):
        how = ", one after the other"
    elif len(some) == len(parts) and all(grids) and grids[0]:
        _, start, stop, _ = grids[0][1]
        how = f", head by head ({stop - start} rows at a time)"
    return f"{len(parts)} each{how}: {' + '.join(parts)}"
