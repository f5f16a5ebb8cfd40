"""Conversions between layouts: tensors found by what they hold where names differ, whole or row by row."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...matching.judgement.deviation import constant
from .layers import layer_of, pattern_of, with_layer
from .row_orders import Reading, Rows, rotary_order, rotary_part, signature, stem_of, unit_rows, view, ways

_PROBES = (4, 12)  # rows of a tensor that are looked for: fewest and most
_ALL_PROBES = 2400
_ALIKE = 0.7  # cosine of a row with the one that it came from; unrelated rows of 16 entries reach 0.6 by chance
_SAME_VALUES = 1 - 1e-5  # cosine of sorted absolute values: those of unrelated rows are within 1e-2 of 1 too
_MOST = 0.9  # share of the rows that must be found
_CLOSE, _SAME_SORTED = 0.3, 0.99  # closeness of vectors in order, and of their sorted sizes
_TIE = 1e-4  # difference of cosines below which two sources are equally good


@dataclass(eq=False)
class Conversion:
    """Tensors found so far."""

    found: dict[str, Rows] = field(default_factory=dict)  # For names of the target what they are made of
    # Names that were found by what they hold, not by their place beside others
    certain: set[str] = field(default_factory=set)
    ambiguous: dict[str, str] = field(default_factory=dict)  # Names with more than one possible source, with the reason

    @property
    def used(self) -> set[str]:
        """Names of sources that were used."""
        return {v.name for rows in self.found.values() for v in rows.views}


def convert(
    target: Mapping[str, Tensor], source: Mapping[str, Tensor], wanted: Collection[str], offered: list[str]
) -> Conversion:
    """Find tensors of one checkpoint among those of another that has other names.

    Matrices are found row by row: a few rows of each are looked for among all rows and columns of the other side, by
    cosine, and where units were permuted by their sorted absolute values. So renamed, transposed, reshaped, fused and
    split matrices are all found by one search. Vectors follow the matrix of their module, or what they hold; those that
    say nothing, such as gains of one, follow the rule by which other layers were found.
    """
    done = Conversion()
    matrices = [n for n in wanted if any(True for _ in ways(tuple(target[n].shape))) and not constant(target[n])]
    _by_rows(done, target, source, matrices, offered, exact=False)
    left = [n for n in matrices if n not in done.found]
    if left:
        _by_rows(done, target, source, left, [n for n in offered if n not in done.used], exact=True)
    _copies(done, target, source, [n for n in matrices if n not in done.found])
    for name in (n for n in wanted if n not in done.found):
        _beside(done, target, source, name)
    for name in (n for n in wanted if n not in done.found):
        _by_values(done, target, source, name, [n for n in offered if n not in done.used])
    for name in (n for n in wanted if n not in done.found):
        _by_rule(done, target, source, name, [n for n in offered if n not in done.used])
    _by_order(done, target, source, [n for n in wanted if n not in done.found], offered)
    _doubles(done, source, offered)
    return done


@dataclass(frozen=True, eq=False)
class _Probe:
    """Some rows of one view of a wanted tensor, and the best that was seen for each."""

    view: Reading
    count: int
    rows: Tensor
    units: Tensor
    best: Tensor
    where: list[tuple[Reading, int] | None]


def _by_rows(
    done: Conversion,
    target: Mapping[str, Tensor],
    source: Mapping[str, Tensor],
    wanted: list[str],
    offered: list[str],
    exact: bool,
) -> None:
    """Look for rows of all wanted matrices in one pass over the source; ``exact`` by sorted absolute values."""
    probes = list(_probes(target, wanted, exact))
    by_length: dict[int, list[_Probe]] = {}
    for probe in probes:
        by_length.setdefault(probe.units.shape[1], []).append(probe)
    for name in offered:
        x = source[name]
        for how, _, length in ways(tuple(x.shape)):
            some = by_length.get(length, ())
            if some:
                cosines = unit_rows(_read(x, how, exact)) @ torch.cat([p.units for p in some]).mT
                for probe, mine in zip(some, cosines.split([len(p.rows) for p in some], 1)):
                    _keep(probe, Reading(name, how), mine)
    threshold = _SAME_VALUES if exact else _ALIKE
    for name in wanted:
        own = [p for p in probes if p.view.name == name]
        seen = [(float((p.best > threshold).double().mean()), _plain(p), p) for p in own]
        for share, _, probe in sorted(seen, key=lambda t: t[:2], reverse=True):
            if share >= 0.5:
                rows = _assembled(probe, target[name], source, exact)
                if rows is not None:
                    done.found[name] = rows
                    done.certain.add(name)
                    break


def _plain(probe: _Probe) -> int:
    """Number of views that are read along the first axis: the simpler reading of two equal ones."""
    return (probe.view.how == "rows") + sum(w is not None and w[0].how == "rows" for w in probe.where)


def _probes(target: Mapping[str, Tensor], wanted: list[str], exact: bool) -> Iterator[_Probe]:
    least, most = _PROBES
    number = min(max(_ALL_PROBES // max(len(wanted), 1), least), most)
    for name in wanted:
        x = target[name]
        for how, count, _ in ways(tuple(x.shape)):
            every = _read(x, how, exact)
            live = every.abs().amax(1).nonzero().flatten()
            if len(live):
                rows = live[torch.linspace(0, len(live) - 1, min(number, len(live))).round().long()].unique()
                units = unit_rows(every[rows])
                yield _Probe(Reading(name, how), count, rows, units, torch.full((len(rows),), -1.0), [None] * len(rows))


def _read(x: Tensor, how: str, exact: bool) -> Tensor:
    rows = view(x.detach().to("cpu"), how).float()
    return signature(rows) if exact else rows


def _keep(probe: _Probe, where: Reading, cosines: Tensor) -> None:
    """Remember the best row of a source for each probe; of equal ones that of the same layer, then the first."""
    values, index = cosines.max(0)
    near = layer_of(where.name) == layer_of(probe.view.name)
    for k in (values > probe.best - _TIE).nonzero().flatten().tolist():
        old = probe.where[k]
        closer = near and (old is None or layer_of(old[0].name) != layer_of(probe.view.name))
        if values[k] > probe.best[k] + _TIE or closer:
            probe.best[k] = values[k]
            probe.where[k] = where, int(index[k])


def _assembled(probe: _Probe, x: Tensor, source: Mapping[str, Tensor], exact: bool) -> Rows | None:
    """The tensor from the sources in which its rows were seen; ``None`` where too many rows are not there."""
    threshold = _SAME_VALUES if exact else _ALIKE
    hits = [w for w, best in zip(probe.where, probe.best) if w is not None and best > threshold]
    views = tuple(dict.fromkeys(v for v, _ in hits))
    shape = tuple(x.shape)
    rows = unit_rows(_read(x, probe.view.how, exact))
    others = [unit_rows(_read(source[v.name], v.how, exact)) for v in views]
    pool = torch.cat(others)
    sizes = [len(x) for x in others]
    if len(pool) == len(rows) and float(((rows * pool).sum(1) > threshold).double().mean()) >= _MOST:
        return Rows(views, None, shape, probe.view.how)
    cosines, order = (rows @ pool.mT).max(1)
    found = cosines > threshold
    if float(found.double().mean()) < _MOST or len(order[found].unique()) < _MOST * int(found.sum()):
        return None
    order = _sorted(_completed(order, found, len(pool)), sizes)
    natural = len(order) == len(pool) and bool((order == torch.arange(len(order))).all())
    return Rows(views, None if natural else order, shape, probe.view.how)


def _completed(order: Tensor, found: Tensor, size: int) -> Tensor:
    """An order with rows that were not found in what places are left."""
    order = order.clone()
    free = torch.ones(size, dtype=torch.bool)
    free[order[found]] = False
    missing, left = (~found).nonzero().flatten(), free.nonzero().flatten()
    order[missing[: len(left)]] = left[: len(missing)]
    return order


def _sorted(order: Tensor, sizes: list[int]) -> Tensor:
    """The order with the rows of each source as they lie there, but for a rotary conversion.

    Which source each place takes its row from stays; that rows of one source changed places is left to the group.
    """
    order, start = order.clone(), 0
    for size in sizes:
        places = ((order >= start) & (order < start + size)).nonzero().flatten()
        rows = order[places].sort().values
        turned = rotary_part(order[places] - rows[0]) if len(places) > 1 else None
        order[places] = rows if turned is None else rows[rotary_order(len(rows), *turned)]
        start += size
    return order


def _copies(done: Conversion, target: Mapping[str, Tensor], source: Mapping[str, Tensor], wanted: list[str]) -> None:
    """Matrices that are copies of one that has its place already, as an untied head is of the embedding."""
    for name in wanted:
        x = target[name].float()
        for other in source:
            if source[other].shape == x.shape and torch.equal(source[other].float(), x):
                done.found[name] = Rows((Reading(other, "rows"),), None, tuple(x.shape))
                done.certain.add(name)
                break


def _beside(done: Conversion, target: Mapping[str, Tensor], source: Mapping[str, Tensor], name: str) -> None:
    """A vector made as the matrix of its module was: of the vectors beside the matrices that this came from."""
    last = name.removeprefix(stem_of(name))
    for sibling, rows in list(done.found.items()):
        if stem_of(sibling) != stem_of(name) or sibling == name or len(rows.shape) < 2:
            continue
        names = [f"{stem_of(v.name)}{last}" for v in rows.views]
        if not all(n in source and source[n].ndim == 1 for n in names):
            continue
        made = Rows(tuple(Reading(n, "whole") for n in names), rows.order, tuple(target[name].shape), "whole")
        total = sum(source[n].numel() for n in names)
        size = total if rows.order is None else len(rows.order)
        if size == target[name].numel() and total == sum(_count(source[v.name], v.how) for v in rows.views):
            done.found[name] = made
            return


def _count(x: Tensor, how: str) -> int:
    return view(x, how).shape[0]


def _by_values(
    done: Conversion, target: Mapping[str, Tensor], source: Mapping[str, Tensor], name: str, offered: Iterable[str]
) -> None:
    """A vector by its values: the closest one of its size, in order or sorted."""
    x = target[name].detach().flatten().float()
    if constant(x) or x.numel() < 2:
        return
    best: list[tuple[float, bool, str]] = []
    for other in offered:
        y = source[other].detach().flatten().float() if source[other].numel() == x.numel() else None
        if y is None or constant(y):
            continue
        near = layer_of(other) == layer_of(name)
        plain, values = _closeness(x, y), _closeness(x.abs().sort().values, y.abs().sort().values)
        if values > _SAME_SORTED or plain > _CLOSE:
            best.append((round(max(plain, values if values > _SAME_SORTED else plain), 4), near, other))
    if best:
        top = max(best)
        done.found[name] = Rows((Reading(top[2], "whole"),), None, tuple(target[name].shape), "whole")
        done.certain.add(name)


def _closeness(x: Tensor, y: Tensor) -> float:
    """1 for equal vectors, 0 where the distance is as large as what the entries of one vary by."""
    return 1 - float((x - y).norm() / (x - x.mean()).norm().clamp_min(1e-30))


def _by_rule(
    done: Conversion, target: Mapping[str, Tensor], source: Mapping[str, Tensor], name: str, offered: list[str]
) -> None:
    """An uninformative tensor (a constant) matched by name: as in another layer, or the only one of its size."""
    layers = {layer_of(v.name) for n, r in done.found.items() if _together(n, name) for v in r.views}
    for other, rows in done.found.items():
        if pattern_of(other) == pattern_of(name) and len(layers) == 1:
            names = [with_layer(v.name, next(iter(layers))) for v in rows.views]
            if all(n in offered and _may_be(target[name], source[n]) for n in names):
                views = tuple(Reading(n, v.how) for n, v in zip(names, rows.views))
                done.found[name] = Rows(views, rows.order, tuple(target[name].shape), rows.how)
                return
    near = [n for n in offered if not layers or layer_of(n) in layers]
    alike = [n for n in near if source[n].numel() == target[name].numel() and _may_be(target[name], source[n])]
    if not alike:
        return
    x = target[name].flatten()
    equal = [n for n in alike if torch.equal(source[n].flatten().to(x.dtype), x)]
    chosen = (equal or alike)[0]
    if len(alike) > 1:
        said = ", ".join(alike[:4]) + (", ..." if len(alike) > 4 else "")
        why = "with equal values" if len(equal) == len(alike) else "of its size"
        done.ambiguous[name] = f"{name} may be any of {len(alike)} tensors {why}: {said}; taken for {chosen}"
        if not equal:
            return
    done.found[name] = Rows((Reading(chosen, "whole"),), None, tuple(target[name].shape), "whole")


def _by_order(
    done: Conversion, target: Mapping[str, Tensor], source: Mapping[str, Tensor], wanted: list[str], offered: list[str]
) -> None:
    """Tensors that changed too much to be known by what they hold: by their order, where all shapes agree in it."""
    left = [n for n in offered if n not in done.used]
    if not wanted or [target[n].shape for n in wanted] != [source[n].shape for n in left]:
        return
    for name, other in zip(wanted, left):
        done.found[name] = Rows((Reading(other, "whole"),), None, tuple(target[name].shape), "whole")
        done.ambiguous[name] = f"{name} is compared with {other} for its place and shape alone, not for what it holds"


def _doubles(done: Conversion, source: Mapping[str, Tensor], offered: list[str]) -> None:
    """Say so where a tensor was taken for one of several that hold the same."""
    twins: dict[tuple[tuple[int, ...], float], list[str]] = {}
    for name in offered:
        if source[name].numel() > 1 and not constant(source[name]):
            twins.setdefault((tuple(source[name].shape), float(source[name].double().sum())), []).append(name)
    several = {n: names for names in twins.values() if len(names) > 1 for n in names}
    for name in done.certain:
        others = several.get(done.found[name].views[0].name, ())
        if len(done.found[name].views) == 1 and others:
            chosen = done.found[name].views[0].name
            same = [n for n in others if torch.equal(source[n], source[chosen])]
            if len(same) > 1:
                why = f"{len(same)} tensors with equal values: {', '.join(same[:4])}"
                done.ambiguous[name] = f"{name} may be any of {why}; taken for {chosen}"


def _may_be(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are compatible: both are constant, or they are close."""
    if constant(x) and constant(y):
        return True
    return x.numel() == y.numel() and _closeness(x.flatten().float(), y.flatten().float()) > _CLOSE


def _together(a: str, b: str) -> bool:
    """Whether two tensors are of one layer."""
    return layer_of(a) is not None and layer_of(a) == layer_of(b)
