"""Relatives among many networks: links, families, and copies in other coordinates."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from math import comb, inf, log
from statistics import median

import torch
from torch import Tensor

from .._io.lazy import State
from .._nested import by_key
from .._progress import track
from .._words import counted
from ..matching.coordinates.networks import Balanced
from ..matching.judgement.verdict import RELATED, SAME, Match
from ..symmetry import Symmetry
from ..symmetry.blocks import blocks
from ..symmetry.coupling import Joined, components, restricted
from ..symmetry.gauge.canonical import fold
from .after_matching import FEWEST, calibrated
from .comparable import Compared, States, compared, met
from .p_values import power_of_ten

_ALIGNED = "units in one order, weights far apart: much noise, or an independent network aligned to the other"

Pair = tuple[str, str]  # of networks, the later one first
Distances = Mapping[Pair, float]


@dataclass(frozen=True)
class Link:
    """A link between two networks, a branch of a tree.

    Attributes:
        parent: One network; the one that the other was made from, if that can be told.
        child: The other.
        distance: ``|a - b|`` over the root of ``|a| |b|``, in place or after matching.
        log_p: Natural logarithm of the p-value for their independence; ``None`` if the weights agree number by number
            after matching.
        directed: Whether the weights rule out the reverse; they never rule out that both come from a third network.
        ground: How they do so, or why not.
        aligned: Whether the units are in one order but the weights far apart. Such a link joins no families.
        calibrated: Whether the weights are close, or other families showed how close aligned strangers come. If there
            were too few, only the distance joins the two, and they may be no relatives.
    """

    parent: str
    child: str
    distance: float
    log_p: float | None
    directed: bool
    ground: str
    aligned: bool = False
    calibrated: bool = True


def ends(links: Iterable[Link]) -> list[Pair]:
    """The pair of networks of every link."""
    return [(k.parent, k.child) for k in links]


def homes(families: Iterable[Sequence[str]]) -> dict[str, int]:
    """The family number of every network."""
    return {name: k for k, family in enumerate(families) for name in family}


def forest(names: Iterable[str], pairs: Iterable[Pair]) -> tuple[list[Pair], tuple[tuple[str, ...], ...]]:
    """Those pairs that, taken in order, join two families (Kruskal); and the families, largest first."""
    together, kept = Joined(names), list[Pair]()
    for pair in pairs:
        if len(together.parts(pair)) == 2:
            kept.append(pair)
            together.join(pair)
    return kept, tuple(map(tuple, sorted(together.groups(), key=len, reverse=True)))


def first_of_families(pairs: Iterable[Pair], home: Mapping[str, int]) -> Iterator[Pair]:
    """The first pair, in order, for every two families."""
    seen = set[frozenset[int]]()
    for a, b in pairs:
        both = frozenset((home[a], home[b]))
        if len(both) == 2 and both not in seen:
            seen.add(both)
            yield a, b


def aligned_links(distances: Distances, found: Distances, families: Sequence[Sequence[str]]) -> Iterator[Link]:
    """The closest networks of every two families whose units are in one order."""
    for b, a in first_of_families(sorted(distances, key=lambda pair: distances[pair]), homes(families)):
        yield Link(a, b, distances[b, a], found[b, a], directed=False, ground=_ALIGNED, aligned=True)


_TURNED = "units in place, once streams are rotated until embeddings meet"
COPY = "a copy, moved by an element of the group"
FIRM = 0.5  # distance up to which a match shows descent, and one network can represent the other
_APART = 0.85  # distance in place, about 50 degrees, from which weights count as far apart
_NEAR = 0.5  # times the median gap of all pairs: bound on the gap between invariants of copies
_WORTH = 0.01  # p-value below which a matched pair gets a note
_CALIBRATE = 12  # most networks of other families
_COMPONENT = 16_000_000  # weights balanced at once
_POWERS = 4


def kin(
    states: States, distances: Distances, alike: Distances, rate: float, folded: Callable[[Sequence[str]], States]
) -> Iterator[tuple[Pair, Match | None, bool]]:
    """Pairs, among those far apart in place, that are more than independent networks aligned to each other.

    Their weights are close after rotating streams or, after matching, more similar than those of other families; with
    too few families, the distance decides. Each pair comes with its match with rotated streams, and whether it is sure.
    """
    families = forest(states, alike)[1]
    home = homes(families)
    for a, b in first_of_families(sorted(distances.keys() - alike.keys(), key=lambda pair: distances[pair]), home):
        turned = folded((a, b)) if states[a][0] is states[b][0] else {}
        match = _met(turned, a, b).match() if turned else None
        if match is not None and match.residual <= FIRM:
            yield (a, b), match, True
            continue
        sym, state = states[a]
        heads = [family[0] for k, family in enumerate(families) if k not in (home[a], home[b])]
        others = [states[head][1] for head in heads if states[head][0] is sym]
        if len(others) < FEWEST:
            close = distances[a, b] <= _APART
        else:
            together = compared(sym, state, states[b][1])
            close = calibrated(sym, state, together, others[:_CALIBRATE]).log_p <= log(rate)
        if close:
            yield (a, b), None, len(others) >= FEWEST


def moved_copies(states: States, links: Sequence[Link], rate: float) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """Links between families whose networks agree after matching over the group; and notes where they nearly do."""
    level = rate / max(comb(len(states), 2), 1)  # the nearest of all pairs are examined
    found: list[Link] = []
    for members in by_key((id(sym), name) for name, (sym, _) in states.items()).values():
        found += _matched(states, members, [*links, *found], level)
    sure = tuple(k for k in found if k.log_p is None or k.log_p <= log(level))
    notes = (
        f"{k.parent} and {k.child} may be related, {k.ground} at p {power_of_ten(k.log_p or 0.0)}, no proof "
        "among so many pairs: test the two alone, with more independent networks"
        for k in found
        if k not in sure
    )
    return sure, tuple(notes)


def _matched(states: States, members: Sequence[str], links: Sequence[Link], level: float) -> Iterator[Link]:
    """Links of networks of one symmetry, between the nearest networks, by invariants, of every two families.

    Copies come first: the pairs that remain apart then calibrate how near others are. If streams were rotated, the test
    in place is exact for all other units.
    """
    sym, home = states[members[0]][0], homes(forest(states, ends(links))[1])
    if len({home[m] for m in members}) < 2:
        return
    numbers = {m: _invariants(sym, states[m][1]) for m in track(members, "balancing")}
    chosen = first_of_families(_closest_pairs(numbers, home), home)
    pairs = {(a, b): _met(states, a, b) for a, b in chosen}
    matches = {both: pair.match() for both, pair in track([*pairs.items()], "matching")}
    copies = [
        Link(*both, match.residual, None, directed=False, ground=COPY if match.verdict == SAME else match.reason)
        for both, match in matches.items()
        if pairs[both].agrees(match)
    ]
    yield from copies
    home, turned = homes(forest(states, ends([*links, *copies]))[1]), any(s.group.is_orthogonal for s in sym.spaces)
    for (a, b), match in matches.items():
        others = {home[m]: states[m][1] for m in reversed(members) if home[m] not in (home[a], home[b])}
        if turned and home[a] != home[b] and match.residual <= FIRM:
            log_p = pairs[a, b].in_place().log_p
            if log_p is not None and log_p <= log(level):
                yield Link(a, b, match.residual, log_p, directed=False, ground=_TURNED)
                continue
        if match.verdict != RELATED or home[a] == home[b] or len(others) < FEWEST:
            continue
        some = [*others.values()][:_CALIBRATE]
        found = calibrated(sym, states[a][1], pairs[a, b], some, match.transformation)
        if found.log_p <= log(_WORTH):
            whose = "other families, if all were trained alike"
            ground = f"matched: beyond {counted(len(found.independent), 'independent network')} of the {whose}"
            yield Link(a, b, match.residual, found.log_p, directed=False, ground=ground)


def _met(states: States, a: str, b: str) -> Compared:
    """Two networks of one symmetry, prepared for comparison, with their rotatable streams aligned."""
    sym, second = states[b]
    return compared(*met(sym, states[a][1], second), second)


def _invariants(sym: Symmetry, state: State) -> dict[str, Tensor]:
    """``log tr(X Xᵀ)^k / k`` for ``k = 1, ..., 4`` for every block of every tensor, in balanced coordinates.

    Permutations, signs and rotations of units do not change them, and balancing removes the scales.
    """
    part = compared(sym, state, state).padded().sym
    found = {}
    for names in components(part, _COMPONENT).names:
        here = restricted(part, names) if len(names) < len(part.layouts) else part
        normal = Balanced.normal(fold(here, {n: state[n] for n in here.layouts}, torch.float32))
        for name, layout in normal.sym.layouts.items():
            for k, block in enumerate(blocks(layout)):
                x = block.read(normal.state[name]).double()
                x = x.flatten(1) if x.ndim > 1 else x[:, None]
                x = x if x.shape[0] <= x.shape[1] else x.mT
                if block.carried and bool(x.any()):
                    powers = accumulate([x @ x.mT] * _POWERS, torch.matmul)
                    traces = [power.trace().clamp_min(1e-300).log() / n for n, power in enumerate(powers, 1)]
                    found[f"{name} {k}"] = torch.stack(traces)
    return found


def _closest_pairs(found: Mapping[str, Mapping[str, Tensor]], home: Mapping[str, int]) -> list[Pair]:
    """Pairs between families that are nearer than half the median of all such pairs, nearest first.

    With three families or fewer there is no meaningful median, and all pairs count.
    """
    gaps: dict[Pair, float] = {}
    for (a, x), (b, y) in combinations(found.items(), 2):
        names = [n for n in x if n in y and x[n].shape == y[n].shape]
        if home[a] != home[b] and names:
            gaps[a, b] = sum(float((x[n] - y[n]).abs().mean()) for n in names) / len(names)
    most = _NEAR * median(gaps.values()) if len({home[m] for m in found}) > 3 and gaps else inf
    return sorted((pair for pair, gap in gaps.items() if gap <= most), key=lambda pair: gaps[pair])
