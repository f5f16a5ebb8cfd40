"""Equations for the scales, signs and variances of parameter axes, which are their unknowns."""

from dataclasses import dataclass

from .axis_terms import Expr
from .linear_equations import BinaryEquations, RationalEquations


@dataclass(frozen=True)
class Unknown:
    """One leaf of one axis of one parameter: its exponents are what is solved for."""

    tensor: str
    axis: int
    place: tuple[int, ...]
    space: int


class System:
    """Equations of one pass.

    Variances are kept in a union-find with parity: two leaves have equal or opposite variance; a contradiction means
    that a matrix must equal its own inverse transpose, so that only orthogonal ones pass.
    """

    def __init__(self) -> None:
        self.unknowns: list[Unknown] = []
        self.log = RationalEquations()
        self.sign = BinaryEquations()
        self.contradictory: set[int] = set()
        self._turn: dict[int, tuple[int, int]] = {}

    def new(self, unknown: Unknown) -> Expr:
        """The expression of a new unknown."""
        from fractions import Fraction

        self.unknowns.append(unknown)
        v = len(self.unknowns) - 1
        return Expr({v: Fraction(1)}, frozenset((v,)), (v, 1))

    def log_is_zero(self, expr: Expr) -> bool:
        """No positive scale passes; tell whether that is new."""
        return self.log.add(expr.log)

    def sign_is_zero(self, expr: Expr) -> bool:
        """No sign passes; tell whether that is new."""
        return self.sign.add(expr.sign)

    def equal(self, a: Expr, b: Expr) -> None:
        """Both axes scale and turn alike."""
        self.log.add((a + b.power(-1, True)).log)
        self.sign.add(a.sign ^ b.sign)
        self._relate(a, b, 1)

    def opposite(self, a: Expr, b: Expr) -> None:
        """The axes are summed against each other: what one does the other undoes."""
        self.log.add((a + b).log)
        self.sign.add(a.sign ^ b.sign)
        self._relate(a, b, -1)

    def root(self, v: int) -> tuple[int, int]:
        """The unknown whose variance stands for that of ``v``, and whether it is the same (1) or opposite (-1)."""
        parity = 1
        while v in self._turn:
            v, step = self._turn[v]
            parity *= step
        return v, parity

    def _relate(self, a: Expr, b: Expr, parity: int) -> None:
        if a.turn is None or b.turn is None:
            return
        (u, p), (v, q) = self.root(a.turn[0]), self.root(b.turn[0])
        relation = parity * p * q * a.turn[1] * b.turn[1]
        if u == v:
            if relation == -1:
                self.contradictory.add(u)
            return
        self._turn[v] = (u, relation)
        if v in self.contradictory:
            self.contradictory.add(u)
