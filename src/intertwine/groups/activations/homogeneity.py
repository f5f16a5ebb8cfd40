"""Homogeneity of a scalar activation, which decides its intertwiner group by Theorem E.14."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..dense import GeneralLinear, UnitRowSum
from ..group import Group
from ..monomial import Monomial

__all__ = ["Homogeneity", "Kind", "Parity"]

Kind = Literal["linear", "affine", "nonlinear", "constant"]
Parity = Literal["odd", "even"]


@dataclass(frozen=True)
class Homogeneity:
    """How ``sigma(a x)`` relates to ``sigma(x)`` for all ``x``: Theorem E.14 reduces the group to this.

    Attributes:
        kind: ``"linear"`` (``sigma(x) = c x``), ``"affine"`` (``c x + b`` with ``b != 0``), ``"constant"`` or
            ``"nonlinear"``.
        degree: ``d`` where ``sigma(a x) = a^d sigma(x)`` for every ``a > 0``; ``None`` where there is none.
        parity: ``"odd"`` where ``sigma(-x) = -sigma(x)``, ``"even"`` where ``sigma(-x) = sigma(x)``.

    Examples:
        >>> relu = Homogeneity("nonlinear", degree=Fraction(1))
        >>> relu.group(3), float(relu.phi_scale(2.0))
        (PositiveMonomial(3), 2.0)
        >>> Homogeneity("nonlinear", Fraction(2), "even").phi_words
        'abs(A)^2 (every entry)'
    """

    kind: Kind
    degree: Fraction | float | None = None
    parity: Parity | None = None

    @property
    def scales(self) -> bool:
        """Whether every positive scale passes."""
        return self.degree is not None

    @property
    def signs(self) -> bool:
        """Whether a change of sign passes."""
        return self.parity is not None

    @property
    def kind_of_group(self) -> Callable[[int], Group]:
        """What makes the group on any number of channels.

        Raises:
            ValueError: If the activation is constant: every matrix passes and ``phi`` is not unique.
        """
        if self.kind == "constant":
            raise ValueError(
                "activation must not be constant. Got one: every matrix passes through it and phi is not unique "
                "(sigma(I) is not invertible), so it has no intertwiner group."
            )
        if self.kind in ("linear", "affine"):
            return GeneralLinear if self.kind == "linear" else UnitRowSum
        return partial(Monomial, scales=int(self.scales), signs=int(self.signs))

    def group(self, n: int) -> Group:
        """The intertwiner group on ``n`` channels.

        For ``n = 1`` and ``sigma`` affine this is the trivial group written as ``UnitRowSum(1)``.
        """
        return self.kind_of_group(n)

    def phi_scale(self, scale: float | Tensor) -> Tensor:
        """``phi`` on one channel: the ``b`` with ``sigma(a x) = b sigma(x)``.

        Args:
            scale: Scales ``a`` that the group allows (all 1 where it allows no other).

        Returns:
            The scales ``b``: ``sgn(a)^p |a|^d`` with ``p = 1`` where ``sigma`` is odd.
        """
        a = torch.as_tensor(scale, dtype=None if isinstance(scale, Tensor) else torch.float64)
        if self.kind in ("linear", "affine"):
            return a.clone()
        b = a.abs() ** float(self.degree) if self.degree is not None else torch.ones_like(a)
        return b * a.sign() if self.parity == "odd" else b

    @property
    def phi_words(self) -> str:
        """``phi(A)`` in words, as a function of the entries of ``A``."""
        if self.kind in ("linear", "affine"):
            return "A"
        odd = self.parity == "odd"
        if self.degree is None:
            return "abs(A)" if self.parity == "even" else "A"
        if self.degree == 1 and (odd or self.parity is None):
            return "A"
        if self.degree == 1:
            return "abs(A)"
        if self.degree == 0:
            return "sign(A)" if odd else "P"
        base = "abs(A)" if self.parity == "even" else "A"
        if odd and not (isinstance(self.degree, Fraction) and self.degree.denominator == 1 and self.degree % 2 == 1):
            return f"sign(A) abs(A)^{_short(self.degree)} (every entry)"
        return f"{base}^{_short(self.degree)} (every entry)"


def _short(degree: Fraction | float) -> str:
    return str(degree) if isinstance(degree, Fraction) else f"{degree:.6g}"
