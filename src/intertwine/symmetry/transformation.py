"""Elements of a model's symmetry group: they compose, invert, restrict, and save."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._io.values import read_value, write_value
from .._memory import check_fits
from .._words import counted
from ..groups import Element
from ..groups.representation import KINDS
from .description import Description
from .spaces import Space

_DRAWN = 4  # matrices per element that are in memory while it is drawn


@dataclass(frozen=True, eq=False, repr=False)
class Transformation:
    """An element ``g`` of a symmetry group: one ``Element`` for each space.

    ``g @ h`` acts with ``h`` first, ``~g`` undoes ``g``. Spaces with parents compose as a wreath product.

    Attributes:
        elements: The element of each space by name, parents before children.
        certified: The inputs on which it keeps the function, if these are not all inputs of the example's shapes.

    Examples:
        >>> from intertwine.groups import PositiveMonomial
        >>> from intertwine.symmetry import Space
        >>> g = random((Space("0.weight[0]", PositiveMonomial(4)),), seed=0)
        >>> g
        Transformation(1 space: 3 units moved, scales exp(±0.70))
        >>> (g @ ~g).is_identity()
        True
    """

    elements: Mapping[str, Element]
    certified: str = ""

    @property
    def spaces(self) -> tuple[str, ...]:
        """Names of the spaces."""
        return tuple(self.elements)

    def __getitem__(self, space: str) -> Element:
        return self.elements[space]

    def __matmul__(self, other: Transformation) -> Transformation:
        if not isinstance(other, Transformation):
            return NotImplemented
        ours, theirs = ({n: e.group.n for n, e in g.elements.items()} for g in (self, other))
        if ours != theirs:
            raise ValueError(f"elements must belong to one symmetry. Got spaces of sizes {ours} and {theirs}.")
        composed = {name: g @ other[name].reindexed(self.elements) for name, g in self.elements.items()}
        return Transformation(composed, self.certified or other.certified)

    def __invert__(self) -> Transformation:
        inverted: dict[str, Element] = {}
        outer_first = sorted(self.elements.items(), key=lambda item: len(item[1].parents))
        for name, g in outer_first:  # so that the inverses of parents come first
            inverted[name] = (~g).reindexed(inverted)
        return Transformation({name: inverted[name] for name in self.elements}, self.certified)

    def restrict(self, spaces: Collection[str] | None = None, kinds: Collection[str] | None = None) -> Transformation:
        """The part of ``g`` that acts on some spaces or by some kinds; everything else becomes the identity.

        Args:
            spaces: Names of spaces to keep; ``None`` keeps all.
            kinds: Kinds to keep, among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``; ``None`` keeps all.

        Returns:
            A new element. A restriction to one kind of a product is not the product of the restrictions.

        Raises:
            ValueError: If a space or kind is unknown.
        """
        chosen = check_kinds(kinds)
        unknown = set(spaces or ()) - set(self.elements)
        if unknown:
            raise ValueError(f"spaces must be among {list(self.elements)}. Got {sorted(unknown)}.")
        here = lambda name: chosen if spaces is None or name in spaces else frozenset()
        return Transformation({name: e.restrict(here(name)) for name, e in self.elements.items()}, self.certified)

    def is_identity(self, atol: float = 1e-12) -> bool:
        """Whether ``g`` moves nothing, up to ``atol`` in log scales and matrix entries."""
        return all(e.is_identity(atol) for e in self.elements.values())

    def allclose(self, other: Transformation, atol: float = 1e-9) -> bool:
        """Whether two elements of one group are equal, up to ``atol`` in log scales and matrix entries."""
        return self.spaces == other.spaces and all(e.allclose(other[n], atol) for n, e in self.elements.items())

    def save(self, path: str | Path) -> Path:
        """Write the element to a ``.safetensors`` or ``.json`` file; ``load`` reads it back exactly."""
        return write_value(Path(path), self)

    def __repr__(self) -> str:
        moved = sum(e.displaced for e in self.elements.values())
        said = [f"{counted(moved, 'unit')} moved"]
        logs = [e.scales.abs().max().item() for e in self.elements.values() if e.scales.numel()]
        if logs and max(logs) > 0:
            said.append(f"scales exp(±{max(logs):.2f})")
        flipped = sum(int((e.signs < 0).sum()) for e in self.elements.values())
        said += [f"{counted(flipped, 'sign')} flipped"] if flipped else []
        matrices = sum(prod(e.linear.shape[:-2]) for e in self.elements.values() if e.linear is not None)
        said += [counted(matrices, "matrix")] if matrices else []
        said += [f"certified for {self.certified} only"] if self.certified else []
        return f"Transformation({counted(len(self.elements), 'space')}: {', '.join(said)})"


def identity(sym: Description | tuple[Space, ...]) -> Transformation:
    """The element of a symmetry group that changes nothing."""
    return Transformation({s.name: Element.identity(s.group, shape, s.parents) for s, shape in _outer_first(sym)})


def random(
    sym: Description | tuple[Space, ...], seed: int = 0, kinds: Collection[str] | None = None, scale_std: float = 0.5
) -> Transformation:
    """A random element of moderate size, so that only rounding limits how exactly the function is kept.

    Permutations are uniform, log scales normal with deviation ``scale_std``, and signs fair coin flips. Orthogonal
    matrices are Haar distributed; general ones are ``Q_1 diag(exp(u)) Q_2`` with ``u`` uniform in
    ``[-scale_std, scale_std]``, so that their condition number is at most ``exp(2 scale_std)``.

    Args:
        sym: A symmetry, or a tuple of spaces.
        seed: Same seed, same element.
        kinds: Kinds to draw, among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``; ``None`` draws all.
        scale_std: Standard deviation of the log scales.

    Returns:
        The element. Matrices that do not fit in memory are refused with a ``ValueError`` before they are drawn.
    """
    chosen = check_kinds(kinds)
    _check_size(sym if isinstance(sym, tuple) else sym.spaces)
    generator = torch.Generator().manual_seed(seed)
    drawn = {  # always draw all kinds, so that one kind does not depend on the others
        s.name: Element.random(s.group, generator, shape, s.parents, scale_std).restrict(chosen)
        for s, shape in _outer_first(sym)
    }
    certified = "" if isinstance(sym, tuple) or not sym.path_only else sym.certified
    return Transformation(drawn, certified)


def _outer_first(sym: Description | tuple[Space, ...]) -> Iterator[tuple[Space, list[int]]]:
    """Every space with its parents' sizes, parents before children."""
    spaces = sym if isinstance(sym, tuple) else sym.spaces
    known = {space.name: space for space in spaces}
    for space in sorted(spaces, key=lambda s: len(s.parents)):
        for parent in space.parents:
            if parent not in known or not set(known[parent].parents) <= set(space.parents):
                raise ValueError(
                    f"parents must be known spaces, their own parents listed too. Got {parent!r} in {space.name!r}."
                )
        yield space, [known[parent].size for parent in space.parents]


def _check_size(spaces: tuple[Space, ...]) -> None:
    """Refuse matrices that do not fit in memory before they are drawn."""
    sizes = {space.name: space.size for space in spaces}
    linear = [s for s in spaces if s.group.mixes]
    needed = {s.name: 8.0 * _DRAWN * prod(sizes.get(p, 1) for p in s.parents) * s.size**2 for s in linear}
    if needed:
        largest = max(linear, key=lambda s: needed[s.name])
        check_fits(
            sum(needed.values()), "the matrices of a random element", f"{largest.group.symbol} of {largest.name!r}",
            "Give a smaller model.",
        )  # fmt: skip


def load(path: str | Path) -> Transformation:
    """Read an element that ``Transformation.save`` wrote.

    Raises:
        CheckpointError: If the file is missing or holds something else.
    """  # noqa: DOC502 - raised by what it calls
    return read_value(Path(path), Transformation)


def check_kinds(kinds: Collection[str] | None) -> frozenset[str]:
    """The kinds as a set."""
    chosen = frozenset(KINDS) if kinds is None else frozenset([kinds] if isinstance(kinds, str) else kinds)
    if not chosen <= set(KINDS):
        raise ValueError(f"kinds must be among {list(KINDS)}. Got {sorted(chosen - set(KINDS))}.")
    return chosen


def element(sym: Description | tuple[Space, ...], **parts: Mapping[str, Tensor]) -> Transformation:
    """The element with given arrays of some spaces, such as ``scales={"0.weight[0]": logs}``, and nothing else."""
    g = identity(sym)
    for part, arrays in parts.items():
        for name, array in arrays.items():
            g = with_parts(g, name, **{part: array})
    return g


def with_parts(g: Transformation, space: str, **parts: Any) -> Transformation:
    """``g`` with some arrays of one space replaced."""
    return Transformation({**g.elements, space: replace(g[space], **parts)}, g.certified)
