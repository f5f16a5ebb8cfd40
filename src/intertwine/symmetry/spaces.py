"""Spaces, and how every tensor's axes are composed of them: what the engine finds and the action uses.

These are plain values: they hold names, sizes and exponents, never a tensor of the model, so that a model on the meta
device, a saved description and a sharded checkpoint all work with the same objects.

Conventions
    A tensor axis that carries a space is a ``Leaf``: the representation by which an element of the space's group acts
    on that axis. A space with ``parents`` has its own element for every unit of the parents (a wreath product: per-head
    bases, groups of a grouped convolution): its arrays carry leading axes of the parents' sizes, in the order of
    ``parents``, indexed by the parents' *new* units.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

from ..groups import Representation, SpaceGroup

__all__ = [
    "COMPLEX", "UNRULED", "Axis", "BatchNormTensors", "Fixed", "FixedAxis", "Layout", "Leaf", "Part", "Product",
    "Space", "Sum", "axis_size", "leaves", "spaces_of",
]  # fmt: skip

COMPLEX = "holds complex numbers"  # in the reason of every axis that is fixed because a parameter is complex
UNRULED = "operation without a rule"  # in the reason of every axis that is fixed only because nothing is known
UNREAD = "not used by the outputs in this run"  # the reason of axes about which a run reveals nothing


Kind = Literal["", "epsilon", "positions"]  # anything else; the epsilon of a norm; turns by positions


class Cause(str):
    """The reason for a restriction of a space, as text that carries its kind through the engine."""

    kind: Kind

    def __new__(cls, words: str, kind: Kind) -> "Cause":
        cause = super().__new__(cls, words)
        cause.kind = kind
        return cause


@dataclass(frozen=True)
class Restriction:
    """A restriction: what a space lost, such as ``("no scales", "no signs")``, the cause in words, and its kind."""

    lost: tuple[str, ...]
    cause: str
    kind: Kind = ""

    def __str__(self) -> str:
        return f"{', '.join(self.lost)}: {self.cause}"


@dataclass(frozen=True)
class Space:
    """One hidden space of a network: units that a symmetry may permute, rescale, flip or mix.

    Attributes:
        name: Unique, from the first tensor axis that carries it, such as ``"layer1.0.conv1.weight[0]"``.
        group: What may act on its units, such as ``PositiveMonomial(64)``.
        parents: Names of the spaces each of whose units has its own copy of this space (outermost first).
        reasons: What restricts the space, in words, such as ``"no linear maps, no signs: relu in features.1"``.
        restrictions: The same by kind, for programs; none in files of versions that stored words only.
    """

    name: str
    group: SpaceGroup
    parents: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    restrictions: tuple[Restriction, ...] = field(default=(), repr=False)

    def causes(self, *lost: str) -> list[Restriction]:
        """The restrictions that cost the space any of these, such as ``"no linear maps"``."""
        return [restriction for restriction in self.restrictions if not {*lost}.isdisjoint(restriction.lost)]

    @property
    def size(self) -> int:
        """Number of units ``n`` (per unit of the parents)."""
        return self.group.n

    @property
    def symbol(self) -> str:
        """The group in symbols, such as ``"S₆₄ ⋉ R₊⁶⁴"``, or ``"GL₁₆ each"`` for one in every unit of the parents."""
        return f"{self.group.symbol} each" if self.parents else self.group.symbol


@dataclass(frozen=True)
class Leaf(Representation):
    """An axis (or a factor or segment of one) that carries a space, with the representation of its group there.

    Attributes:
        space: Name of the space.
        size: Number of units that lie on the axis.
    """

    space: str
    size: int


@dataclass(frozen=True)
class Fixed:
    """An axis (or a factor or segment of one) that no symmetry moves, and why."""

    size: int
    reason: str


@dataclass(frozen=True)
class Product:
    """An axis that is a row-major product of factors, outermost first: heads x head dimension."""

    factors: tuple["Axis", ...]


@dataclass(frozen=True)
class Part:
    """A piece of a ``Sum``: the rows in ``ranges`` (half-open, in this order) together form ``axis``.

    More than one range means that the units of one space are not contiguous, such as the two zero-padded ends of an
    option-A shortcut.
    """

    ranges: tuple[tuple[int, int], ...]
    axis: "Axis"


@dataclass(frozen=True)
class Sum:
    """An axis that is a concatenation, covered exactly by its parts: packed q, k, v; branches; padded shortcuts."""

    parts: tuple[Part, ...]


Axis = Leaf | Fixed | Product | Sum


def axis_size(axis: Axis) -> int:
    """Length of the tensor axis that ``axis`` describes."""
    if isinstance(axis, Product):
        return prod(axis_size(f) for f in axis.factors)
    if isinstance(axis, Sum):
        return sum(stop - start for part in axis.parts for start, stop in part.ranges)
    return axis.size


def leaves(axis: Axis, path: str = "") -> Iterator[tuple[str, Leaf | Fixed]]:
    """Every leaf of an axis with its place in words, such as ``" rows 0:8 factor 1"`` (empty if it is the axis)."""
    if isinstance(axis, Leaf | Fixed):
        yield path, axis
    elif isinstance(axis, Product):
        for i, factor in enumerate(axis.factors):
            yield from leaves(factor, f"{path} factor {i}")
    else:
        for part in axis.parts:
            rows = ", ".join(f"{start}:{stop}" for start, stop in part.ranges)
            yield from leaves(part.axis, f"{path} rows {rows}")


def spaces_of(axes: Iterable[Axis]) -> tuple[str, ...]:
    """Names of the spaces that some axes carry, each once."""
    found = (leaf.space for axis in axes for _, leaf in leaves(axis) if isinstance(leaf, Leaf))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Layout:
    """The composition of one parameter's or buffer's axes of spaces: one ``Axis`` for each tensor dimension."""

    axes: tuple[Axis, ...]

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Every leaf that carries a space, axis by axis."""
        return tuple(leaf for axis in self.axes for _, leaf in leaves(axis) if isinstance(leaf, Leaf))

    @cached_property
    def spaces(self) -> frozenset[str]:
        """Names of the spaces that it carries."""
        return frozenset(leaf.space for leaf in self.leaves)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(axis_size(axis) for axis in self.axes)

    @cached_property
    def _hash(self) -> int:
        return hash(self.axes)

    def __hash__(self) -> int:
        return self._hash  # layouts are looked up far more often than made


@dataclass(frozen=True)
class FixedAxis:
    """A parameter axis, or a part of one, that stays where it is."""

    tensor: str
    axis: int
    reason: str


@dataclass(frozen=True)
class BatchNormTensors:
    """The tensors of one normalisation call that divides by ``sqrt(variance + eps)`` of stored statistics.

    Its variance must become ``a^2 (v + eps) - eps`` rather than ``a^2 v`` for the function to stay exactly the same.
    """

    mean: str
    variance: str
    weight: str | None
    bias: str | None
    eps: float
