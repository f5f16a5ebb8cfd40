"""Comparable forms of two checkpoints: the same number of blocks, spaces of the same widths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from ..matching.same import COMPONENT, RELATED, SAME, Match, decided
from ..symmetry.coupling import narrowed
from .changes.layer_names import block_of
from .independence.in_place import InPlace, in_place
from .other_depths import renumbered
from .other_widths import Widths, thinned, widths
from .translated import converted

if TYPE_CHECKING:
    from ..symmetry import Symmetry

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
        b, notes = other, (*notes, *(f"of another depth, {place} of b" for place in other.places))
        choices = {n: choices.get(n, 0.0) + other.log_choices.get(n, 0.0) for n in {*choices, *other.log_choices}}
        cost += sum({block_of(n): c for n, c in other.log_choices.items()}.values())
    found = widths(sym, a, b if most is None else thinned(sym, b, most))
    return Compared(names, found, choices, cost, (*notes, *found.notes))
