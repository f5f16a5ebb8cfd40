"""What one space's part of a group element holds, and how such parts compose, invert and are drawn.

On a leaf of variance ``v`` the part acts as the matrix ``M^(v) D P``: permutation first, then scales and signs with
the leaf's exponents, then the matrix (its inverse transpose for ``v = -1``). ``M D P M' D' P'`` is brought back to that
shape by moving ``M'`` to the left, which needs the exponents of ``D`` on leaves of variance +1: the *charges*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..groups import Representation, Semidirect
from ..groups.sampling import haar, random_signs
from .blocks import align
from .spaces import Space

__all__ = [
    "Element",
    "close",
    "compose",
    "displaced",
    "drawn",
    "identities",
    "invert",
    "is_identity",
    "keep",
    "permuted",
    "reindex",
    "tensors",
]


@dataclass(frozen=True, eq=False)
class Element:
    """One space's part of a group element. ``p...`` are the sizes of the space's parents, ``n`` its own.

    Attributes:
        space: The space.
        permutation: Old unit at each new place, int64 ``(p..., n)``.
        scales: Logarithms of the positive scales, float64 ``(k, p..., n)`` for ``k`` generators.
        signs: Signs +1 or -1, float64 ``(k, p..., n)`` for ``k`` generators.
        linear: Matrices, float64 ``(p..., n, n)``, or ``None`` for the identity.
    """

    space: Space
    permutation: Tensor
    scales: Tensor
    signs: Tensor
    linear: Tensor | None = None


def identities(sym: Any) -> dict[str, Element]:
    """The identity of every space, parents before children.

    Args:
        sym: A symmetry, or a tuple of spaces.

    Returns:
        Name of each space to its identity.

    Raises:
        ValueError: If a space has a parent that is unknown or whose own parents are not among its parents.
    """
    spaces: Sequence[Space] = sym if isinstance(sym, tuple) else sym.spaces
    known = {space.name: space for space in spaces}
    found = {}
    for space in sorted(spaces, key=lambda s: len(s.parents)):
        for parent in space.parents:
            if parent not in known or not set(known[parent].parents) <= set(space.parents):
                raise ValueError(
                    f"parents must be known spaces, their own parents listed too. Got {parent!r} in {space.name!r}."
                )
        sizes = [known[parent].size for parent in space.parents]
        found[space.name] = Element(
            space=space,
            permutation=torch.arange(space.size).expand(*sizes, space.size).clone(),
            scales=torch.zeros(space.group.scales, *sizes, space.size, dtype=torch.float64),
            signs=torch.ones(space.group.signs, *sizes, space.size, dtype=torch.float64),
        )
    return found


def drawn(e: Element, generator: torch.Generator, scale_std: float) -> Element:
    """A random element of the space of ``e``."""
    space, shape = e.space, e.permutation.shape
    order = torch.rand(shape, generator=generator, dtype=torch.float64).argsort(-1)
    scales = scale_std * torch.randn(e.scales.shape, generator=generator, dtype=torch.float64)
    signs = random_signs(e.signs.shape, generator)
    linear = None
    if space.group.mixes:
        linear = haar(shape[-1], generator, shape=shape[:-1])
        if space.group.is_general:
            singular = torch.exp(scale_std * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1))
            linear = (linear * singular[..., None, :]) @ haar(shape[-1], generator, shape=shape[:-1])
    return replace(
        e, permutation=order if space.group.permutes else e.permutation, scales=scales, signs=signs, linear=linear
    )


def keep(e: Element, kinds: frozenset[str] | set[str]) -> Element:
    """``e`` with the kinds that are not in ``kinds`` replaced by the identity."""
    n = e.permutation.shape[-1]
    return replace(
        e,
        permutation=e.permutation if "permutation" in kinds else torch.arange(n).expand_as(e.permutation).clone(),
        scales=e.scales if "scale" in kinds else torch.zeros_like(e.scales),
        signs=e.signs if "sign" in kinds else torch.ones_like(e.signs),
        linear=e.linear if "linear" in kinds else None,
    )


def compose(g: Element, h: Element) -> Element:
    """``g`` after ``h``, where ``h`` is already indexed by the parents' units after ``g``."""
    p = g.permutation
    scales = g.scales + h.scales.gather(-1, p.expand_as(h.scales))
    signs = g.signs * h.signs.gather(-1, p.expand_as(h.signs))
    linear = g.linear
    if h.linear is not None:
        moved = h.linear.gather(-2, p[..., :, None].expand_as(h.linear))
        moved = moved.gather(-1, p[..., None, :].expand_as(h.linear))
        d = _diagonal(g)
        moved = d[..., :, None] * moved / d[..., None, :]
        linear = moved if g.linear is None else g.linear @ moved
    return replace(g, permutation=h.permutation.gather(-1, p), scales=scales, signs=signs, linear=linear)


def invert(g: Element) -> Element:
    """The inverse of ``g``, still indexed by the parents' units after ``g``."""
    back = g.permutation.argsort(-1)
    linear = None
    if g.linear is not None:
        d = _diagonal(g)
        linear = torch.linalg.inv(g.linear) * d[..., None, :] / d[..., :, None]
        linear = linear.gather(-2, back[..., :, None].expand_as(linear))
        linear = linear.gather(-1, back[..., None, :].expand_as(linear))
    return replace(
        g,
        permutation=back,
        scales=-g.scales.gather(-1, back.expand_as(g.scales)),
        signs=g.signs.gather(-1, back.expand_as(g.signs)),
        linear=linear,
    )


def reindex(e: Element, parents: Mapping[str, Element]) -> Element:
    """``e`` with its leading axes moved by the permutations of the parents."""
    if not e.space.parents:
        return e
    names: tuple[str | None, ...] = e.space.parents
    return replace(
        e,
        permutation=permuted(e.permutation, (*names, None), parents),
        scales=permuted(e.scales, (None, *names, None), parents),
        signs=permuted(e.signs, (None, *names, None), parents),
        linear=None if e.linear is None else permuted(e.linear, (*names, None, None), parents),
    )


def permuted(x: Tensor, spaces: Sequence[str | None], elements: Mapping[str, Element]) -> Tensor:
    """Gather every dimension of ``x`` by the permutation of the space that it carries, outer spaces first.

    Args:
        x: Any tensor.
        spaces: For each dimension the name of its space, or ``None``.
        elements: Elements of the spaces.

    Returns:
        The moved entries, bit for bit.
    """
    present = sorted({s for s in spaces if s is not None}, key=lambda s: len(elements[s].space.parents))
    for name in present:
        e = elements[name]
        index = e.permutation.to(x.device)
        for dim, space in enumerate(spaces):
            if space != name:
                continue
            if index.ndim == 1:
                x = x.index_select(dim, index)
            else:
                x = torch.take_along_dim(x, align(index, parent_dims(e.space, dim, spaces), x.ndim), dim)
    return x


def parent_dims(space: Space, dim: int, spaces: Sequence[str | None]) -> list[int]:
    """Where the axes of a space's arrays belong in a block: the parents' dimensions, then its own.

    Raises:
        ValueError: If a parent does not occur exactly once in the block.
    """
    dims = []
    for parent in space.parents:
        places = [d for d, s in enumerate(spaces) if s == parent]
        if len(places) != 1:
            raise ValueError(
                f"parent must occur exactly once beside {space.name!r}. Got {parent!r} {len(places)} times in {spaces}."
            )
        dims.append(places[0])
    return [*dims, dim]


def is_identity(e: Element, atol: float = 1e-12) -> bool:
    """Whether ``e`` moves nothing, up to ``atol`` in log scales and matrix entries."""
    return not displaced(e) and _total_close(e, keep(e, frozenset()), atol)


def close(a: Element, b: Element, atol: float) -> bool:
    """Whether two elements of one space act alike, up to ``atol``."""
    return torch.equal(a.permutation, b.permutation) and _total_close(a, b, atol)


def displaced(e: Element) -> int:
    """Number of units that the permutation moves."""
    return int((e.permutation != torch.arange(e.permutation.shape[-1])).sum())


def tensors(e: Element) -> dict[str, Tensor]:
    """The arrays of ``e`` by name."""
    found = {"permutation": e.permutation, "scales": e.scales, "signs": e.signs}
    return found if e.linear is None else {**found, "linear": e.linear}


def _total_close(a: Element, b: Element, atol: float) -> bool:
    if not torch.equal(a.signs, b.signs) or not torch.allclose(a.scales, b.scales, rtol=0, atol=atol):
        return False
    if a.linear is None and b.linear is None:
        return True
    eye = torch.eye(a.permutation.shape[-1], dtype=torch.float64)
    left = eye if a.linear is None else a.linear
    right = eye if b.linear is None else b.linear
    return bool(((left - right).abs() <= atol).all())


def _diagonal(e: Element) -> Tensor:
    """Diagonal of ``D`` on leaves of variance +1, ``(p..., n)``.

    Raises:
        ValueError: If the leaves agree on no exponents.
    """
    charges = e.space.group.charges if isinstance(e.space.group, Semidirect) else Representation()
    if charges is None:
        raise ValueError(
            f"elements must keep the shape M D P under composition. Got {e.space.name!r}, whose scale exponents do not "
            "follow its matrices: restrict to kinds={'linear'} or leave 'linear' out."
        )
    logs = sum(
        (float(c) * t for c, t in zip(charges.scale, e.scales)),
        start=torch.zeros(e.permutation.shape, dtype=torch.float64),
    )
    flips = torch.ones(e.permutation.shape, dtype=torch.float64)
    for c, s in zip(charges.sign, e.signs):
        flips = flips * s if c % 2 else flips
    return torch.exp(logs) * flips
