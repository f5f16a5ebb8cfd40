"""Scale mappings: one module writes channels divided by ``s``, and their readers multiply by ``s``.

A space of a symmetry has generators of scales, each with an exponent for every tensor axis that carries the space. A
generator with exponents ``-1`` on what one module writes and ``+1`` on what others read is what AWQ and SmoothQuant
call a mapping; so is the diagonal part of a space with general linear maps (the values of attention).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import prod

from torch import Tensor

from ..symmetry import Leaf, Space
from ..symmetry.action import transform
from ..symmetry.blocks import map_leaves
from ..symmetry.coupling import Joined
from ..symmetry.description import Description
from ..symmetry.detection.equations import RationalEquations
from ..symmetry.spaces import leaves, spaces_of
from ..symmetry.transformation import identity, with_parts
from .names import packed
from .permutations import unit_numbers

Powers = tuple[tuple[int, Fraction], ...]

_LARGEST = 4  # most generators on the same axes of which every combination is tried


@dataclass(frozen=True)
class Use:
    """One tensor axis that a mapping scales by ``s ** exponent``."""

    tensor: str  # Name of a parameter or buffer
    axis: int  # Its axis
    exponent: Fraction  # -1 or +1 in what the tools support

    @property
    def module(self) -> str:
        """Name of the module that holds the tensor; packed experts count as modules."""
        return packed(self.tensor) or self.tensor.rpartition(".")[0]


@dataclass(frozen=True)
class ScaleMapping:
    """A positive scale for each channel of a space that one module writes and others read."""

    space: str  # Name of the space
    # Numbers of the space's scale generators that contain ``s``, with its power in each; number 0 is the diagonal of
    # linear maps
    generator: Powers
    diagonal: bool  # Whether the scales are the diagonal of linear maps
    writes: tuple[Use, ...]  # What the smooth layer writes, exponent -1: weight rows and bias, or the gain of a norm
    reads: tuple[Use, ...]  # What the balance layers read, exponent +1

    @property
    def smooth(self) -> str:
        """Name of the module that writes."""
        return self.writes[0].module

    @property
    def balance(self) -> tuple[str, ...]:
        """Names of the modules that read, in the order of the state dict."""
        return tuple(dict.fromkeys(use.module for use in self.reads))

    def exponent(self, leaf: Leaf) -> Fraction:
        """Exponent of ``s`` on an axis that carries the space."""
        return _exponent(self.generator, self.diagonal, leaf)


Refusal = tuple[tuple[str, ...], str]
"""Scales that are no mapping: the tensors that they read, and the reason."""


def scale_mappings(sym: Description) -> tuple[list[ScaleMapping], list[Refusal]]:
    """Every scale mapping of a symmetry, in order of the spaces; and the scales that are none, with the reason."""
    carried: dict[str, list[tuple[str, int, Leaf]]] = {space.name: [] for space in sym.spaces}
    for name, layout in sym.layouts.items():
        for dim, axis in enumerate(layout.axes):
            for _, leaf in leaves(axis):
                if isinstance(leaf, Leaf):
                    carried[leaf.space].append((name, dim, leaf))
    written = _writers(sym)
    found: list[ScaleMapping] = []
    refused: list[Refusal] = []
    for space in sym.spaces:
        for generator in _generators(space, [leaf for _, _, leaf in carried[space.name]]):
            exponents = {
                (name, dim): e
                for name, dim, leaf in carried[space.name]
                if (e := _exponent(generator, space.group.mixes, leaf))
            }
            mapping = _mapping(space, generator, exponents, written)
            (found if isinstance(mapping, ScaleMapping) else refused).append(mapping)  # type: ignore[arg-type]
    # Scales for each channel of a head include the effect of one scale per head.
    count = lambda space: prod(sym.space(name).size for name in (space, *sym.space(space).parents))
    seen = {(m.smooth, m.balance): m for m in sorted(found, key=lambda m: count(m.space))}
    return [m for m in found if seen[m.smooth, m.balance] is m], refused


def channels(sym: Description, mapping: ScaleMapping, use: Use) -> Tensor:
    """Number of the scale for each position along an axis; -1 if there is none."""
    scaled_there = lambda leaf: bool(mapping.exponent(leaf))
    return unit_numbers(sym, sym.space(mapping.space), use.tensor, use.axis, scaled_there)


def scaled(sym: Description, mapping: ScaleMapping, name: str, tensor: Tensor, logs: Tensor) -> Tensor:
    """A tensor scaled along all axes of a mapping, by logarithms ``(p..., n)`` of the scales."""

    def leaf(old: Leaf) -> Leaf:
        scale = (mapping.exponent(old),) if old.space == mapping.space else ()
        return replace(old, scale=scale, sign=(), variance=0)

    g = with_parts(identity(sym), mapping.space, scales=logs[None])
    return transform(tensor, map_leaves(sym.layouts[name], leaf), g)


def _exponent(generator: Powers, diagonal: bool, leaf: Leaf) -> Fraction:
    carried = (Fraction(leaf.variance),) if diagonal else leaf.scale
    return sum((g * carried[k] for k, g in generator if carried and carried[k]), start=Fraction(0))


def _generators(space: Space, carried: list[Leaf]) -> Iterator[Powers]:
    """Combinations of a space's generators that act on as few axes as possible, and one for diagonal matrices."""
    if space.group.mixes:
        if any(leaf.variance == -1 for leaf in carried):
            yield ((0, Fraction(1)),)
        return
    columns = list(dict.fromkeys(leaf.scale for leaf in carried if any(leaf.scale)))
    for part in _components(columns, space.group.scales):
        used = [tuple(column[k] for k in part) for column in columns if any(column[k] for k in part)]
        for combination in _circuits(used, len(part)):
            yield tuple((k, value) for k, value in zip(part, combination) if value)


def _components(columns: list[tuple[Fraction, ...]], count: int) -> list[list[int]]:
    """Generators grouped by common axes."""
    together = Joined(map(str, range(count)))
    for column in columns:
        together.join(str(k) for k, exponent in enumerate(column) if exponent)
    return [[int(k) for k in group] for group in together.groups()]


def _circuits(columns: list[tuple[Fraction, ...]], count: int) -> Iterator[tuple[Fraction, ...]]:
    """Combinations of ``count`` generators that vanish on as many columns as possible."""
    if count == 1 or count > _LARGEST:
        for k in range(count):
            yield tuple(Fraction(int(i == k)) for i in range(count))
        return
    seen: set[frozenset[int]] = set()
    for zeros in combinations(columns, count - 1):
        equations = RationalEquations()
        for column in zeros:
            equations.add(dict(enumerate(column)))
        solutions = equations.solutions(range(count))
        if len(solutions) != 1:
            continue
        found = tuple(solutions[0].get(k, Fraction(0)) for k in range(count))
        support = frozenset(i for i, column in enumerate(columns) if sum(a * b for a, b in zip(found, column)))
        if support not in seen:
            seen.add(support)
            yield found


def _writers(sym: Description) -> Callable[[Space, Powers, str, int, Fraction], bool]:
    """The test whether a tensor axis becomes the channels of its module's output."""
    outputs = {tap.partition("#")[0]: layout for tap, layout in [*sym.features.items()][::-1]}  # of each the first

    def written(space: Space, generator: Powers, tensor: str, dim: int, e: Fraction) -> bool:
        returned = outputs.get(tensor.rpartition(".")[0])
        if returned is not None:
            found = (x for axis in returned.axes for _, x in leaves(axis) if isinstance(x, Leaf))
            return any(x.space == space.name and _exponent(generator, space.group.mixes, x) == e for x in found)
        axes = sym.layouts[tensor].axes  # the module's output does not move
        moving = [i for i, axis in enumerate(axes) if spaces_of([axis])]
        return len(axes) == 1 or dim != moving[-1] or dim == 0

    return written


def _mapping(
    space: Space, generator: Powers, exponents: dict[tuple[str, int], Fraction], written: Callable[..., bool]
) -> ScaleMapping | Refusal:
    """The mapping of a generator, or the reason why it is none."""
    writes = {at: e for at, e in exponents.items() if not packed(at[0]) and written(space, generator, *at, e)}
    reads = {at: e for at, e in exponents.items() if not packed(at[0]) and at not in writes}
    for at, e in exponents.items():  # experts write what they share with a writing module, else the first does
        if packed(at[0]):
            (writes if e in writes.values() or not (writes or -e in reads.values() or e in reads.values()) else reads)[
                at
            ] = e
    names = tuple(dict.fromkeys(name for name, _ in reads))
    modules = list(dict.fromkeys(packed(name) or name.rpartition(".")[0] for name, _ in writes))
    if not reads or not writes:
        return names, "the scale of one output is undone by another output, as of queries by keys"
    if len(modules) > 1:
        several = f"{', '.join(modules[:3])}{', ...' if len(modules) > 3 else ''}"
        return names, f"several modules write these channels: {several}"
    unit = next(iter(writes.values()))
    if set(writes.values()) != {unit} or set(reads.values()) != {-unit}:
        powers = ", ".join(str(-e / unit) for e in dict.fromkeys(reads.values()))
        return names, f"what is written by s is read by the power {powers} of s"
    turned = tuple((k, -g / unit) for k, g in generator)
    use = lambda sides: tuple(Use(name, dim, e) for (name, dim), e in sides)
    return ScaleMapping(
        space.name, turned, space.group.mixes,
        use([(at, -e / unit) for at, e in writes.items()]), use([(at, -e / unit) for at, e in reads.items()]),
    )  # fmt: skip
