"""Conversions between layouts: the entries of one checkpoint's tensors in another, found by content.

There is no table of known renamings. Modules correspond by their programs (``correspond``); this file is for
checkpoints alone, which have no code to capture.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..._io.lazy import State
from ..._nested import by_key
from ...matching.correspondence.entries import Entry, Range, Region, carried
from ...matching.judgement.deviation import constant, relative
from ...matching.judgement.layers import signature, with_layer
from .layers import layer_of, pattern_of, stem_of

_PROBES = (4, 12)  # rows of a tensor to search for: fewest and most
_ALL_PROBES = 2400
_ALIKE = 0.7  # cosine of a row with its origin; unrelated rows of 16 entries reach 0.6 by chance
_SAME_VALUES = 1 - 1e-5  # cosine of sorted absolute values, which even for unrelated rows is within 1e-2 of 1
_MOST = 0.9  # share of the rows that must be found
_CLOSE, _SAME_SORTED = 0.3, 0.99  # closeness of vectors in order, and of their sorted absolute values
_TIE = 1e-4  # difference of cosines below which two sources are equally good
_LEAST = 1e-30
_LEAST_HEAD = 4  # with two dimensions, pairs and halves coincide
_FAR = 0.5  # relative distance beyond which another layout is searched

_Way = tuple[str, str]  # name of a tensor, and how it is read as rows
Rotary = tuple[int, bool]  # dimensions of one head; whether halves became interleaved pairs


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor that come from another tensor, in order or permuted by a rotary conversion."""

    source: str  # Name of the other tensor
    hows: tuple[str, str]  # How the tensor and the other are read as rows
    places: tuple[Range, ...]  # Their positions, as factors of the axis
    taken: tuple[Range, ...]  # Positions in the other tensor
    rotary: Rotary | None = None  # How rotary dimensions were moved

    @property
    def sizes(self) -> tuple[int, int]:
        """The total numbers of rows of both."""
        return prod(f[0] for f in self.places), prod(f[0] for f in self.taken)

    @property
    def whole(self) -> bool:
        """Whether they are all rows of the other tensor, contiguous and in order."""
        every = len(self.places) == len(self.taken) == 1 and self.taken[0][1:] == (0, self.taken[0][0], 1)
        return every and self.rotary is None

    def entry(self, name: str, x: Tensor, y: Tensor) -> Entry:
        """The entries of ``x`` at these rows, as entries of ``y``."""
        ours = _region(name, x, self.hows[0], self.places)
        theirs = _region(self.source, y, self.hows[1], self.taken)
        count, length = prod(len(range(*f[1:])) for f in self.taken), y.numel() // self.sizes[1]
        sizes, order = [count], [0]
        if self.rotary is not None:
            head, pairs = self.rotary
            sizes, order = [count // head, *((2, head // 2) if pairs else (head // 2, 2))], [0, 2, 1]
        if self.hows[1] == "columns":
            sizes, order = [length, *sizes], [*(k + 1 for k in order), 0]
        else:
            sizes, order = [*sizes, length], [*order, len(order)]
        return Entry(ours, theirs, tuple(sizes), tuple(order[-1:] + order[:-1] if self.hows[0] == "columns" else order))


def _region(name: str, x: Tensor, how: str, grid: tuple[Range, ...]) -> Region:
    length = x.numel() // prod(f[0] for f in grid)
    factors = grid, ((length, 0, length, 1),)
    return Region(name, tuple(x.shape), factors[::-1] if how == "columns" else factors)


def _whole(source: str, x: Tensor) -> tuple[Rows, ...]:
    """Another tensor unchanged, in the shape of ``x``."""
    every = ((x.numel(), 0, x.numel(), 1),)
    return (Rows(source, ("rows", "rows"), every, every),)


@dataclass(eq=False)
class Conversion:
    """Tensors of one checkpoint, found in another that has other names and layouts.

    Matrices are found row by row: a few rows of each are searched among all rows and columns of the other side, by
    cosine or, if units were permuted, by sorted absolute values. So one search finds renamed, transposed, reshaped,
    fused, split and repeated matrices. Vectors follow the matrix of their module, or their content; uninformative
    ones, such as unit gains, follow the rule by which other layers were found.
    """

    target: State
    source: State
    among: Mapping[str, Collection[str]]  # Tensors to find, each with its possible sources
    found: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    certain: set[str] = field(default_factory=set)  # Found by content, not by position beside others
    ambiguous: dict[str, str] = field(default_factory=dict)  # Tensors with several possible sources, and the reason

    @property
    def used(self) -> set[str]:
        """Names of the used sources."""
        return {rows.source for some in self.found.values() for rows in some}

    @property
    def entries(self) -> dict[str, tuple[Entry, ...]]:
        """The entries of every tensor that was found."""
        return {
            n: tuple(rows.entry(n, self.target[n], self.source[rows.source]) for rows in some)
            for n, some in self.found.items()
        }

    def _left(self) -> list[str]:
        return [n for n in self.among if n not in self.found]

    def _free(self, name: str) -> list[str]:
        used = self.used
        return [n for n in self.among[name] if n not in used]


def convert(target: State, source: State, among: Mapping[str, Collection[str]]) -> Conversion:
    """Find tensors of ``target`` in ``source``, each among its possible sources."""
    done = Conversion(target, source, among)
    matrices = [n for n in among if _ways(target[n].shape) and not constant(target[n])]
    for exact in (False, True):
        _by_rows(done, [n for n in matrices if n not in done.found], exact)
    matrices = [n for n in done.found if target[n].ndim > 1]
    stems = {stem_of(n) for n in matrices}
    for name in (n for n in target if stem_of(n) in stems):
        for sibling in (n for n in matrices if stem_of(n) == stem_of(name) and name not in done.found):
            _beside(done, name, sibling)
    for find in (_by_values, _by_rule):
        for name in (n for n in done._left() if n not in source):
            find(done, name)
    _by_order(done)
    _doubles(done)
    return done


# ------------------------------------------------------------------------------------------------------------- by rows


def _ways(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Ways to read a tensor as informative rows: along its first axis, its second, or all but its last."""
    axes = sum(n > 1 for n in shape) if len(shape) > 2 else len(shape)
    return () if axes < 2 else ("rows", "columns") if axes == 2 else ("rows", "last")


def _units(x: Tensor, how: str, exact: bool) -> Tensor:
    """A tensor as rows of unit length, without axes of size one; with ``exact``, as sorted absolute values."""
    x = x.detach().to("cpu").float()
    x = x.squeeze() if x.ndim > 2 else x
    rows = x.mT if how == "columns" else x.flatten(1) if how == "rows" else x.reshape(-1, x.shape[-1])
    return normalize(signature(rows) if exact else rows, eps=_LEAST)


def _by_rows(done: Conversion, names: Collection[str], exact: bool) -> None:
    """Search rows of all wanted matrices in one pass over the source; with ``exact``, by sorted absolute values."""
    threshold, used = (_SAME_VALUES, done.used) if exact else (_ALIKE, set())
    probes = {(n, how): units for n in names for how, units in _probes(done.target[n], len(names), exact)}
    seen: dict[_Way, list[tuple[Tensor, _Way]]] = {way: [] for way in probes}  # cosines of the best rows of each source
    for source in dict.fromkeys(other for n in names for other in done.among[n] if other not in used):
        x = done.source[source]
        for how in _ways(x.shape):
            rows = _units(x, how, exact)
            some = [way for way, units in probes.items() if units.shape[1] == rows.shape[1]]
            some = [way for way in some if source in done.among[way[0]]]
            cosines = rows @ torch.cat([probes[way] for way in some]).mT if some else rows[:, :0]
            for way, mine in zip(some, cosines.split([len(probes[way]) for way in some], 1)):
                seen[way].append((mine.amax(0), (source, how)))
    ranked = [(*_origins(way, found, threshold), way) for way, found in seen.items() if found]
    place = {name: k for k, name in enumerate(names)}
    for _, _, origins, (name, how) in sorted(ranked, key=lambda t: (place[t[3][0]], -t[0], -t[1])):
        if origins and name not in done.found and (made := _assembled(done, name, how, origins, threshold)):
            done.found[name] = made
            done.certain.add(name)


def _probes(x: Tensor, wanted: int, exact: bool) -> Iterator[tuple[str, Tensor]]:
    """Some rows of a wanted tensor, in each reading."""
    least, most = _PROBES
    number = min(max(_ALL_PROBES // wanted, least), most)
    for how in _ways(x.shape):
        every = _units(x, how, exact)
        live = every.abs().amax(1).nonzero().flatten()
        if len(live):
            yield how, every[live[torch.linspace(0, len(live) - 1, min(number, len(live))).round().long()].unique()]


def _origins(way: _Way, seen: list[tuple[Tensor, _Way]], threshold: float) -> tuple[float, int, Collection[_Way]]:
    """The share of rows found, the plainness of the reading, and the sources; none if fewer than half were found.

    Among equal sources the one of the same layer is taken, then the first; one source that holds all rows is taken
    alone. Readings along the first axis are plainer.
    """
    values = torch.stack([best for best, _ in seen])
    good = (values > values.amax(0) - _TIE).int()
    near = torch.tensor([[layer_of(source) == layer_of(way[0])] for _, (source, _) in seen])
    picked = (good + good * near).argmax(0)
    whole = (values > threshold).all(1)  # such as experts that all descend from one MLP, each nearest in some rows
    if len(set(picked.tolist())) > 1 and bool(whole.any()):
        picked = torch.full_like(picked, int((values.mean(1) * whole).argmax()))
    there = values.gather(0, picked[None])[0] > threshold
    where = [seen[k][1] for k in picked.tolist()]
    share = float(there.double().mean())
    plain = (way[1] == "rows") + sum(how == "rows" for _, how in where)
    return share, plain, dict.fromkeys(w for w, sure in zip(where, there) if sure) if share >= 0.5 else ()


def _assembled(done: Conversion, name: str, way: str, origins: Collection[_Way], threshold: float) -> tuple[Rows, ...]:
    """The tensor, assembled from the sources in which its rows were found; nothing if too many rows are missing.

    Each position keeps the source of its row. Permutations of rows within a source are left to the group, except for a
    rotary conversion.
    """
    x, exact = done.target[name], threshold == _SAME_VALUES
    rows, others = _units(x, way, exact), [_units(done.source[n], how, exact) for n, how in origins]
    pool = torch.cat(others)
    order = torch.arange(len(rows))
    if len(pool) != len(rows) or float(((rows * pool).sum(1) > threshold).double().mean()) < _MOST:
        cosines, order = (rows @ pool.mT).max(1)
        there, times = cosines > threshold, order.bincount(minlength=len(pool))
        repeated = bool((times == times[0]).all())
        single = len(order[there].unique()) >= _MOST * int(there.sum())
        if float(there.double().mean()) < _MOST or not (single or repeated):
            return ()
        if not repeated:  # rows that were not found take the remaining positions
            left = torch.ones(len(pool)).index_fill(0, order[there], 0).nonzero().flatten()
            lost = (~there).nonzero().flatten()[: len(left)]
            order[lost] = left[: len(lost)]
    found, start = list[Rows](), 0
    for (source, how), other in zip(origins, others):
        places = ((order >= start) & (order < start + len(other))).nonzero().flatten()
        taken = order[places] - start
        rotary = _rotary(taken.argsort().argsort()) if len(taken.unique()) == len(taken) else None
        taken = taken.sort().values if rotary is not None or len(taken.unique()) == len(taken) else taken
        pieces = _pieces(places, taken, (len(rows), len(other)))
        found += [Rows(source, (way, how), *grids, rotary if len(pieces) == 1 else None) for grids in pieces]
        start += len(other)
    if name in done.source:  # its namesake may be this one transposed, reshaped, rotary or repeated
        same = x.shape == (y := done.source[name]).shape
        if x.numel() % y.numel() or (same and len({*found[0].hows}) == 1 and found[0].rotary is None):
            return ()
    return tuple(found)


def _pieces(places: Tensor, taken: Tensor, sizes: tuple[int, int]) -> list[tuple[tuple[Range, ...], tuple[Range, ...]]]:
    """Rows and their targets as factors of both axes: one grid if they are regular, else run by run."""
    if not len(places):
        return []
    ends = (((places.diff() != 1) | (taken.diff() != 1)).nonzero().flatten() + 1).tolist()
    starts, length = [0, *ends], (ends or [len(places)])[0]
    if len(places) == length * len(starts) and starts == [*range(0, len(places), length)]:
        grids = [_grid(rows[starts].tolist(), length, size) for rows, size in zip((places, taken), sizes)]
        if all(grids):
            return [(grids[0], grids[1])]
    runs = zip(*(rows.tensor_split(ends) for rows in (places, taken)))
    return [tuple(_grid([int(rows[0])], len(rows), n) for rows, n in zip(run, sizes)) for run in runs]  # type: ignore[misc]


def _grid(starts: list[int], length: int, size: int) -> tuple[Range, ...]:
    """Runs of equal length as factors of an axis; nothing if they are not equally spaced."""
    first, count = starts[0], len(starts)
    step = starts[1] - first if count > 1 else length
    if starts != [first + k * step for k in range(count)] or step < length:
        return ()
    if step == length:
        return ((size, first, first + count * length, 1),)
    inside = first % step
    if size % step or inside + length > step:
        return ()
    return (size // step, first // step, first // step + count, 1), (step, inside, inside + length, 1)


def _rotary(order: Tensor) -> Rotary | None:
    """Head size and direction of the rotary conversion in an order of rows, heads permuted or not.

    Halves ``(x_0, x_1, ..., y_0, y_1, ...)`` are stored as pairs ``(x_0, y_0, x_1, y_1, ...)``, or back, as in the
    conversion of Llama weights to transformers; ``None`` if the order is no such conversion.
    """
    for head in (h for h in range(_LEAST_HEAD, len(order) + 1, 2) if len(order) % h == 0):
        blocks = order.reshape(-1, head)
        if not bool((blocks // head == blocks[:, :1] // head).all()):
            continue
        for pairs in (False, True):
            within = torch.arange(head).reshape((2, head // 2) if pairs else (head // 2, 2)).mT.flatten()
            if bool((blocks % head == within).all()):
                return head, pairs
    return None


# ------------------------------------------------------------------------------------------- beside others, as a whole


def _beside(done: Conversion, name: str, sibling: str) -> None:
    """A vector converted like the matrix of its module, unless its namesake is as near."""
    x, last = done.target[name], name.removeprefix(stem_of(name))
    sources = [f"{stem_of(rows.source)}{last}" for rows in done.found[sibling]]
    made = [replace(r, source=n, hows=("rows", "rows")) for r, n in zip(done.found[sibling], sources)]
    if all(r.source in done.source and r.sizes == (x.numel(), done.source[r.source].numel()) for r in made):
        there = carried([r.entry(name, x, done.source[r.source]) for r in made], done.source)[name]
        y = done.source.get(name)
        nearer = y is None or x.shape != y.shape or relative(there, x) < relative(y, x)
        if nearer and (y is None or {*sources} == {name}):
            done.found[name] = tuple(made)


def _by_values(done: Conversion, name: str) -> None:
    """A tensor matched by its values: the closest of its size, in order or sorted, or a matrix that it copies."""
    x = done.target[name]
    if constant(x):
        return
    scores = {other: _closeness(x, done.source[other]) for other in done._free(name)}
    close = [(round(score, 4), layer_of(n) == layer_of(name), n) for n, score in scores.items() if score > _CLOSE]
    copies = () if close or x.ndim < 2 else (n for n in done.source if done.source[n].shape == x.shape)
    found = (
        max(close)[2] if close else next((n for n in copies if torch.equal(done.source[n].float(), x.float())), None)
    )
    if found is not None:
        done.found[name] = _whole(found, x)
        done.certain.add(name)


def _closeness(x: Tensor, y: Tensor) -> float:
    """1 for equal tensors, in order or sorted by size; 0 if the distance is as large as the spread of the entries."""
    if x.numel() != y.numel() or constant(y):
        return 0.0
    x, y = (t.detach().flatten().float() for t in (x, y))
    pairs = (x, y), (x.abs().sort().values, y.abs().sort().values)
    plain, values = (1 - float((u - v).norm() / (u - u.mean()).norm().clamp_min(_LEAST)) for u, v in pairs)
    return max(plain, values) if values > _SAME_SORTED else plain


def _by_rule(done: Conversion, name: str) -> None:
    """An uninformative tensor (a constant) matched by name: as in another layer, or the only one of its size."""
    x, own = done.target[name], layer_of(name)
    offered = [n for n in done._free(name) if constant(done.source[n])] if constant(x) else []
    layers = {layer_of(r.source) for n, some in done.found.items() if own == layer_of(n) is not None for r in some}
    if len(layers) == 1:
        (layer,) = layers
        for other in (n for n in done.found if pattern_of(n) == pattern_of(name)):
            made = tuple(replace(rows, source=with_layer(rows.source, layer)) for rows in done.found[other])
            if all(rows.source in offered for rows in made):
                done.found[name] = made
                return
    alike = [n for n in offered if done.source[n].numel() == x.numel() and (not layers or layer_of(n) in layers)]
    equal = [n for n in alike if torch.equal(done.source[n].flatten().to(x.dtype), x.flatten())]
    chosen = (equal or alike or [""])[0]
    if len(alike) > 1:
        said = ", ".join(alike[:4]) + (", ..." if len(alike) > 4 else "")
        why = "with equal values" if len(equal) == len(alike) else "of its size"
        done.ambiguous[name] = f"{name} may be any of {len(alike)} tensors {why}: {said}; taken for {chosen}"
    if equal or len(alike) == 1:
        done.found[name] = _whole(chosen, x)


def _by_order(done: Conversion) -> None:
    """Tensors that changed too much to be matched by content, matched by order if all shapes agree in it."""
    wanted = [n for n in done._left() if n not in done.source]
    left = done._free(wanted[0]) if wanted else []
    if [done.target[n].shape for n in wanted] != [done.source[n].shape for n in left]:
        return
    for name, other in zip(wanted, left):
        done.found[name] = _whole(other, done.target[name])
        done.ambiguous[name] = f"{name} is compared with {other} for its place and shape alone, not for what it holds"


def _doubles(done: Conversion) -> None:
    """Record tensors that were matched to one of several with equal values, and give each of them one of its own."""
    offered = dict.fromkeys(n for names in done.among.values() for n in names)
    read = ((name, done.source[name]) for name in offered)
    twins = by_key(((x.shape, float(x.double().sum())), n) for n, x in read if x.numel() > 1 and not constant(x))
    several = {n: names for names in twins.values() if len(names) > 1 for n in names}
    taken = set[str]()
    for name in (n for n in done.found if n in done.certain):
        chosen = done.found[name][0].source
        if len({rows.source for rows in done.found[name]}) == 1:
            same = [n for n in several.get(chosen, ()) if torch.equal(done.source[n], done.source[chosen])]
            free = [n for n in same if n not in done.used]
            if free and chosen in taken:  # tensors that are equal on both sides, such as an embedding and its head
                done.found[name] = tuple(replace(rows, source=free[0]) for rows in done.found[name])
                chosen = free[0]
            taken.add(chosen)
            if len(same) > 1:
                why = f"{len(same)} tensors with equal values: {', '.join(same[:4])}"
                done.ambiguous[name] = f"{name} may be any of {why}; taken for {chosen}"


def elsewhere(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors of one name are so far apart that one may be in another layout."""
    real = x.is_floating_point() and y.is_floating_point()  # masks and indices have no other layout
    return x.shape != y.shape or (real and x.ndim == 2 and min(x.shape) > 1 and relative(y, x) > _FAR)
