"""Groups of permutations with scales and signs: one nonzero entry in every row and column.

Elements are an index and a scale, ``(g x)_i = s_i x_{p[i]}``, never a dense matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lgamma, log

import torch
from torch import Tensor

from .assignment import assign
from .dense import GeneralLinear, Orthogonal, UnitRowSum
from .group import Group, Objective, Unattained
from .monomial_element import MonomialElement
from .representation import KINDS, Representation, subscript, superscript
from .sampling import lognormal, random_signs

__all__ = [
    "MonomialElement", "Monomial", "Permutation", "PositiveMonomial", "SignedPermutation", "Trivial",
]  # fmt: skip

_SHOWN = 8  # most numbers that an error message lists
_NAMES = {
    (False, 0, 0): "Trivial",
    (True, 0, 0): "Permutation",
    (True, 0, 1): "SignedPermutation",
    (True, 1, 0): "PositiveMonomial",
    (True, 1, 1): "Monomial",
}
_ENTRIES = {(True, False): "positive entries", (False, True): "entries -1 and 1", (True, True): "nonzero entries"}


@dataclass(frozen=True, repr=False)
class Monomial(Group):
    """Matrices ``P D``: permutations with independent positive scales and signs for every channel.

    With the defaults, this is the group of ``x^d`` and ``|x|``. ``Permutation(n)``, ``SignedPermutation(n)``,
    ``PositiveMonomial(n)`` and ``Trivial(n)`` have fewer generators, and print so. A hidden space of a network may have
    more than one scale (before and after its batch norm). Its group is then ``S_n`` with ``(R_+^k x Z_2^m)^n``, and its
    matrices, the same as for ``k = m = 1``, are one representation of it among others.

    Examples:
        >>> Monomial(4, scales=0, signs=0), Monomial(4, scales=2).dim
        (Permutation(4), 8)
    """

    scales: int = 1  # Number ``k`` of positive scales for each channel
    signs: int = 1  # Number ``m`` of signs for each channel
    permutes: bool = True  # Whether channels may change places

    linear = None  # the part that spaces' groups may add
    charges = Representation()
    mixes = is_orthogonal = is_general = turns = False

    def __repr__(self) -> str:
        name = _NAMES.get((self.permutes, self.scales, self.signs))
        if name is not None:
            return f"{name}({self.n})"
        still = "" if self.permutes else ", permutes=False"
        return f"Monomial({self.n}, scales={self.scales}, signs={self.signs}{still})"

    @property
    def words(self) -> str:
        """The group's matrices, in words."""
        entries = _ENTRIES.get((self.scales > 0, self.signs > 0))
        if entries is None:
            return "permutation matrices" if self.permutes else "the identity matrix"
        return f"matrices P D, D with {entries}" if self.permutes else f"diagonal matrices with {entries}"

    @property
    def symbol(self) -> str:
        """The group in symbols, such as ``"S₆₄ ⋉ R₊⁶⁴"``: units change places with their own scales and signs."""
        one = [(name, count) for name, count in (("R₊", self.scales), ("Z₂", self.signs)) if count]
        each = " × ".join(f"{name}{superscript(count)}" for name, count in one)
        each = f"({each})" if len(one) > 1 or any(count > 1 for _, count in one) else each
        pieces = [f"S{subscript(self.n)}"] if self.permutes else []
        return " ⋉ ".join([*pieces, *([f"{each}{superscript(self.n, always=True)}"] if each else [])]) or "1"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its elements, among ``"permutation"``, ``"scale"`` and ``"sign"``."""
        has = (self.permutes and self.n > 1, self.scales, self.signs)
        return tuple(kind for kind, there in zip(KINDS, has) if there)

    @property
    def dim(self) -> int:
        """``n`` per scale."""
        return self.n * self.scales

    @property
    def log_components(self) -> float:
        """``log n!`` for permutations and ``log 2`` for every sign; a grid for a scale covers both signs."""
        signs = self.n * max(self.signs - self.scales, 0) * log(2)
        return (lgamma(self.n + 1) if self.permutes else 0.0) + signs

    @property
    def above(self) -> tuple[Group, ...]:
        """Groups with one more kind of generators, and the first dense ones that contain this one."""
        n, kind = self.n, (self.scales > 0, self.signs > 0)
        if not self.permutes:
            return (replace(self, permutes=True), *(() if any(kind) else (Orthogonal(n, special=True),)))
        signed, scaled = replace(self, signs=1), replace(self, scales=1)
        if kind == (False, False):
            return signed, scaled, UnitRowSum(n)
        if kind == (False, True):
            return scaled, Orthogonal(n)
        return (signed,) if kind == (True, False) else (GeneralLinear(n),)

    @property
    def closed(self) -> Monomial:
        """The same group with permutations."""
        return replace(self, permutes=True)

    def reduced(
        self,
        *,
        permutes: bool = True,
        scales: int | Sequence[int] | None = None,
        signs: int | Sequence[int] | None = None,
        mixes: bool = True,
    ) -> Monomial:
        """Subgroup with fewer kinds of generators: which scales and signs stay, or how many; by default all.

        ``mixes=False`` leaves out a linear part, which this group does not have.

        Examples:
            >>> Monomial(4).reduced(scales=0)
            SignedPermutation(4)
        """
        k, m = (len(chosen(which, count)) for which, count in ((scales, self.scales), (signs, self.signs)))
        return replace(self, permutes=self.permutes and permutes, scales=k, signs=m)

    def _holds(self, inner: Group) -> bool:
        if not isinstance(inner, Monomial):
            return False
        fewer = inner.scales <= self.scales and inner.signs <= self.signs
        return fewer and (self.permutes or not inner.permutes or self.n == 1)

    @property
    def _on_one_channel(self) -> tuple[bool, bool]:
        return self.scales > 0, self.signs > 0

    def element(self, index: Tensor | list[int], scale: Tensor | list[float] | None = None) -> MonomialElement:
        """The element ``x -> (scale_i x_{index_i})_i``; without ``scale``, all scales are 1.

        Raises:
            ValueError: If ``index`` is not a permutation of ``n`` channels, or a scale is not allowed.
        """
        p = torch.as_tensor(index, dtype=torch.int64).clone()
        if p.shape != (self.n,) or not torch.equal(p.sort().values, torch.arange(self.n, device=p.device)):
            raise ValueError(f"index must be a permutation of 0 .. {self.n - 1}. Got {p.tolist()[:_SHOWN]}.")
        if not self.permutes and not torch.equal(p, torch.arange(self.n, device=p.device)):
            raise ValueError(f"index must be 0 .. {self.n - 1} in {self!r}. Got {p.tolist()[:_SHOWN]}.")
        if scale is None:
            return MonomialElement(self, p, None)
        s = torch.tensor(scale, dtype=torch.float64) if isinstance(scale, list) else scale.detach().clone().to(p.device)
        s = s if s.is_floating_point() else s.to(torch.float64)
        if s.shape != (self.n,) or not torch.isfinite(s).all() or not self._allowed(s, 0.0):
            raise ValueError(f"scale must be {self.n} numbers of {self.words}. Got {s.tolist()}.")
        return MonomialElement(self, p, None if bool((s == 1).all()) else s)

    def identity(self, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> MonomialElement:
        """The element that changes nothing."""
        return MonomialElement(self, torch.arange(self.n, device=device), None)

    def _random(self, source: torch.Generator | None) -> MonomialElement:
        device = source.device if source is not None else None
        still = torch.arange(self.n, device=device)
        index = torch.randperm(self.n, generator=source, device=device) if self.permutes else still
        return MonomialElement(self, index, self._draw(source))

    def contains(self, matrix: Tensor, tol: float = 1e-6) -> bool:
        """Whether each row and column has one entry above ``tol`` times its row's largest, and scales are allowed."""
        a = self._check(matrix)
        if not torch.isfinite(a).all():
            return False
        top, column = a.abs().max(dim=1)
        support = a.abs() > tol * top[:, None]
        if bool((top == 0).any()) or not bool((support.sum(1) == 1).all() & (support.sum(0) == 1).all()):
            return False
        if not self.permutes and not torch.equal(column, torch.arange(self.n, device=a.device)):
            return False
        return self._allowed(a.gather(1, column[:, None])[:, 0], tol)

    def dense(self, matrix: Tensor) -> MonomialElement:
        """The element with this matrix, which is not checked: Theorem E.14's factors, read off."""
        index, a = matrix.abs().argmax(1), matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        return MonomialElement(self, index, self._scales(a.gather(1, index[:, None])[:, 0]))

    def project(self, matrix: Tensor, floor: float | None = None) -> MonomialElement:
        """The element nearest to ``matrix`` in Frobenius norm, by optimal assignment.

        A pair ``(i, j)`` with the best allowed scale ``s`` saves ``M_ij^2 - (M_ij - s)^2``. So pairs are assigned on
        ``M_ij`` for permutations, ``|M_ij|`` with signs, ``max(M_ij, 0)^2`` for positive scales and ``M_ij^2`` for
        nonzero ones. ``floor`` is the positive scale to use where the nearest one is 0, which no element has.

        Raises:
            Unattained: If a scale would be 0 and there is no ``floor``.
            ValueError: If ``matrix`` is not finite or of another size, or ``floor`` is not positive.
        """  # noqa: DOC502 - raised by checks
        m = self._check_finite(matrix)
        index = self._order(self._gain(m))
        return self._attained(index, m.gather(1, index[:, None])[:, 0], floor)

    def procrustes(
        self,
        xy: Tensor,
        xx: Tensor | None = None,
        yy: Tensor | None = None,
        *,
        objective: Objective = "least_squares",
        floor: float | None = None,
    ) -> MonomialElement:
        """The element ``g`` with ``g x ~ y``.

        ``"least_squares"`` minimises ``sum |y - g x|^2``. If scales are free, a pair ``(i, j)`` saves ``xy_ji^2 /
        xx_jj`` (for positive scales only where ``xy_ji > 0``), that is ``max(cos, 0)^2`` between features of unit norm.
        ``"cosine"`` maximises the sum of ``cos`` (the paper's G_ReLU-Procrustes, Def. 5.2), or of ``|cos|`` if signs
        are free, and then, if scales are free, gives channel ``j`` the norm of channel ``i``. The two differ: between
        random non-negative features of 8 channels and 12 to 200 examples they chose different permutations in 15 to 7
        of 50 pairs.

        Moments are those of ``Group.procrustes``: ``xx`` is needed with free scales (otherwise a scale has no best
        value) and for cosines, ``yy`` for cosines. ``floor`` is as in ``project``: without it, a scale of 0 is refused
        (``Unattained``).

        Raises:
            ValueError: If a required moment is missing, a channel without energy in ``xx`` or ``yy`` is divided by, or
                ``objective`` is unknown.
        """
        c = self._check_finite(xy, "xy").T  # c[i, j] = <y_i, x_j>
        if objective == "least_squares":
            if not self.scales:
                return self.project(c)  # sum |g x|^2 does not depend on g
            energy = self._energy(xx, "xx")
            index = self._order(self._gain(c / energy.sqrt()))
            return self._attained(index, c.gather(1, index[:, None])[:, 0] / energy[index], floor)
        if objective == "cosine":
            x_norm, y_norm = self._energy(xx, "xx").sqrt(), self._energy(yy, "yy").sqrt()
            cosine = c / (y_norm[:, None] * x_norm)
            signed = self.signs > 0
            index = self._order(cosine.abs() if signed else cosine)
            sign = cosine.gather(1, index[:, None])[:, 0].sign() if signed else torch.ones_like(x_norm)
            sign = torch.where(sign == 0, 1.0, sign)
            return self._attained(index, sign * y_norm / x_norm[index] if self.scales else sign, floor)
        raise ValueError(f"objective must be 'least_squares' or 'cosine'. Got {objective!r}.")

    def _order(self, gain: Tensor) -> Tensor:
        return assign(gain) if self.permutes else torch.arange(self.n, device=gain.device)

    def _gain(self, m: Tensor) -> Tensor:
        """Part of ``|m|^2`` that pairing output ``i`` with input ``j`` saves, up to what all permutations share."""
        if self.scales:
            return m.square() if self.signs else m.clamp_min(0).square()
        return m.abs() if self.signs else m

    def _scales(self, matched: Tensor) -> Tensor | None:
        """Allowed scales nearest to ``matched``; zeros where there is no nearest one."""
        if self.scales:
            return matched if self.signs else matched.clamp_min(0)
        return torch.where(matched < 0, -1.0, 1.0).to(matched.dtype) if self.signs else None

    def _allowed(self, scale: Tensor, tol: float) -> bool:
        """Whether scales are allowed, up to a relative tolerance."""
        if self.scales:
            return bool((scale != 0).all() if self.signs else (scale > 0).all())
        return bool((((scale.abs() if self.signs else scale) - 1).abs() <= tol).all())

    def _draw(self, generator: torch.Generator | None) -> Tensor | None:
        magnitude = lognormal(self.n, generator) if self.scales else None
        if not self.signs:
            return magnitude
        signs = random_signs((self.n,), generator)
        return signs if magnitude is None else magnitude * signs

    def _attained(self, index: Tensor, best: Tensor, floor: float | None) -> MonomialElement:
        if floor is not None and not floor > 0:
            raise ValueError(f"floor must be positive. Got {floor}.")
        scale = self._scales(best)
        if scale is not None and bool((scale == 0).any()):
            if floor is None:
                bad = int((scale == 0).nonzero()[0])
                raise Unattained(
                    f"the matched entries must be {'nonzero' if self.signs else 'positive'} for a "
                    f"nearest element of {self!r} to exist. Got {float(best[bad]):g} for output {bad}. "
                    "Pass floor= to use that scale there, or drop dead channels first."
                )
            scale = torch.where(scale == 0, torch.full_like(scale, floor), scale)
        return MonomialElement(self, index, scale)

    def _energy(self, moment: Tensor | None, name: str) -> Tensor:
        if moment is None:
            raise ValueError(f"{name} must be given: scales and cosines need the channels' norms. Got None.")
        energy = moment.detach().to(torch.float64)
        energy = energy.diagonal() if energy.ndim == 2 else energy
        if energy.shape != (self.n,) or not bool((energy > 0).all()):
            dead = (~(energy > 0)).nonzero().flatten().tolist()[:_SHOWN]
            raise ValueError(
                f"{name} must hold {self.n} positive second moments. Got shape {tuple(energy.shape)}, channels {dead} "
                "without energy. Drop dead channels first."
            )
        return energy


def Trivial(n: int) -> Monomial:
    """The identity alone."""
    return Monomial(n, scales=0, signs=0, permutes=False)


def Permutation(n: int) -> Monomial:
    """Permutation matrices: the group of sigmoid, GELU, SiLU and most smooth activations.

    Examples:
        >>> g = Permutation(3).element([2, 0, 1])
        >>> g.apply(torch.tensor([10.0, 11.0, 12.0]), dim=0)
        tensor([12., 10., 11.])
    """
    return Monomial(n, scales=0, signs=0)


def SignedPermutation(n: int) -> Monomial:
    """Matrices ``P D`` with ``D`` of entries -1 and 1: the group of tanh, erf, sin and the Gaussian bump."""
    return Monomial(n, scales=0)


def PositiveMonomial(n: int) -> Monomial:
    """Matrices ``P D`` with ``D`` positive: G_ReLU, the intertwiner group of ReLU and LeakyReLU (paper 1, Table 1).

    Examples:
        >>> g = PositiveMonomial(2).element([1, 0], [2.0, 0.5])
        >>> x = torch.tensor([[3.0, -4.0]])
        >>> torch.equal(torch.relu(g.apply(x)), g.apply(torch.relu(x)))
        True
    """
    return Monomial(n, signs=0)


def chosen(which: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Indices of the generators, out of ``count``, given by a number of them, a choice, or ``None`` for all."""
    if which is None or isinstance(which, int):
        return tuple(range(count if which is None else min(which, count)))
    return tuple(which)
