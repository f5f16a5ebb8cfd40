"""Families of many checkpoints: which descend from common weights, and a tree of each family."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor, nn

from .._evaluation import in_usual_mode
from .._progress import track
from .._result import Result
from .._words import counted
from ..matching.same import SAME, Match
from ..symmetry.action import tensors_of
from .after_matching import FEWEST
from .comparable import Compared, compared
from .descent import Merge, direction, merges
from .in_place import checked
from .lineage_result import power_of_ten
from .relatives import COPY, FIRM, Distances, Link, Pair, States, aligned_links, ends, families_of, kin, moved_copies

if TYPE_CHECKING:
    from ..symmetry import Symmetry


_WEIGHTS = 256  # of every tensor


def sketch(names: Sequence[str], state: Mapping[str, Tensor], side: str) -> dict[str, Tensor]:
    """Weights at random places that depend on a tensor's name and shape alone, centred, of norm 1.

    Args:
        names: Tensors to look at.
        state: Tensors of one network, read one at a time; those that are missing are left out.
        side: What to call the network in messages.
    """
    found = {}
    for name in names:
        if name not in state or state[name].numel() < 2:
            continue
        x = checked(state[name], name, side)
        g = torch.Generator().manual_seed(crc32(f"{name} {tuple(x.shape)}".encode()))
        places = torch.randint(x.numel(), (_WEIGHTS,), generator=g).unique() if x.numel() > _WEIGHTS else slice(None)
        picked = x.flatten()[places].double()
        picked = picked - picked.mean()
        if float(picked.norm()) > 0:
            found[name] = picked / picked.norm()
    return found


def sketch_scores(sketches: Sequence[Mapping[str, Tensor]], shapes: Sequence[Mapping[str, tuple[int, ...]]]) -> Tensor:
    """Likeness of all pairs in standard deviations of unrelated weights, ``(N, N)``; ``-inf`` on the diagonal.

    Tensors that a pair does not share in one shape are left out. The largest tensor-wise mean counts, so that a pair
    that shares a few tensors only is found as well.
    """
    count = len(sketches)
    total, weight, best = (torch.zeros(count, count, dtype=torch.float64) for _ in range(3))
    for name in dict.fromkeys(n for s in sketches for n in s):
        holders: dict[tuple[int, ...], list[int]] = {}
        for k, s in enumerate(sketches):
            if name in s:
                holders.setdefault(shapes[k][name], []).append(k)
        for rows in holders.values():
            x = torch.stack([sketches[k][name] for k in rows])
            cosine = x @ x.mT * x.shape[-1] ** 0.5
            index = torch.tensor(rows)
            mesh = index[:, None], index[None, :]
            total[mesh] += cosine
            weight[mesh] += 1
            best[mesh] = torch.maximum(best[mesh], cosine - 2)  # the largest of many is larger
    return torch.maximum(total / weight.clamp_min(1).sqrt(), best).fill_diagonal_(-torch.inf)


_RATE = 0.001
_CLOSE = 2.0  # standard deviations of a sketch from which on a pair is tested: 2 % of strangers, and nearly all kin

_UNCALIBRATED = f"fewer than {FEWEST} other families tell how alike an independent network is once aligned to the other"
_BETWEEN = "{} lies between the other and a third network: a merge of them, or what they come from"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, repr=False)
class Tree(Result):
    """Families of related networks.

    Attributes:
        names: Names of the networks.
        log_p: Natural logarithm of every pair's p-value, row by row; NaN where a pair was not tested.
        families: Networks that are linked by their weights, largest family first; strangers are families of one.
        links: Branches: within a family, the tree of smallest distances; between two, the closest aligned networks.
        rate: Expected share of false ones among the pairs called related (Benjamini-Yekutieli, any dependence).
        related: Number of pairs called related.
        tested: Number of pairs that were tested exactly; the others' sketches are not alike.
        merges: Networks that hold weights of two others: merges of these, or what they come from.
        notes: Pairs that may be related, but not beyond doubt, those among them that stand in one family.
    """

    names: tuple[str, ...]
    log_p: tuple[tuple[float, ...], ...]
    families: tuple[tuple[str, ...], ...]
    links: tuple[Link, ...]
    rate: float
    related: int
    tested: int
    merges: tuple[Merge, ...] = ()
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """Families and their branches."""
        pairs = len(self.names) * (len(self.names) - 1) // 2
        head = (
            f"{counted(len(self.names), 'network')} in {counted(len(self.families), 'family')}: "
            f"{self.related} of {counted(pairs, 'pair')} related, {self.tested} tested exactly"
        )
        lines = []
        for family in self.families:
            own = [k for k in self.links if k.parent in family]
            alone = "alone" if any({k.parent, k.child} & {*family} for k in self.links) else "no relative"
            lines.append(
                f"{family[0]}: {alone}" if len(family) == 1 else f"family of {len(family)}: " + ", ".join(family)
            )
            for link in own:
                arrow = "->" if link.directed else "--"
                p = "" if link.log_p is None else f", p {power_of_ten(link.log_p)}"
                lines.append(f"  {link.parent} {arrow} {link.child}  distance {link.distance:.3f}{p}; {link.ground}")
        for m in self.merges:
            (a, b), (v, w) = m.parents, m.weights
            left = f"{m.residual:.1%} of their distance is left"
            lines.append(f"holds both: {m.child} = {v:.2f} {a} + {w:.2f} {b}  {m.told}; {left}")
        return "\n".join([head, *lines, *(f"note: {note}" for note in self.notes)])

    _columns = ("a", "b", "log10_p", "linked")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per pair that was tested."""
        links = {frozenset((k.parent, k.child)): k for k in self.links}
        return [
            {"a": a, "b": b, "log10_p": p / log(10), "linked": frozenset((a, b)) in links}
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names)
            if i < j and (p := self.log_p[i][j]) == p
        ]


@in_usual_mode
def lineage_tree(models: Mapping[str, nn.Module], example_inputs: Any, rate: float = _RATE) -> Tree:
    """Find families among networks of one architecture, from weights in place.

    Every network is read once for a sketch; pairs whose sketches are alike get the exact test, and the false discovery
    rate is controlled over all pairs. Networks of different families are then compared by numbers that the group leaves
    as they are; where these are near, the nearest two are matched. What then agrees number by number is a copy;
    otherwise at least four other families calibrate how much agreement means.

    Args:
        models: Networks by name.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        rate: Expected share of false ones among the pairs called related.

    Raises:
        ValueError: If there are fewer than two networks, or weights that cannot be compared.

    Examples:
        >>> import torch
        >>> import intertwine as iw
        >>> nets = {name: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)) for name in "abc"}
        >>> _ = nets["b"].load_state_dict({n: t.bfloat16() for n, t in nets["a"].state_dict().items()})
        >>> print(iw.lineage_tree(nets, torch.zeros(2, 8)))
        3 networks in 2 families: 1 of 3 pairs related, ...
        family of 2: a, b
          a -> b  distance 0.00..., p < 1e-...; its weights are the other's, rounded to half precision
        c: no relative
    """
    from ..symmetry import symmetries

    if len(models) < 2:
        raise ValueError(f"models must hold at least two networks. Got {len(models)}.")
    sym = symmetries(next(iter(models.values())), example_inputs)
    return tree_of_states({name: (sym, tensors_of(model)) for name, model in models.items()}, rate)


@in_usual_mode
def tree_of_states(states: States, rate: float = _RATE) -> Tree:
    """Find families among checkpoints, in memory or read tensor by tensor, of one architecture or several.

    Args:
        states: By name the symmetry of a network's architecture, and its tensors.
        rate: Expected share of false ones among the pairs called related.

    Raises:
        ValueError: If there are fewer than two networks, weights cannot be compared, or the rate is none.
    """
    names, count = tuple(states), len(states)
    if count < 2:
        raise ValueError(f"states must hold at least two networks. Got {count}.")
    if not 0 < rate < 1:
        raise ValueError(f"rate must be between 0 and 1. Got {rate}.")
    states = _of_one_symmetry(states)
    sketches = [sketch([*sym.layouts], state, name) for name, (sym, state) in track([*states.items()], "reading")]
    shapes = [{n: tuple(states[name][1][n].shape) for n in s} for name, s in zip(names, sketches)]
    scores = sketch_scores(sketches, shapes)
    every = [(i, j) for i in range(count) for j in range(i)]
    close = [(i, j) for i, j in every if float(scores[i, j]) > _CLOSE or _other_widths(shapes[i], shapes[j])]
    tests = {pair: _pair(states, names, pair).in_place() for pair in track(close, "testing")}
    found = {pair: test.log_p or 0.0 for pair, test in tests.items()}
    log_p = [[float("nan")] * count for _ in range(count)]
    for (i, j), p in found.items():
        log_p[i][j] = log_p[j][i] = p
    related = _discoveries(found, len(every), rate)
    sums = merges({name: state for name, (_, state) in states.items()}, *_named(related, names, states))
    distances = {pair: _distance(*_pair(states, names, pair).widths.cut()[1:]) for pair in related}
    scattered = [pair for pair in related if tests[pair].scattered]
    matches = {pair: _pair(states, names, pair).match() for pair in track(scattered, "matching")}
    near = {pair: match.residual for pair, match in matches.items() if match.residual <= FIRM}
    distances = {pair: min(gap, near.get(pair, gap)) for pair, gap in distances.items()}
    mixed = {frozenset((m.child, parent)) for m in sums for parent in m.parents}
    alike = {k: gap for k, gap in distances.items() if gap <= FIRM or {names[n] for n in k} in mixed}
    far = dict(kin(states, names, distances, alike, rate))
    alike |= {k: distances[k] for k in far}
    unsure = {frozenset(names[n] for n in k) for k, calibrated in far.items() if not calibrated}
    links = tuple(_doubted(_merged(link, sums), unsure) for link in _links(names, states, alike, found, matches))
    moved, notes = moved_copies(states, links, rate)
    notes = (*_doubts(links), *notes)
    links = (*links, *moved)
    families = families_of(names, ends(links))
    links = (*links, *aligned_links(names, distances, found, families))
    count = len({frozenset(pair) for pair in (*_named(related, names, states)[0], *ends(moved))})
    return Tree(names, tuple(map(tuple, log_p)), families, links, rate, count, len(found), sums, notes)


def _of_one_symmetry(states: States) -> States:
    """The networks, with one object for equal symmetries, such as those found for every folder by itself."""
    known: list[Symmetry] = []
    found = {}
    for name, (sym, state) in states.items():
        equal = (old for old in known if old.spaces == sym.spaces and old.layouts == sym.layouts)
        one = next(equal, sym)
        known += [one] if one is sym else []
        found[name] = one, state
    return found


def _pair(states: States, names: Sequence[str], pair: Pair) -> Compared:
    (sym, a), (_, b) = (states[names[k]] for k in pair)
    return compared(sym, a, b)


def _other_widths(x: Shapes, y: Shapes) -> bool:
    """Whether two networks have tensors of the same names, most of them in other shapes: no sketch compares them."""
    shared = x.keys() & y.keys()
    same = sum(x[n] == y[n] for n in shared)
    return 2 * len(shared) > max(len(x), len(y)) and 2 * same < len(shared)


def _named(related: Sequence[Pair], names: Sequence[str], states: States) -> tuple[set[frozenset[str]], list[str]]:
    """Pairs by name, and the tensors of all their networks."""
    tensors = dict.fromkeys(n for i, j in related for k in (i, j) for n in states[names[k]][0].layouts)
    return {frozenset((names[i], names[j])) for i, j in related}, [*tensors]


def _merged(link: Link, sums: Sequence[Merge]) -> Link:
    """The link with its ground where one of the two holds weights of the other and of a third: no direction is told."""
    for m in sums:
        for parent in m.parents:
            if {link.parent, link.child} == {parent, m.child}:
                return replace(link, directed=False, ground=_BETWEEN.format(m.child))
    return link


def _doubted(link: Link, unsure: Collection[frozenset[str]]) -> Link:
    """The link, marked where nothing calibrated it."""
    if frozenset((link.parent, link.child)) not in unsure:
        return link
    return replace(link, calibrated=False, ground=f"{link.ground}; not calibrated: {_UNCALIBRATED}")


def _doubts(links: Sequence[Link]) -> Iterator[str]:
    """A note on every link that nothing calibrated."""
    for k in links:
        if not k.calibrated:
            yield f"{k.parent} and {k.child} may be no relatives, though they stand in one family: {_UNCALIBRATED}"


def _discoveries(found: Distances, pairs: int, rate: float) -> list[Pair]:
    """Pairs that Benjamini and Yekutieli's procedure rejects, those that were not tested counted with ``p = 1``.

    Source: Y. Benjamini and D. Yekutieli, Annals of Statistics 29, 2001.
    """
    ranked = sorted(found, key=lambda pair: found[pair])
    share = log(rate) - log(sum(1 / k for k in range(1, pairs + 1)))
    passed = [k for k, pair in enumerate(ranked, 1) if found[pair] <= share + log(k / pairs)]
    return ranked[: max(passed, default=0)]


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    gap = left = right = 0.0
    for name in a:
        if name in b and a[name].shape == b[name].shape and a[name].is_floating_point():
            x, y = a[name].double(), b[name].double()
            gap, left, right = (t + float(z.square().sum()) for t, z in ((gap, x - y), (left, x), (right, y)))
    return gap**0.5 / max(left * right, 1e-300) ** 0.25


def _links(
    names: Sequence[str],
    states: States,
    distances: Distances,
    found: Distances,
    matches: Mapping[Pair, Match],
) -> tuple[Link, ...]:
    """The spanning forest of smallest distances (Kruskal), each branch with its direction where that can be told."""
    root = list(range(len(names)))

    def top(k: int) -> int:
        while root[k] != k:
            k = root[k]
        return k

    links = []
    for j, i in sorted(distances, key=lambda pair: distances[pair]):
        if top(i) == top(j):
            continue
        root[top(i)] = top(j)
        if (j, i) in matches and matches[j, i].verdict == SAME:
            links.append(Link(names[i], names[j], distances[j, i], None, directed=False, ground=COPY))
            continue
        a, b = states[names[i]][1], states[names[j]][1]
        shared = [n for n in states[names[i]][0].layouts if n in a and n in b and a[n].shape == b[n].shape]
        way, ground = direction(a, b, shared, (names[i], names[j]))
        parent, child = (names[j], names[i]) if way < 0 else (names[i], names[j])
        links.append(Link(parent, child, distances[j, i], found[j, i], way != 0, ground))
    return tuple(links)
