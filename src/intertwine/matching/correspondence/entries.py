"""Entries of stored tensors: which part of one corresponds to which part of another, as a small expression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TypeAlias

from torch import Tensor

from ..._io.lazy import LazyState, State
from .graph import Pairing
from .terms import Factor

Range: TypeAlias = tuple[int, int, int, int]  # Full length, start, stop and step


@dataclass(frozen=True)
class Region:
    """Part of a stored tensor."""

    name: str  # In the state dict
    shape: tuple[int, ...]
    factors: tuple[tuple[Range, ...], ...]  # For each dimension: the factors into which it is split

    @classmethod
    def of(cls, name: str, layout: Sequence[Sequence[Factor]]) -> Region:
        """The part that a leaf reads; adjacent factors that are read entirely are merged."""

        def read(f: Factor) -> Range:
            last = 0 if f.axis is None else (f.axis.size - 1) * f.step
            return f.full, f.start, f.start + last + 1, f.step if last else 1

        dims = tuple(_fewest([read(f) for f in dim]) for dim in layout)
        return cls(name, tuple(prod(f.full for f in dim) for dim in layout), dims)

    @property
    def whole(self) -> bool:
        """Whether the region is the whole tensor."""
        return all(f[1:] == (0, f[0], 1) for dim in self.factors for f in dim)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the part as written: an axis of which only one entry is read disappears."""
        if self.whole:
            return self.shape
        parts = (f for dim in self.factors for f in dim if f[0] == 1 or f[2] > f[1] + 1)
        return tuple(len(range(*f[1:])) for f in parts)

    def of_tensor(self, tensor: Tensor) -> Tensor:
        """The part of a tensor, as a view if torch can make one."""
        spread = tensor.reshape([f[0] for dim in self.factors for f in dim])
        return spread[tuple(slice(*f[1:]) for dim in self.factors for f in dim)]

    def __str__(self) -> str:
        if self.whole:
            return self.name
        flat = [f for dim in self.factors for f in dim]
        seen = f".view({', '.join(str(f[0]) for f in flat)})" if any(len(dim) != 1 for dim in self.factors) else ""

        def shown(full: int, start: int, stop: int, step: int) -> str:
            if stop == start + 1 and full > 1:
                return str(start)
            head, tail = str(start) if start else "", str(stop) if stop < full else ""
            return f"{head}:{tail}" + (f":{step}" if step > 1 else "")

        parts = [shown(*f) for f in flat]
        while parts and parts[-1] == ":":
            parts.pop()
        return f"{self.name}{seen}[{', '.join(parts)}]"


def _fewest(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Factors of a dimension, with those that are read entirely merged into the one before."""
    found: list[Range] = []
    for here in ranges:
        if found and here[1:] == (0, here[0], 1) and found[-1][3] == 1:
            full, first, last, _ = found.pop()
            here = full * here[0], first * here[0], last * here[0], 1
        found.append(here)
    return tuple(found)


@dataclass(frozen=True)
class Entry:
    """Part of a tensor of A that corresponds to part of a tensor of B."""

    a: Region
    b: Region
    sizes: tuple[int, ...]  # Sizes of the indices into which B's part is split
    order: tuple[int, ...]  # Their order in A's part

    @property
    def identity(self) -> bool:
        """Whether the entry is the same tensor under the same name, entry by entry."""
        return self.a == self.b and self.a.whole and self.order == tuple(range(len(self.order)))

    def __str__(self) -> str:
        return f"{self.a} = {self.b}{self.change}"

    @property
    def change(self) -> str:
        """The operation on B's part, as text."""
        moved = [i for i in self.order if self.sizes[i] > 1]
        ours, theirs = self.a.sizes, self.b.sizes
        reshaped = f".reshape({', '.join(map(str, ours))})"
        if moved == sorted(moved):
            return "" if ours == theirs else reshaped
        if len(moved) == len(ours) == len(theirs) == 2:
            return ".T"
        seen, order = (", ".join(map(str, x)) for x in (self.sizes, self.order))
        whole = ours == tuple(self.sizes[i] for i in self.order)
        return f".reshape({seen}).permute({order}){'' if whole else reshaped}"


def entries_of(found: Pairing) -> tuple[Entry, ...]:
    """The entries given by paired leaves; rows that the example did not read go with those that it read."""
    entries: dict[tuple, Entry] = {}
    for n, m in sorted(found.vertices.items()):
        v, w, letters = found.a.vertices[n], found.b.vertices[m], found.letters[n]
        if v.op != "state" or w.op != "state" or not len(letters) == len(v.letters) == len(w.letters):
            continue
        sizes = [size for size, *_ in w.letters]  # indices of stored tensors are numbered in the order of dimensions
        order = [letters[i] for i in range(len(sizes))]
        ours, theirs = (Region.of(str(x.term.source), x.term.layout) for x in (v, w))
        entry = Entry(ours, theirs, *_merged(sizes, order))
        entries.setdefault((entry.a, entry.b), entry)
    return tuple(_completed(_joined(list(entries.values()))))


def _joined(entries: list[Entry]) -> list[Entry]:
    """Entries with those of adjacent slices of both tensors merged, such as packed projections in both."""
    found: list[Entry] = []
    for entry in sorted(entries, key=lambda e: (e.a.name, e.a.factors)):
        while found and (both := _beside(found[-1], entry)):
            entry = both
            found.pop()
        found.append(entry)
    return found


def _beside(one: Entry, other: Entry) -> Entry | None:
    """Two entries merged into one, if the second continues where the first ends in both tensors."""
    regions, dims, before = [], [], []
    for r, s in ((one.a, other.a), (one.b, other.b)):
        if r.name != s.name or [len(x) for x in r.factors] != [len(x) for x in s.factors]:
            return None
        flat = [(d, x, y) for d, dims_of in enumerate(zip(r.factors, s.factors)) for x, y in zip(*dims_of)]
        apart = [k for k, (_, x, y) in enumerate(flat) if x != y]
        if len(apart) != 1:
            return None
        d, x, y = flat[apart[0]]
        if x[2] != y[1] or (x[0], x[3], y[3]) != (y[0], 1, 1):
            return None
        flat[apart[0]] = d, (x[0], x[1], y[2], 1), y
        dims.append(d)
        before.append(prod(len(range(*x[1:])) for _, x, _ in flat[: apart[0]]))
        factors = tuple(_fewest([x for e, x, _ in flat if e == d]) for d in range(len(r.factors)))
        regions.append(Region(r.name, r.shape, factors))
    if one.order != other.order or one.order not in ((0,), (1, 0)):
        return None
    if one.order == (0,):
        total = one.sizes[0] + other.sizes[0]
        return Entry(regions[0], regions[1], (total,), (0,)) if before[0] == before[1] else None
    k = dims[1]
    matrices = all(len(r.factors) == 2 and all(len(x) == 1 for x in r.factors) for r in (one.a, one.b))
    if not matrices or dims[0] == k or one.sizes[1 - k] != other.sizes[1 - k]:
        return None
    sizes = tuple(x + y if i == k else x for i, (x, y) in enumerate(zip(one.sizes, other.sizes)))
    return Entry(regions[0], regions[1], sizes, one.order)


def _merged(sizes: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same permutation with as few indices as possible."""
    runs: list[list[int]] = []
    for i in order:
        if runs and runs[-1][-1] + 1 == i:
            runs[-1].append(i)
        else:
            runs.append([i])
    ranked = sorted(runs)
    return tuple(prod(sizes[i] for i in run) for run in ranked), tuple(ranked.index(run) for run in runs)


def _completed(entries: list[Entry]) -> list[Entry]:
    found = []
    for entry in entries:
        partners = [e for e in entries if e.a.name == entry.a.name or e.b.name == entry.b.name]
        names = {(e.a.name, e.b.name) for e in partners}
        if next((e for e in partners if e.a.whole and e.a.name == entry.a.name), entry) is not entry:
            continue  # parts of tensors that are there whole, or that joined to the whole again
        alike = entry.a.factors == entry.b.factors and entry.order == tuple(range(len(entry.order)))
        if len(partners) == len(names) == 1 and not entry.a.whole and alike and entry.a.shape == entry.b.shape:
            full = tuple(((n, 0, n, 1),) for n in entry.a.shape)
            sizes = tuple(n for n in entry.a.shape if n > 1)
            regions = replace(entry.a, factors=full), replace(entry.b, factors=full)
            entry = Entry(*regions, sizes, tuple(range(len(sizes))))
        found.append(entry)
    return found


def carried(entries: Sequence[Entry], state: State) -> dict[str, Tensor]:
    """Tensors of A made from those of B; entries that nothing fills are zero."""
    made: dict[str, Tensor] = {}
    for entry in entries:
        source = state[entry.b.name]
        if entry.a.name not in made:
            made[entry.a.name] = source.new_zeros(entry.a.shape)
        there = entry.a.of_tensor(made[entry.a.name])
        there.copy_(entry.b.of_tensor(source).reshape(entry.sizes).permute(entry.order).reshape(there.shape))
    return made


def converted(state: State, entries: Mapping[str, Sequence[Entry]], names: Iterable[str]) -> LazyState:
    """Tensors that entries make from a state dict, and some of its tensors under their own names."""
    plain = {name: partial(state.__getitem__, name) for name in names}
    return LazyState(plain | {name: partial(lambda n: carried(entries[n], state)[n], name) for name in entries})
