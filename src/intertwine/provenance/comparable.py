"""Preparation of two checkpoints for comparison across names, layouts, depths and widths."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lgamma, log
from typing import Any

from torch import Tensor, nn

from .._io.lazy import LazyState, State
from .._words import counted
from ..matching.components import Pair
from ..matching.coordinates.networks import gauge_of, turning
from ..matching.correspondence.entries import converted
from ..matching.decision import decided
from ..matching.judgement.layers import stacks
from ..matching.judgement.verdict import RELATED, SAME, Match
from ..matching.same import COMPONENT
from ..symmetry import Symmetry, symmetries
from ..symmetry.action import moved, tensors_of
from ..symmetry.coupling import narrowed
from .changes.conversions import Rows, convert
from .changes.layers import block_of
from .in_place import InPlace, cosine, in_place
from .units import Widths, thinned, widths

States = Mapping[str, tuple[Symmetry, State]]
Found = tuple[State, dict[str, float], list[str]]
"""``b`` under the names of ``a``; by tensor, the logarithm of the number of possible choices, for which a p-value
pays; and the steps, in words."""


def on_host(state: State) -> State:
    """Tensors on the CPU, where units are compared; each is moved when it is read."""
    return LazyState.changed(state, lambda _, x: x if x.is_meta else x.cpu())


def _renumbered(names: Iterable[str], a: State, b: State) -> Found:
    """The blocks of ``b`` paired with the most similar ones of ``a``, if their numbers of blocks differ."""
    theirs, table = stacks(b), {n: n for n in b}
    choices, notes = dict[str, float](), list[str]()
    for stem, mine in stacks(names).items():
        other = theirs.get(stem, {})
        if len(mine) == len(other) or not other or max(len(mine), len(other)) < 2:
            continue
        for name in (n for block in other.values() for n in block.values()):
            table.pop(name)
        pairs = []
        for i, block in mine.items():
            alike = {j: _likeness(a, b, block, c) for j, c in other.items()}
            if fits := {j: x for j, x in alike.items() if x is not None}:
                j = max(fits, key=lambda k: fits[k])
                table.update({block[rest]: other[j][rest] for rest in block})
                choices.update(dict.fromkeys(block.values(), log(len(other))))
                pairs.append(f"{i} by {j}")
        notes.append(f"of another depth, blocks {stem.rstrip('.') or 'of the sequence'}: {', '.join(pairs)} of b")
    return (LazyState.renamed(b, table), choices, notes) if choices else (b, {}, [])


def _likeness(a: State, b: State, x: dict[str, str], y: dict[str, str]) -> float | None:
    """Mean cosine of the matrices of two blocks; ``None`` if their tensors differ."""
    if not (x.keys() <= y.keys() and all(a[x[rest]].shape == b[y[rest]].shape for rest in x)):
        return None
    pairs = [(a[name], b[y[rest]]) for rest, name in x.items() if a[name].ndim > 1]
    return sum(cosine(u, v) for u, v in pairs) / max(len(pairs), 1)


_WAYS = 3  # ways to read a tensor as rows


def _converted(names: Iterable[str], a: State, b: State) -> Found:
    """Tensors of ``a`` that ``b`` lacks, found by content among those of ``b`` that ``a`` lacks, as in ``diff``."""
    offered = dict.fromkeys(n for n in b if n not in a)
    done = convert(a, b, {n: offered for n in names if n not in b and offered})
    entries = done.entries
    if not entries:
        return b, {}, []
    sizes = Counter(b[n].numel() for n in offered)
    cost = {name: _log_choices(rows, a[name], sizes) for name, rows in done.found.items()}
    one, some = next(iter(entries.items()))
    shown = f"{one} from {' and '.join(dict.fromkeys(e.b.name for e in some))}"
    note = f"names and layouts of b differ: {counted(len(entries), 'tensor')} found by what they hold, such as {shown}"
    return converted(b, entries, b), cost, [note]


def _log_choices(some: Sequence[Rows], x: Tensor, sizes: Mapping[int, int]) -> float:
    """Log count of choices: sources, readings and, if not all rows are used, rows (a regular grid or any set)."""
    count = len({rows.source for rows in some})
    ways = log(_WAYS) if x.ndim > 1 else 0.0
    if len(some) == 1 and some[0].whole:
        return log(sizes[x.numel()]) + ways
    cost = count * (log(sum(sizes.values())) + ways) + ways
    if x.ndim < 2 or all(rows.whole for rows in some):  # a vector has the rows of its matrix
        return cost
    n, pool = some[0].sizes[0], sum({rows.source: rows.sizes[1] for rows in some}.values())
    if len(some) == count:
        return cost + 3 * log(pool)
    return cost + n * log(count) + lgamma(pool + 1) - lgamma(n + 1) - lgamma(pool - n + 1) + log(2 * pool)


_WHOLE = 4 * COMPONENT  # most weights for matching whole networks; larger ones are matched by components


@dataclass(frozen=True, eq=False)
class Compared:
    """Two networks, the second under the names of the first."""

    names: tuple[str, ...]  # Tensors described by the symmetry that the first network has
    widths: Widths  # The tensors of both, and the units of every space in each
    log_choices: Mapping[str, float]  # By tensor: the price in its p-value for the choice of its partner
    log_cost: float  # The price in the p-value over all spaces
    notes: tuple[str, ...]  # Differences of depth, width and tensor names, in words

    @property
    def common(self) -> list[str]:
        """Tensors that both have, in one shape."""
        a, b = self.widths.a, self.widths.b
        return [n for n in self.widths.sym.layouts if n in a and n in b and a[n].shape == b[n].shape]

    def in_place(self) -> InPlace:
        """The exact test, with p-values corrected for the choice of partners (Bonferroni over all choices)."""
        found = in_place(*self.widths.cut())
        cost = lambda t: None if t.log_p is None else min(t.log_p + self.log_choices.get(t.tensor, 0.0), 0.0)
        whole = {*self.common}  # others agree at most over the units that both have
        tensors = tuple(replace(t, equal=t.equal and t.tensor in whole, log_p=cost(t)) for t in found.tensors)
        log_p = None if found.log_p is None else min(found.log_p + self.log_cost, 0.0)
        return replace(found, tensors=tensors, log_p=log_p)

    def padded(self) -> Pair:
        """The pair to match over the group: padded with zeros for missing units, and by components if large."""
        sym, a, b = self.widths.padded()
        sym = narrowed(sym, [n for n in sym.layouts if n in a and n in b])
        large = sum(a[n].numel() for n in sym.layouts) > _WHOLE
        return Pair(sym, a, b, COMPONENT if large else None)

    def agrees(self, match: Match) -> bool:
        """Whether all weights agree once matched, except those of fewer than half of the matrices."""
        matrices = [n for n, layout in self.padded().sym.layouts.items() if len(layout.axes) > 1]
        few = 2 * sum(n in match.differing for n in matrices) < len(matrices)
        return match.verdict == SAME or (match.verdict == RELATED and few)

    def match(self) -> Match:
        """The verdict of ``same`` on the weights."""
        return decided(self.padded())


def compared(sym: Symmetry, a: State, b: State, most: Mapping[str, int] | None = None) -> Compared:
    """Prepare two checkpoints for comparison, reading tensors on demand.

    ``most`` limits the units of ``b`` by space: to those of the network that it stands in for.
    """
    names = tuple(n for n in sym.layouts if n in a)
    b, ways, notes = _converted(names, a, b)
    b, places, more = _renumbered(names, a, b)
    found = widths(sym, a, b if most is None else thinned(sym, b, most))
    choices = {n: ways.get(n, 0.0) + places.get(n, 0.0) for n in {**ways, **places}}
    cost = sum(ways.values()) + sum({block_of(n): c for n, c in places.items()}.values())
    return Compared(names, found, choices, cost, (*notes, *more, *found.notes))


def met(sym: Symmetry, a: State, b: State) -> tuple[Symmetry, State]:
    """The first of two folded networks, streams rotated until embeddings agree: their units then have no places."""
    g = turning(sym, a, b)[0]
    fitted = {name for name, element in g.elements.items() if element.linear is not None}
    spaces = (replace(s, group=s.group.reduced(permutes=False)) if s.name in fitted else s for s in sym.spaces)
    return replace(sym, spaces=tuple(spaces)), {**a, **moved(sym, g, a)}


def in_one_gauge(models: Mapping[str, nn.Module], example_inputs: Any) -> States:
    """Networks of one architecture, folded so that streams may rotate, with their symmetry; empty if none may."""
    networks = [*models.values()]
    gauge = gauge_of(networks, example_inputs, symmetries(networks[0], example_inputs)) if networks else None
    return {name: (gauge.sym, on_host(tensors_of(gauge(model)))) for name, model in models.items()} if gauge else {}
