"""Groups of spaces whose units may be mixed: matrices of a kind, and scales, signs and permutations beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .dense import GeneralLinear, Orthogonal
from .monomial import Monomial, Permutation, chosen
from .representation import Representation, subscript

__all__ = ["Semidirect", "SpaceGroup"]


_TRIVIAL = Representation()


@dataclass(frozen=True, init=False)
class Semidirect:
    """Products ``M D P`` with ``M`` in ``O(n)`` or ``GL(n)`` and ``D P`` in a monomial group.

    ``M D P M' D' P'`` is brought back to that shape by moving ``M'`` to the left, ``D P M' P^-1 D^-1``; so ``D`` must
    act in one way wherever ``M`` does.

    Args:
        linear: The group of ``M``.
        monomial: The group of ``D P``; permutations by default.
        charges: How ``D`` acts where ``M`` does, trivially by default; ``None`` where the axes of a network agree on no
            way: elements with both parts then do not compose.

    Examples:
        >>> group = Semidirect(GeneralLinear(4), Monomial(4, scales=2))
        >>> group.symbol, group.reduced(mixes=False)
        ('GL₄', Monomial(4, scales=2, signs=1))
    """

    linear: Orthogonal | GeneralLinear
    monomial: Monomial
    charges: Representation | None

    def __init__(
        self,
        linear: Orthogonal | GeneralLinear,
        monomial: Monomial | None = None,
        charges: Representation | None = _TRIVIAL,
    ) -> None:
        monomial = Permutation(linear.n) if monomial is None else monomial
        if monomial.n != linear.n:
            raise ValueError(f"both parts must act on as many channels. Got {linear!r} and {monomial!r}.")
        object.__setattr__(self, "linear", linear)
        object.__setattr__(self, "monomial", monomial)
        object.__setattr__(self, "charges", charges)

    mixes = True

    @property
    def n(self) -> int:
        """Number of channels."""
        return self.linear.n

    @property
    def permutes(self) -> bool:
        """Whether permutations stand beside the matrices."""
        return self.monomial.permutes

    @property
    def scales(self) -> int:
        """Number of positive scales for each channel beside the matrices."""
        return self.monomial.scales

    @property
    def signs(self) -> int:
        """Number of signs for each channel beside the matrices."""
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
    def is_general(self) -> bool:
        """Whether the matrices are all invertible ones."""
        return isinstance(self.linear, GeneralLinear)

    @property
    def symbol(self) -> str:
        """The group in symbols, without what the matrices hold anyway: ``"GL₁₆"``, ``"O₆₄ × R₊⁶⁴"``."""
        if self.is_general:
            return f"GL{subscript(self.n)}"
        scales = Monomial(self.n, scales=self.scales, signs=0, permutes=False)
        return f"O{subscript(self.n)}" + (f" × {scales.symbol}" if self.scales else "")

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
