"""Groups of spaces whose units may be mixed, and elements of spaces' groups, batched over leading axes.

A space's group has matrices of one kind, and scales, signs and permutations besides; it has one element for every unit
of the space's parents. On an axis, an element acts as the matrix ``M D P`` of that axis' representation: permutation
first, then scales and signs, then the matrix. It is not a ``MatrixElement``: it acts in many representations, and holds
scales by their logarithms for them, whereas a matrix acts in one and must keep the scales that it was given to the last
bit. If a group of matrices has the same elements, ``group.from_matrix`` of one of the element's matrices converts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from .dense import GeneralLinear, Orthogonal
from .monomial import Monomial, Permutation, chosen
from .representation import Representation, subscript
from .sampling import haar, random_signs, well_conditioned

__all__ = ["Semidirect", "SpaceGroup", "Element"]

_TRIVIAL = Representation()


@dataclass(frozen=True)
class Semidirect:
    """Products ``M D P`` with ``M`` in ``O(n)``, ``SO(n)`` or ``GL(n)`` and ``D P`` in a monomial group.

    ``M D P M' D' P'`` is brought back to that form by moving ``M'`` to the left, as ``D P M' P^-1 D^-1``; so ``D`` must
    act in one way wherever ``M`` does.

    Examples:
        >>> group = Semidirect(GeneralLinear(4), Monomial(4, scales=2))
        >>> group.symbol, group.reduced(mixes=False)
        ('GL₄', Monomial(4, scales=2, signs=1))
    """

    linear: Orthogonal | GeneralLinear
    monomial: Monomial = None  # type: ignore[assignment]  # Permutations unless given
    # How ``D`` acts where ``M`` does, trivially by default; ``None`` if the axes of a network do not agree on that:
    # elements with both parts then do not compose
    charges: Representation | None = _TRIVIAL

    mixes = True

    def __post_init__(self) -> None:
        if self.monomial is None:
            object.__setattr__(self, "monomial", Permutation(self.n))
        if self.monomial.n != self.n:
            raise ValueError(f"both parts must have equal channel counts. Got {self.linear!r} and {self.monomial!r}.")

    @property
    def n(self) -> int:
        """Number of channels."""
        return self.linear.n

    @property
    def permutes(self) -> bool:
        """Whether the group has permutations besides the matrices."""
        return self.monomial.permutes

    @property
    def scales(self) -> int:
        """Number of positive scales for each channel besides the matrices."""
        return self.monomial.scales

    @property
    def signs(self) -> int:
        """Number of signs for each channel besides the matrices."""
        return self.monomial.signs

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its elements, ``"linear"`` last."""
        return (*self.monomial.kinds, "linear")

    @property
    def is_orthogonal(self) -> bool:
        """Whether the matrices are the orthogonal ones."""
        return isinstance(self.linear, Orthogonal)

    @property
    def turns(self) -> bool:
        """Whether the matrices are rotations of determinant one, such as those of rotary pairs."""
        return isinstance(self.linear, Orthogonal) and self.linear.special

    @property
    def is_general(self) -> bool:
        """Whether the matrices are all invertible ones."""
        return isinstance(self.linear, GeneralLinear)

    @property
    def symbol(self) -> str:
        """The group in symbols, without what the matrices include anyway: ``"GL₁₆"``, ``"O₆₄ × R₊⁶⁴"``."""
        if self.is_general:
            return f"GL{subscript(self.n)}"
        scales = Monomial(self.n, scales=self.scales, signs=0, permutes=False)
        return f"{'S' if self.turns else ''}O{subscript(self.n)}" + (f" × {scales.symbol}" if self.scales else "")

    def on(self, n: int) -> Semidirect:
        """The same kind on another number of channels."""
        return replace(self, linear=self.linear.on(n), monomial=self.monomial.on(n))

    def reduced(
        self,
        *,
        permutes: bool = True,
        scales: int | Sequence[int] | None = None,
        signs: int | Sequence[int] | None = None,
        mixes: bool = True,
    ) -> SpaceGroup:
        """The subgroup with fewer kinds of generators; see ``Monomial.reduced``."""
        monomial = self.monomial.reduced(permutes=permutes, scales=scales, signs=signs)
        if not mixes or self.charges is None:
            return replace(self, monomial=monomial) if mixes else monomial
        old = self.charges
        charges = Representation(
            scale=tuple(old.scale[k] for k in chosen(scales, self.scales)) if old.scale else (),
            sign=tuple(old.sign[k] for k in chosen(signs, self.signs)) if old.sign else (),
        )
        return Semidirect(self.linear, monomial, charges)


SpaceGroup = Monomial | Semidirect


@dataclass(frozen=True, eq=False)
class Element:
    """One element of a group for every index of the leading axes ``(p...)``; ``n`` channels each.

    ``g @ h`` acts with ``h`` first, index by index. If the units of parents move too, elements compose as ``g @
    h.reindexed(outer)``, where ``outer`` are the parents' parts of ``g``. ``~g`` inverts.

    Examples:
        >>> from intertwine.groups import PositiveMonomial
        >>> g = Element.random(PositiveMonomial(4), torch.Generator().manual_seed(0), shape=(3,))
        >>> g.permutation.shape, (g @ ~g).is_identity()
        (torch.Size([3, 4]), True)
    """

    group: SpaceGroup
    permutation: Tensor  # Old unit at each new place, int64 ``(p..., n)``
    scales: Tensor  # Logarithms of the positive scales, float64 ``(k, p..., n)``
    signs: Tensor  # Signs +1 or -1, float64 ``(m, p..., n)``
    linear: Tensor | None = None  # Matrices, float64 ``(p..., n, n)``, or ``None`` for the identity
    parents: tuple[str, ...] = ()  # Names of the spaces whose units index the leading axes

    @classmethod
    def identity(cls, group: SpaceGroup, shape: Sequence[int] = (), parents: tuple[str, ...] = ()) -> Self:
        """The element that changes nothing, for every index of leading axes of sizes ``shape``."""
        return cls(
            group,
            permutation=torch.arange(group.n).expand(*shape, group.n).clone(),
            scales=torch.zeros(group.scales, *shape, group.n, dtype=torch.float64),
            signs=torch.ones(group.signs, *shape, group.n, dtype=torch.float64),
            parents=parents,
        )

    @classmethod
    def random(
        cls,
        group: SpaceGroup,
        generator: torch.Generator,
        shape: Sequence[int] = (),
        parents: tuple[str, ...] = (),
        scale_std: float = 0.5,
    ) -> Self:
        """Independent random elements of moderate size.

        Permutations are uniform, log scales are normal with deviation ``scale_std``, signs are fair coins. Orthogonal
        matrices are Haar distributed; general ones are ``Q_1 diag(exp(u)) Q_2`` with ``u`` uniform in ``[-scale_std,
        scale_std]``, so that their condition number is at most ``exp(2 scale_std)``.
        """
        e, size = cls.identity(group, shape, parents), (*shape, group.n)
        order = torch.rand(size, generator=generator, dtype=torch.float64).argsort(-1)
        scales = scale_std * torch.randn(e.scales.shape, generator=generator, dtype=torch.float64)
        signs = random_signs(e.signs.shape, generator)
        linear = haar(group.n, generator, group.turns, shape) if group.is_orthogonal else None
        if group.is_general:
            linear = well_conditioned(group.n, generator, scale_std, shape)
        order = order if group.permutes else e.permutation
        return replace(e, permutation=order, scales=scales, signs=signs, linear=linear)

    def restrict(self, kinds: Collection[str]) -> Self:
        """The element with only the given ``kinds`` (``"permutation"``, ``"scale"``, ...); the others are left out."""
        still = torch.arange(self.group.n).expand_as(self.permutation).clone()
        return replace(
            self,
            permutation=self.permutation if "permutation" in kinds else still,
            scales=self.scales if "scale" in kinds else torch.zeros_like(self.scales),
            signs=self.signs if "sign" in kinds else torch.ones_like(self.signs),
            linear=self.linear if "linear" in kinds else None,
        )

    def __matmul__(self, other: Element) -> Self:
        p = self.permutation
        linear = self.linear
        if other.linear is not None:
            d = self._beside_matrix()
            moved = d[..., :, None] * _both(other.linear, p) / d[..., None, :]
            linear = moved if self.linear is None else self.linear @ moved
        return replace(
            self,
            permutation=other.permutation.gather(-1, p),
            scales=self.scales + other.scales.gather(-1, p.expand_as(other.scales)),
            signs=self.signs * other.signs.gather(-1, p.expand_as(other.signs)),
            linear=linear,
        )

    def __invert__(self) -> Self:
        back = self.permutation.argsort(-1)
        linear = None
        if self.linear is not None:
            d = self._beside_matrix()
            linear = _both(torch.linalg.inv(self.linear) * d[..., None, :] / d[..., :, None], back)
        return replace(
            self,
            permutation=back,
            scales=-self.scales.gather(-1, back.expand_as(self.scales)),
            signs=self.signs.gather(-1, back.expand_as(self.signs)),
            linear=linear,
        )

    def reindexed(self, parents: Mapping[str, Element]) -> Self:
        """The same element after the units of the parents move by these elements: the law of a wreath product."""
        if not any(parents[name].displaced for name in self.parents):
            return self
        places = torch.meshgrid(*map(torch.arange, self.permutation.shape[:-1]), indexing="ij")
        new = dict(zip(self.parents, places))
        outer = [(parents[name], place) for name, place in new.items()]
        old = tuple(g.permutation[(*(new[name] for name in g.parents), place)] for g, place in outer)
        every: tuple[slice | Tensor, ...] = (slice(None), *old)
        return replace(
            self,
            permutation=self.permutation[old],
            scales=self.scales[every],
            signs=self.signs[every],
            linear=None if self.linear is None else self.linear[old],
        )

    def diagonal(self, how: Representation) -> Tensor | None:
        """``prod_k exp(e_k t_k) prod_k s_k^(f_k)`` in a representation, ``(p..., n)``; ``None`` where it is 1."""
        if (how.scale, how.sign) in self._diagonals:
            return self._diagonals[how.scale, how.sign]
        factor = None
        for exponent, log in zip(how.scale, self.scales):
            if exponent and (log.requires_grad or bool(log.any())):
                term = torch.exp(float(exponent) * log)
                factor = term if factor is None else factor * term
        for parity, sign in zip(how.sign, self.signs):
            if parity % 2 and bool((sign < 0).any()):
                factor = sign if factor is None else factor * sign
        if not self.scales.requires_grad:
            self._diagonals[how.scale, how.sign] = factor
        return factor

    def mixing(self, how: Representation) -> Tensor | None:
        """``M`` or its inverse transpose, as a representation requires, ``(p..., n, n)``; ``None`` for the identity."""
        if self.linear is None or not how.variance:
            return None
        if how.variance > 0:
            return self.linear
        return torch.linalg.inv(self.linear).mT if self.linear.requires_grad else self._contragredient

    def matrix(self, how: Representation) -> Tensor:
        """The matrices ``M D P`` of a representation, float64 ``(p..., n, n)``."""
        eye = torch.eye(self.group.n, dtype=torch.float64)
        found = eye[self.permutation]
        factor, mixing = self.diagonal(how), self.mixing(how)
        found = found if factor is None else factor[..., None] * found
        return found if mixing is None else mixing @ found

    def apply(self, tensor: Tensor, dim: int, how: Representation) -> Tensor:
        """A tensor ``(p..., *)`` moved along ``dim`` by a representation; permutations only move its entries."""
        x = tensor.movedim(dim, self.permutation.ndim - 1)
        batch, rest = self.permutation.shape, x.shape[self.permutation.ndim :]
        x = x.reshape(*batch, -1)
        x = torch.take_along_dim(x, self.permutation[..., None].to(x.device), -2)
        factor, mixing = self.diagonal(how), self.mixing(how)
        x = x if factor is None else factor[..., None].to(x) * x
        x = x if mixing is None else mixing.to(x) @ x
        return x.reshape(*batch, *rest).movedim(self.permutation.ndim - 1, dim)

    def is_identity(self, atol: float = 1e-12) -> bool:
        """Whether it changes nothing, up to ``atol`` in log scales and matrix entries."""
        if atol not in self._still:
            self._still[atol] = not self.displaced and self.allclose(self.restrict(()), atol)
        return self._still[atol]

    def allclose(self, other: Element, atol: float = 1e-9) -> bool:
        """Whether two elements act alike, up to ``atol`` in log scales and matrix entries."""
        if not torch.equal(self.permutation, other.permutation) or not torch.equal(self.signs, other.signs):
            return False
        if not torch.allclose(self.scales, other.scales, rtol=0, atol=atol):
            return False
        if self.linear is None and other.linear is None:
            return True
        eye = torch.eye(self.group.n, dtype=torch.float64)
        left, right = (eye if e.linear is None else e.linear for e in (self, other))
        return bool(((left - right).abs() <= atol).all())

    @cached_property
    def _diagonals(self) -> dict[tuple[Sequence[object], Sequence[int]], Tensor | None]:
        """The diagonals already computed."""
        return {}

    @cached_property
    def _contragredient(self) -> Tensor | None:
        """Inverse transpose of ``M``, needed by every tensor that reads the space."""
        return None if self.linear is None else torch.linalg.inv(self.linear).mT

    @cached_property
    def _still(self) -> dict[float, bool]:
        """Whether it is the identity, by the tolerances asked for so far."""
        return {}

    @cached_property
    def displaced(self) -> int:
        """Number of units that the permutation moves."""
        return int((self.permutation != torch.arange(self.group.n)).sum())

    def _beside_matrix(self) -> Tensor:
        """Diagonal of ``D`` where ``M`` acts, ``(p..., n)``."""
        if self.group.charges is None:
            raise ValueError(
                f"elements must keep the shape M D P under composition. Got {self.group.symbol}, whose scale exponents "
                "do not follow its matrices: restrict to kinds={'linear'} or leave 'linear' out."
            )
        factor = self.diagonal(self.group.charges)
        return torch.ones(self.permutation.shape, dtype=torch.float64) if factor is None else factor


def _both(matrices: Tensor, index: Tensor) -> Tensor:
    """Rows and columns of ``(p..., n, n)`` gathered by ``(p..., n)``."""
    rows = matrices.gather(-2, index[..., :, None].expand_as(matrices))
    return rows.gather(-1, index[..., None, :].expand_as(matrices))
