"""Branches between networks, and the families that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from ...symmetry import Symmetry

_ALIGNED = "units in one order, weights far apart: much noise, or an independent network aligned to the other"

States = Mapping[str, "tuple[Symmetry, Mapping[str, Tensor]]"]
Pair = tuple[int, int]  # of networks, by number
Distances = Mapping[Pair, float]


@dataclass(frozen=True)
class Link:
    """A branch of a tree.

    Attributes:
        parent: One network; the one that the other was made from, where that can be told.
        child: The other.
        distance: ``|a - b|`` over the root of ``|a| |b|``, in place, or once matched.
        log_p: Natural logarithm of the p-value that they are independent; ``None`` where the weights agree number by
            number once matched.
        directed: Whether the weights rule out the reverse; that both come from a third network they never do.
        ground: How, or why not.
        aligned: Whether the units stand in one order, and the weights are far apart. Such a link joins no families.
        calibrated: Whether the weights are close, or other families told how close strangers come once aligned. Where
            too few could, the distance alone joins the two, and they may be no relatives.
    """

    parent: str
    child: str
    distance: float
    log_p: float | None
    directed: bool
    ground: str
    aligned: bool = False
    calibrated: bool = True


def ends(links: Iterable[Link]) -> list[tuple[str, str]]:
    """The two networks of every link."""
    return [(k.parent, k.child) for k in links]


def homes(families: Sequence[Sequence[str]]) -> dict[str, int]:
    """The number of the family of every network."""
    return {name: k for k, family in enumerate(families) for name in family}


def families_of(names: Sequence[str], links: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Networks that links join, the largest family first."""
    family = {name: [name] for name in names}
    for a, b in links:
        joined = family[a] + [n for n in family[b] if n not in family[a]]
        for name in joined:
            family[name] = joined
    unique = {id(members): members for members in family.values()}.values()
    return tuple(tuple(sorted(m, key=list(names).index)) for m in sorted(unique, key=lambda m: -len(m)))


def aligned_links(
    names: Sequence[str],
    distances: Distances,
    found: Distances,
    families: Sequence[Sequence[str]],
) -> Iterable[Link]:
    """For every two families whose units stand in one order the closest networks."""
    home = homes(families)
    closest: dict[frozenset[int], Link] = {}
    for pair in sorted(distances, key=lambda pair: distances[pair]):
        a, b = (names[k] for k in reversed(pair))
        if home[a] != home[b]:
            link = Link(a, b, distances[pair], found[pair], directed=False, ground=_ALIGNED, aligned=True)
            closest.setdefault(frozenset((home[a], home[b])), link)
    return closest.values()
