"""How many units of the axes of a network move, and why the others stay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import intertwine as iw

__all__ = ["expected", "fixed_units", "moved_units", "short"]

# axes that no symmetry of hidden units could move
EXPECTED = ("input", "output", "convolution kernel", "size n", "size 1", "vocabulary", "looked up")


def expected(reason: str) -> bool:
    """Whether axes fixed for this reason are no hidden units."""
    return reason.startswith(EXPECTED)


def moved_units(sym: iw.Symmetry) -> int:
    """Units of all axes of all tensors that move."""
    return sum(leaf.size for _, leaf in _leaves(sym) if isinstance(leaf, iw.symmetry.Leaf))


def fixed_units(sym: iw.Symmetry) -> dict[str, int]:
    """Units of all axes of all tensors that stay, by reason, the largest first."""
    counts: Counter[str] = Counter()
    for _, leaf in _leaves(sym):
        if isinstance(leaf, iw.symmetry.Fixed):
            counts[short(leaf.reason)] += leaf.size
    return dict(counts.most_common())


def short(reason: str) -> str:
    """A reason without the place in the network, so that alike reasons are counted together."""
    reason = re.sub(r"\b(in|of) \w+(\.\w+)+|\bin \w+(?=$|[;,:)])", "", reason)
    reason = re.sub(r"'[^']*'|\"[^\"]*\"", "...", reason)
    reason = re.sub(r"^\S+\.\S+ may read", "another tensor may read", reason)
    return re.sub(r"\b\d+\b", "n", " ".join(reason.split()))


def _leaves(sym: iw.Symmetry) -> Iterator[tuple[str, iw.symmetry.Leaf | iw.symmetry.Fixed]]:
    for name, layout in sym.layouts.items():
        for axis in layout.axes:
            for leaf in _inside(axis):
                yield name, leaf


def _inside(axis: iw.symmetry.Axis) -> Iterator[iw.symmetry.Leaf | iw.symmetry.Fixed]:
    if isinstance(axis, iw.symmetry.Product):
        for factor in axis.factors:
            yield from _inside(factor)
    elif isinstance(axis, iw.symmetry.Sum):
        for part in axis.parts:
            yield from _inside(part.axis)
    else:
        yield axis
