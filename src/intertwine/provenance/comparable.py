"""Two checkpoints made comparable: another depth, another width."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import log

from torch import Tensor

from .._io.lazy import LazyState
from ..matching.decision import decided
from ..matching.judgement.verdict import RELATED, SAME, Match
from ..matching.same import COMPONENT
from ..symmetry import Symmetry
from ..symmetry.coupling import narrowed
from .changes.layers import block_of, stacks
from .in_place import Tested, cosine, in_place
from .units import Widths, thinned, widths


def _renumbered(
    names: Iterable[str], a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], dict[str, float], list[str]]:
    """The blocks of ``b`` beside those of ``a`` that they are most like, where the two have other numbers of them.

    With ``b`` under the names of ``a`` comes by tensor the logarithm of the number of choices that were open, which a
    p-value pays; and what was done, in words.
    """
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


def _likeness(a: Mapping[str, Tensor], b: Mapping[str, Tensor], x: dict[str, str], y: dict[str, str]) -> float | None:
    """Mean cosine of the matrices of two blocks; ``None`` where one has other tensors."""
    if not (x.keys() <= y.keys() and all(a[x[rest]].shape == b[y[rest]].shape for rest in x)):
        return None
    pairs = [(a[name], b[y[rest]]) for rest, name in x.items() if a[name].ndim > 1]
    return sum(cosine(u, v) for u, v in pairs) / max(len(pairs), 1)


_WHOLE = 4 * COMPONENT  # weights up to which networks are matched whole; larger ones component by component


@dataclass(frozen=True, eq=False)
class Compared:
    """Two networks, the second under the names of the first."""

    names: tuple[str, ...]  # Tensors that the symmetry describes and the first network has
    widths: Widths  # Their tensors, and the units of every space in each
    log_choices: Mapping[str, float]  # By tensor, what its p-value pays for the choice of what it is compared with
    log_cost: float  # What the p-value over all spaces pays
    notes: tuple[str, ...]  # In words, what is of another depth or width

    @property
    def common(self) -> list[str]:
        """Tensors that both have in one shape."""
        a, b = self.widths.a, self.widths.b
        return [n for n in self.widths.sym.layouts if n in a and n in b and a[n].shape == b[n].shape]

    def in_place(self) -> Tested:
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
    """Put two checkpoints side by side, read when they are needed.

    ``most`` are the largest numbers of units that ``b`` may keep, by space: what the network has that it stands in for.
    """
    names = tuple(n for n in sym.layouts if n in a)
    b, choices, notes = _renumbered(names, a, b)
    found = widths(sym, a, b if most is None else thinned(sym, b, most))
    cost = sum({block_of(n): c for n, c in choices.items()}.values())
    return Compared(names, found, choices, cost, (*notes, *found.notes))
