"""Two checkpoints made comparable: other names and layouts, another depth, another width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lgamma, log, prod
from typing import TYPE_CHECKING

from torch import Tensor

from .._io.lazy import LazyState
from .._words import counted
from ..matching.same import COMPONENT, RELATED, SAME, Match, decided
from ..symmetry.coupling import narrowed
from .changes.conversion_search import convert
from .changes.layers import block_of
from .changes.row_orders import Rows, view
from .in_place import InPlace, in_place
from .units import Widths, thinned, widths

if TYPE_CHECKING:
    from ..symmetry import Symmetry


Blocks = dict[str, dict[int, dict[str, str]]]  # stem -> number -> rest of the name -> name


@dataclass(frozen=True, eq=False)
class Renumbered:
    """Tensors of ``b`` under the names of ``a``, where blocks were dropped, repeated or renumbered."""

    state: Mapping[str, Tensor]
    # By tensor, the logarithm of the number of blocks that its block was compared with: what a p-value pays
    log_choices: Mapping[str, float]
    places: Sequence[str]  # In words, which block of ``b`` is compared with which of ``a``


def renumbered(names_of_a: Iterable[str], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Renumbered | None:
    """Put the blocks of ``b`` beside those of ``a`` that they are most like, where the two have other numbers of them.

    Args:
        names_of_a: Tensors to look for.
        a: Tensors of one network; they are read where the numbers of blocks differ only.
        b: Those of the other.

    Returns:
        ``b`` under the names of ``a``, or ``None`` where both have blocks of the same numbers.
    """
    ours, theirs = _blocks(names_of_a), _blocks(b)
    names = {n: n for n in b}
    log_choices, places = dict[str, float](), list[str]()
    for stem, mine in ours.items():
        other = theirs.get(stem, {})
        if len(mine) == len(other) or not mine or not other or max(len(mine), len(other)) < 2:
            continue
        for n in [n for block in other.values() for n in block.values()]:
            names.pop(n)
        pairs = []
        for i, block in mine.items():
            fits = {j: _likeness(a, b, block, c) for j, c in other.items() if _alike(a, b, block, c)}
            if not fits:
                continue
            j = max(fits, key=lambda k: fits[k])
            names.update({block[rest]: other[j][rest] for rest in block})
            log_choices.update(dict.fromkeys(block.values(), log(len(other))))
            pairs.append(f"{i} by {j}")
        places.append(f"blocks {stem or 'of the sequence'}: {', '.join(pairs)}")
    return Renumbered(LazyState.renamed(b, names), log_choices, places) if log_choices else None


def _blocks(names: Iterable[str]) -> Blocks:
    """Names by what stands before, in and after their first number."""
    found: Blocks = {}
    for name in names:
        pieces = name.split(".")
        k = next((k for k, piece in enumerate(pieces) if piece.isdigit()), None)
        if k is not None:
            stem, rest = ".".join(pieces[:k]), ".".join(pieces[k + 1 :])
            found.setdefault(stem, {}).setdefault(int(pieces[k]), {})[rest] = name
    return found


def _alike(a: Mapping[str, Tensor], b: Mapping[str, Tensor], x: dict[str, str], y: dict[str, str]) -> bool:
    return x.keys() <= y.keys() and all(a[x[rest]].shape == b[y[rest]].shape for rest in x)


def _likeness(a: Mapping[str, Tensor], b: Mapping[str, Tensor], x: dict[str, str], y: dict[str, str]) -> float:
    """Mean cosine of the matrices of two blocks."""
    cosines = []
    for rest, name in x.items():
        if a[name].ndim > 1:
            u, v = (t.flatten().double() for t in (a[name], b[y[rest]]))
            cosines.append(float(u @ v) / max(float(u.norm() * v.norm()), 1e-300))
    return sum(cosines) / max(len(cosines), 1)


_WAYS = 3  # to read a tensor as rows


@dataclass(frozen=True, eq=False)
class Converted:
    """``b`` under the names of ``a``.

    Attributes:
        state: Its tensors.
        log_choices: By tensor, the logarithm of the number of ways to make it that were open: what a p-value pays.
        note: In words.
    """

    state: Mapping[str, Tensor]
    log_choices: Mapping[str, float]
    note: str


def converted(names: Iterable[str], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Converted | None:
    """Find tensors of ``a`` that ``b`` lacks among those of ``b`` that ``a`` lacks, by what they hold, as in ``diff``.

    Args:
        names: Tensors to look for.
        a: Tensors of one network.
        b: Those of the other.

    Returns:
        ``None`` where nothing is looked for, or nothing found.
    """
    wanted, offered = [n for n in names if n not in b], [n for n in b if n not in a]
    found = convert(a, b, wanted, offered).found if wanted and offered else {}
    if not found:
        return None
    sizes = Counter(b[n].numel() for n in offered)
    cost = {name: _log_choices(rows, b, sizes) for name, rows in found.items()}
    one, rows = next(iter(found.items()))
    shown = f"{one} from {' and '.join(dict.fromkeys(v.name for v in rows.views))}"
    note = f"names and layouts of b differ: {counted(len(found), 'tensor')} found by what they hold, such as {shown}"
    plain = {n: partial(b.__getitem__, n) for n in b}
    return Converted(LazyState(plain | {n: partial(rows.make, b) for n, rows in found.items()}), cost, note)


def _log_choices(rows: Rows, b: Mapping[str, Tensor], sizes: Mapping[int, int]) -> float:
    """Sources and ways to read them; where not all rows are taken, the rows: a regular grid of blocks, or any set."""
    size, count = prod(rows.shape), len(rows.views)
    ways = log(_WAYS) if len(rows.shape) > 1 else 0.0
    if rows.order is None and count == 1:
        return log(sizes[size]) + ways
    cost = count * (log(sum(sizes.values())) + ways) + ways
    if rows.order is None:
        return cost
    n, pool = len(rows.order), sum(view(b[v.name], v.how).shape[0] for v in rows.views)
    if _regular(rows.order):
        return cost + 3 * log(pool)
    return cost + n * log(count) + lgamma(pool + 1) - lgamma(n + 1) - lgamma(pool - n + 1) + log(2 * pool)


def _regular(order: Tensor) -> bool:
    """Whether rows are blocks of one size at one distance, such as the queries of all heads."""
    starts = [0, *((order.diff() != 1).nonzero().flatten() + 1).tolist()]
    size = len(order) / len(starts)
    even = all(start == k * size for k, start in enumerate(starts))
    return even and len(order[starts].diff().unique()) <= 1


_WHOLE = 4 * COMPONENT  # weights up to which networks are matched whole; larger ones component by component


@dataclass(frozen=True, eq=False)
class Compared:
    """Two networks, the second under the names of the first.

    Attributes:
        names: Tensors that the symmetry describes and the first network has.
        widths: Their tensors, and the units of every space in each.
        log_choices: By tensor, what its p-value pays for the choice of what it is compared with.
        log_cost: What the p-value over all spaces pays.
        notes: In words, which blocks and spaces are of another size, and which tensors have other names.
    """

    names: tuple[str, ...]
    widths: Widths
    log_choices: Mapping[str, float]
    log_cost: float
    notes: tuple[str, ...]

    @property
    def common(self) -> list[str]:
        """Tensors that both have in one shape."""
        a, b = self.widths.a, self.widths.b
        return [n for n in self.widths.sym.layouts if n in a and n in b and a[n].shape == b[n].shape]

    def in_place(self) -> InPlace:
        """The exact test; its p-values pay for the choice of partners (Bonferroni over all choices)."""
        found = in_place(*self.widths.cut())
        if not self.log_choices:
            return found
        tensors = tuple(
            t if t.log_p is None else replace(t, log_p=min(t.log_p + self.log_choices.get(t.tensor, 0.0), 0.0))
            for t in found.tensors
        )
        log_p = None if found.log_p is None else min(found.log_p + self.log_cost, 0.0)
        return replace(found, tensors=tensors, log_p=log_p)

    def padded(self) -> tuple[Symmetry, Mapping[str, Tensor], Mapping[str, Tensor], int | None]:
        """What is matched over the group, and how many weights at once: the symmetry, both networks, the limit."""
        sym, a, b = self.widths.padded()
        sym = narrowed(sym, [n for n in sym.layouts if n in a and n in b])
        large = sum(a[n].numel() for n in sym.layouts) > _WHOLE
        return sym, a, b, COMPONENT if large else None

    def agrees(self, match: Match) -> bool:
        """Whether all weights agree once matched, or all but those of fewer than half of the matrices."""
        matrices = [n for n, layout in self.padded()[0].layouts.items() if len(layout.axes) > 1]
        few = 2 * sum(n in match.differing for n in matrices) < len(matrices)
        return match.verdict == SAME or (match.verdict == RELATED and few)

    def match(self) -> Match:
        """The verdict of ``same`` on the weights."""
        sym, a, b, limit = self.padded()
        return decided(sym, (a, b), limit, {}, None)


def compared(
    sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], most: Mapping[str, int] | None = None
) -> Compared:
    """Put two checkpoints side by side.

    Args:
        sym: The symmetry of the architecture.
        a: Tensors of one network, read when they are needed.
        b: Those of the other.
        most: Largest numbers of units that ``b`` may keep, by space: what the network has that it stands in for.
    """
    names = tuple(n for n in sym.layouts if n in a)
    notes: tuple[str, ...] = ()
    choices: dict[str, float] = {}
    cost = 0.0
    if (relaid := converted(names, a, b)) is not None:
        b, notes, choices = relaid.state, (relaid.note,), {**relaid.log_choices}
        cost = sum(choices.values())
    if (other := renumbered(names, a, b)) is not None:
        b, notes = other.state, (*notes, *(f"of another depth, {place} of b" for place in other.places))
        choices = {n: choices.get(n, 0.0) + other.log_choices.get(n, 0.0) for n in {*choices, *other.log_choices}}
        cost += sum({block_of(n): c for n, c in other.log_choices.items()}.values())
    found = widths(sym, a, b if most is None else thinned(sym, b, most))
    return Compared(names, found, choices, cost, (*notes, *found.notes))
