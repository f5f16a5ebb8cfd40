"""Families of many checkpoints: which of them descend from common weights, and a tree of each family."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, log, nan
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from .._evaluation import in_usual_mode, unmasked
from .._io.lazy import State
from .._nested import by_key
from .._progress import track
from .._result import Result
from .._words import check_share, counted, first_line
from ..matching.judgement.verdict import SAME, Match
from ..symmetry import Symmetry, symmetries
from ..symmetry.action import tensors_of
from .after_matching import FEWEST
from .comparable import States, compared, in_one_gauge, on_host
from .descent import Merge, direction, merges
from .in_place import checked
from .p_values import power_of_ten
from .relatives import COPY, FIRM, Distances, Link, Pair, aligned_links, ends, forest, kin, moved_copies

_WEIGHTS = 256  # sampled from every tensor


def sketch(names: Sequence[str], state: State, side: str) -> dict[str, Tensor]:
    """Weights at random places that depend only on a tensor's name and shape, centred and of norm 1.

    Tensors that the network (called ``side`` in messages) lacks, and single numbers, are left out.
    """
    found = {}
    for name in (n for n in names if n in state):
        x = checked(state[name], name, side)
        g = torch.Generator().manual_seed(crc32(f"{name} {tuple(x.shape)}".encode()))
        places = torch.randint(x.numel(), (_WEIGHTS,), generator=g).unique() if x.numel() > _WEIGHTS else slice(None)
        picked = x.flatten()[places].double()
        picked = picked - picked.mean()
        if float(picked.norm()) > 0:
            found[name] = picked / picked.norm()
    return found


def sketch_scores(sketches: Sequence[Mapping[str, Tensor]], shapes: Sequence[Mapping[str, tuple[int, ...]]]) -> Tensor:
    """Similarity of all pairs in standard deviations of unrelated weights, ``(N, N)``; ``-inf`` on the diagonal.

    Tensors that a pair does not share in one shape are left out. The largest mean over tensors counts, so that a pair
    that shares only a few tensors is found as well.
    """
    count = len(sketches)
    total, weight, best = (torch.zeros(count, count, dtype=torch.float64) for _ in range(3))
    for name in dict.fromkeys(n for s in sketches for n in s):
        for rows in by_key((shapes[k][name], k) for k, s in enumerate(sketches) if name in s).values():
            x = torch.stack([sketches[k][name] for k in rows])
            cosine = x @ x.mT * x.shape[-1] ** 0.5
            index = torch.tensor(rows)
            mesh = index[:, None], index[None, :]
            total[mesh] += cosine
            weight[mesh] += 1
            best[mesh] = torch.maximum(best[mesh], cosine - 2)  # corrected for the maximum of many
    return torch.maximum(total / weight.clamp_min(1).sqrt(), best).fill_diagonal_(-torch.inf)


_RATE = 0.001
_CLOSE = 2.0  # standard deviations of a sketch above which a pair is tested: 2 % of strangers, and nearly all relatives

_UNCALIBRATED = f"fewer than {FEWEST} other families tell how alike an independent network is once aligned to the other"
_BETWEEN = "{} lies between the other and a third network: a merge of them, or what they come from"


@dataclass(frozen=True, repr=False)
class Tree(Result):
    """Families of related networks.

    Attributes:
        names: Names of the networks whose weights can be compared.
        log_p: Natural logarithm of every pair's p-value, row by row; NaN if a pair was not tested.
        families: Networks linked by their weights, largest family first; strangers are families of one.
        links: Branches: within a family, the tree of smallest distances; between two, the closest aligned networks.
        rate: Expected share of false positives among the pairs called related (Benjamini-Yekutieli, any dependence).
        related: Number of pairs called related.
        tested: Number of pairs tested exactly; the sketches of the others are not similar.
        merges: Networks that hold weights of two others: merges of these, or their common origin.
        notes: Networks that were left out, with the reason; and pairs that may be related, but not beyond doubt,
            including such pairs within one family.
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
        head = (
            f"{counted(len(self.names), 'network')} in {counted(len(self.families), 'family')}: "
            f"{self.related} of {counted(comb(len(self.names), 2), 'pair')} related, {self.tested} tested exactly"
        )
        lines = []
        for family in self.families:
            alone = "alone" if any({k.parent, k.child} & {*family} for k in self.links) else "no relative"
            several = f"family of {len(family)}: {', '.join(family)}"
            lines.append(several if len(family) > 1 else f"{family[0]}: {alone}")
            for link in (k for k in self.links if k.parent in family):
                arrow = "->" if link.directed else "--"
                p = "" if link.log_p is None else f", p {power_of_ten(link.log_p)}"
                lines.append(f"  {link.parent} {arrow} {link.child}  distance {link.distance:.3f}{p}; {link.ground}")
        for m in self.merges:
            lines.append(f"holds both: {m.child} = {m.sum}  {m.told}; {m.residual:.1%} of their distance is left")
        return "\n".join([head, *lines, *(f"note: {note}" for note in self.notes)])

    _columns = ("a", "b", "log10_p", "linked")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per tested pair."""
        links = {frozenset((k.parent, k.child)): k for k in self.links}
        return [
            {"a": a, "b": b, "log10_p": p / log(10), "linked": frozenset((a, b)) in links}
            for (i, a), (j, b) in combinations(enumerate(self.names), 2)
            if (p := self.log_p[i][j]) == p
        ]


@in_usual_mode
def lineage_tree(models: Mapping[str, nn.Module], example_inputs: Any, rate: float = _RATE) -> Tree:
    """Find families among networks of one architecture, from weights in place.

    Every network is read once for a sketch. Pairs with similar sketches get the exact test, and the false discovery
    rate is controlled over all pairs. Networks of different families are then compared by invariants of the group; if
    these are near, the nearest two are matched. If the weights then agree number by number, one is a copy; otherwise at
    least four other families calibrate how much agreement means. Of the remaining families, the first members are
    compared once more with norms folded, if streams may rotate.

    Args:
        models: Networks by name.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        rate: Expected share of false positives among the pairs called related.

    Raises:
        ValueError: If there are fewer than two networks whose weights can be compared.

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
    if len(models) < 2:
        raise ValueError(f"models must hold at least two networks. Got {len(models)}.")
    models = {name: unmasked(model) for name, model in models.items()}
    sym = symmetries(next(iter(models.values())), example_inputs)
    folded = lambda names: in_one_gauge({name: models[name] for name in names}, example_inputs)
    return tree_of_states({name: (sym, tensors_of(model)) for name, model in models.items()}, rate, folded)


@in_usual_mode
def tree_of_states(
    states: States, rate: float = _RATE, folded: Callable[[Sequence[str]], States] = lambda _: {}
) -> Tree:
    """Find families among checkpoints, in memory or read tensor by tensor, of one architecture or several.

    Args:
        states: By name: the symmetry of a network's architecture, and its tensors.
        rate: Expected share of false positives among the pairs called related.
        folded: Returns networks of one symmetry, by name, with norms folded so that streams may rotate
            (``in_one_gauge``); with it, rotated networks are found, testing the first of every family.

    Raises:
        ValueError: If there are fewer than two networks whose weights can be compared, or the rate is invalid.
    """
    if len(states) < 2:
        raise ValueError(f"states must hold at least two networks. Got {len(states)}.")
    check_share("rate", rate)
    states = {name: (sym, on_host(unmasked(state))) for name, (sym, state) in states.items()}
    sketches, refused = dict[str, dict[str, Tensor]](), dict[str, ValueError]()
    for name, (sym, state) in track([*states.items()], "reading"):
        try:
            sketches[name] = sketch([*sym.layouts], state, name)
        except ValueError as error:
            refused[name] = error
            if len(states) - len(refused) < 2:
                raise
    names, states = tuple(sketches), _of_one_symmetry({name: states[name] for name in sketches})
    pairs = {(a, b): compared(*states[a], states[b][1]) for a, b in _close(states, sketches)}
    tests = {pair: both.in_place() for pair, both in track([*pairs.items()], "testing")}
    found = {pair: test.log_p or 0.0 for pair, test in tests.items()}
    related = _discoveries(found, comb(len(names), 2), rate)
    tensors = dict.fromkeys(n for pair in related for k in pair for n in states[k][0].layouts)
    sums = merges({name: state for name, (_, state) in states.items()}, {*map(frozenset, related)}, [*tensors])
    distances = {pair: _distance(*pairs[pair].widths.cut()[1:]) for pair in related}
    scattered = [pair for pair in related if tests[pair].scattered]
    matches = {pair: pairs[pair].match() for pair in track(scattered, "matching")}
    distances |= {k: min(distances[k], match.residual) for k, match in matches.items() if match.residual <= FIRM}
    mixed = {frozenset((m.child, parent)) for m in sums for parent in m.parents}
    alike = {k: gap for k, gap in distances.items() if gap <= FIRM or frozenset(k) in mixed}
    far = [*kin(states, distances, alike, rate, folded)]
    doubted = {k for k, _, sure in far if not sure}
    matches |= {k: match for k, match, _ in far if match is not None}
    alike |= {k: distances[k] if match is None else match.residual for k, match, _ in far}
    branches = forest(names, sorted(alike, key=lambda pair: alike[pair]))[0]
    links = tuple(_link(states, k, alike[k], found[k], matches.get(k), sums, k not in doubted) for k in branches)
    doubts = (
        f"{k.parent} and {k.child} may be no relatives, though they stand in one family: {_UNCALIBRATED}"
        for k in links
        if not k.calibrated
    )
    moved, notes = moved_copies(states, links, rate)
    families = forest(names, ends((*links, *moved)))[1]
    for heads in by_key((id(states[family[0]][0]), family[0]) for family in families).values():
        if len(heads) > 1:
            turned, more = moved_copies(folded(heads), (), rate)
            moved, notes = (*moved, *turned), (*notes, *more)
    links = (*links, *moved)
    families = forest(names, ends(links))[1]
    links = (*links, *aligned_links(distances, found, families))
    log_p = tuple(tuple(found.get((a, b), found.get((b, a), nan)) for b in names) for a in names)
    count = len({*map(frozenset, related), *map(frozenset, ends(moved))})
    left_out = (f"left out, {name}: {first_line(why)}" for name, why in refused.items())
    return Tree(names, log_p, families, links, rate, count, len(found), sums, (*left_out, *doubts, *notes))


def _close(states: States, sketches: Mapping[str, Mapping[str, Tensor]]) -> list[Pair]:
    """Pairs of networks whose sketches are similar, or that no sketch can compare."""
    shapes = {name: {n: tuple(states[name][1][n].shape) for n in found} for name, found in sketches.items()}
    scores = sketch_scores([*sketches.values()], [*shapes.values()])
    pairs = ((i, j, a, b) for i, a in enumerate(states) for j, b in enumerate(states) if j < i)
    return [(a, b) for i, j, a, b in pairs if scores[i, j] > _CLOSE or _other_widths(shapes[a], shapes[b])]


def _of_one_symmetry(states: States) -> States:
    """The networks, with one object for equal symmetries, such as those found separately for every folder."""
    found: dict[str, tuple[Symmetry, State]] = {}
    for name, (sym, state) in states.items():
        equal = (old for old, _ in found.values() if old.spaces == sym.spaces and old.layouts == sym.layouts)
        found[name] = next(equal, sym), state
    return found


def _other_widths(x: Mapping[str, tuple[int, ...]], y: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether two networks have the same tensor names but mostly other shapes, so that no sketch compares them."""
    shared = x.keys() & y.keys()
    same = sum(x[n] == y[n] for n in shared)
    return 2 * len(shared) > max(len(x), len(y)) and 2 * same < len(shared)


def _discoveries(found: Distances, pairs: int, rate: float) -> list[Pair]:
    """Pairs rejected by the procedure of Benjamini and Yekutieli, with ``p = 1`` for untested pairs.

    Source: Y. Benjamini and D. Yekutieli, Annals of Statistics 29, 2001.
    """
    ranked = sorted(found, key=lambda pair: found[pair])
    share = log(rate) - log(sum(1 / k for k in range(1, pairs + 1)))
    passed = [k for k, pair in enumerate(ranked, 1) if found[pair] <= share + log(k / pairs)]
    return ranked[: max(passed, default=0)]


def _distance(a: State, b: State) -> float:
    gap = left = right = 0.0
    for name in a:
        if name in b and a[name].shape == b[name].shape and a[name].is_floating_point():
            x, y = a[name].double(), b[name].double()
            gap, left, right = (t + float(z.square().sum()) for t, z in ((gap, x - y), (left, x), (right, y)))
    return gap**0.5 / max(left * right, 1e-300) ** 0.25


def _link(
    states: States, pair: Pair, gap: float, log_p: float | None, match: Match | None, sums: Sequence[Merge], sure: bool
) -> Link:
    """A branch, with its direction if that can be told, which fails if one of the two holds weights of a third."""
    child, parent = pair
    way, ground = 0, COPY
    if match is not None and match.verdict == SAME:
        log_p = None
    else:
        (sym, a), (_, b) = states[parent], states[child]
        shared = [n for n in sym.layouts if n in a and n in b and a[n].shape == b[n].shape]
        way, ground = direction(a, b, shared, (parent, child))
    if way < 0:
        parent, child = child, parent
    for m in sums:
        if m.child in pair and {*pair} - {m.child} <= {*m.parents}:
            way, ground = 0, _BETWEEN.format(m.child)
    if not sure:
        ground = f"{ground}; not calibrated: {_UNCALIBRATED}"
    return Link(parent, child, gap, log_p, way != 0, ground, calibrated=sure)
