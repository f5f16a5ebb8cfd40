"""Representations: how an element ``M D P`` of a space's group acts on one axis of a tensor; digits for symbols."""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, Self

__all__ = ["KINDS", "Representation"]

KINDS = ("permutation", "scale", "sign", "linear")  # what the elements of spaces' groups are made of


@dataclass(frozen=True)
class Representation:
    """The action of an element on one axis: ``y_i = prod_k exp(e_k t_ki) prod_k s_ki^(f_k) x_(p_i)``, then ``M y``.

    Attributes:
        scale: Exponent ``e_k`` of every positive scale ``exp(t_k)``.
        sign: Exponent ``f_k`` of every sign ``s_k``; only its parity matters.
        variance: 1 for ``M``, -1 for the inverse transpose of ``M``, 0 for neither.
    """

    scale: tuple[Fraction, ...] = field(default=(), kw_only=True)
    sign: tuple[int, ...] = field(default=(), kw_only=True)
    variance: Literal[-1, 0, 1] = field(default=0, kw_only=True)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of elements that move the axis; permutations always do."""
        moved = (True, any(self.scale), any(parity % 2 for parity in self.sign), self.variance)
        return tuple(kind for kind, does in zip(KINDS, moved) if does)

    @property
    def dual(self) -> Self:
        """The inverse transpose, ``(M D P)^-T = M^-T D^-1 P``: how an axis that reads the features moves."""
        return replace(self, scale=tuple(-e for e in self.scale), variance=-self.variance)


_LOW = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_HIGH = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def subscript(number: int) -> str:
    """A number as a subscript.

    Examples:
        >>> f"S{subscript(48)}", f"R{superscript(7)}", f"R{superscript(1)}"
        ('S₄₈', 'R⁷', 'R')
    """
    return str(number).translate(_LOW)


def superscript(number: int, always: bool = False) -> str:
    """A number as a superscript; empty for 1, unless ``always`` is set."""
    return str(number).translate(_HIGH) if always or number != 1 else ""
