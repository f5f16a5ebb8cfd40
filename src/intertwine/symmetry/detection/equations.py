"""Exact linear algebra over the rationals (positive scales) and over F2 (signs).

The unknowns of the equations are the scales, signs and variances of parameter axes.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from .axis_terms import Expr


class RationalEquations:
    """Equations ``sum_v c_v x_v = 0`` over the rationals, kept in echelon form as they arrive.

    The largest variable of an equation is eliminated, so the smallest ones remain free.
    """

    def __init__(self, forms: Iterable[Mapping] = ()) -> None:
        self._rows: dict[Any, dict] = {}  # pivot -> the other terms of the equation pivot = sum of terms
        for form in forms:
            self.add(form)

    @property
    def rank(self) -> int:
        """Number of independent equations."""
        return len(self._rows)

    def reduce(self, form: Mapping) -> dict:
        """``form`` with every eliminated variable replaced by free ones."""
        form = {v: c for v, c in form.items() if c}
        while pivots := [v for v in form if v in self._rows]:
            for pivot in pivots:
                coefficient = form.pop(pivot, 0)
                if not coefficient:
                    continue
                for v, c in self._rows[pivot].items():
                    form[v] = form.get(v, 0) + coefficient * c
                    if not form[v]:
                        del form[v]
        return form

    def add(self, form: Mapping) -> bool:
        """Add ``form = 0``; returns whether it is new."""
        form = self.reduce(form)
        if not form:
            return False
        pivot = max(form)
        leading = form.pop(pivot)
        self._rows[pivot] = {v: -c / leading for v, c in form.items()}
        return True

    def solutions(self, variables: Iterable) -> list[dict]:
        """A basis of the solutions, one vector per free variable, in the order of ``variables``."""
        basis: dict[Any, dict] = {}
        for v in sorted(variables):
            for free, c in self.reduce({v: Fraction(1)}).items():
                basis.setdefault(free, {})[v] = c
        return [basis[free] for free in sorted(basis)]


class BinarySpan:
    """Span of words over F2, kept in echelon form as they arrive; bit ``k`` of a number is entry ``k`` of a word.

    Each word carries a number that is added whenever the word is: by default, the bit of its place among the words.
    """

    def __init__(self, words: Iterable[int] = ()) -> None:
        self._rows: dict[int, tuple[int, int]] = {}  # highest bit -> the word, and the number it carries
        self._leading = 0
        for k, word in enumerate(words):
            self.add(word, 1 << k)

    @property
    def rank(self) -> int:
        """Number of independent words."""
        return len(self._rows)

    def reduced(self, word: int, along: int = 0) -> tuple[int, int]:
        """The remainder of a word, which is the same for its whole coset, and the number carried along.

        If words carry right-hand sides of equations, a single bit's number is its value when all free bits are zero.
        """
        while known := word & self._leading:
            other, more = self._rows[known.bit_length() - 1]
            word, along = word ^ other, along ^ more
        return word, along

    def add(self, word: int, along: int = 0) -> bool:
        """Add a word; returns whether it is independent of those before."""
        word, along = self.reduced(word, along)
        if word:
            lead = word.bit_length() - 1
            self._rows[lead], self._leading = (word, along), self._leading | 1 << lead
        return bool(word)

    def solutions(self, bits: Iterable[int]) -> list[set[int]]:
        """A basis, on some bits, of the vectors orthogonal to all words, each as the set of its bits that are one."""
        basis: dict[int, set[int]] = {}
        for bit in sorted(bits):
            left = self.reduced(1 << bit)[0]
            while left:
                free = left.bit_length() - 1
                basis.setdefault(free, set()).add(bit)
                left ^= 1 << free
        return [basis[free] for free in sorted(basis)]


def bits_of(places: Iterable[int]) -> int:
    """The word with ones at some places."""
    return sum(1 << place for place in places)


def word_of(entries: Sequence[int]) -> int:
    """A word from its entries, 0 or 1; the first one leads."""
    return sum(bit << k for k, bit in enumerate(reversed(entries)))


class System:
    """Equations of one pass.

    Variances are kept in a union-find with parity: two leaves have equal or opposite variance; a contradiction means
    that a matrix must equal its own inverse transpose, so that only orthogonal ones pass.
    """

    def __init__(self) -> None:
        # leaves of parameter axes whose exponents are the unknowns: tensor, axis and space
        self.unknowns: list[tuple[str, int, int]] = []
        self.log = RationalEquations()
        self.sign = BinarySpan()
        self.contradictory: set[int] = set()
        self._turn: dict[int, tuple[int, int]] = {}

    def new(self, tensor: str, axis: int, space: int) -> Expr:
        """The expression of a new unknown."""
        self.unknowns.append((tensor, axis, space))
        v = len(self.unknowns) - 1
        return Expr({v: Fraction(1)}, frozenset((v,)), (v, 1))

    def sign_is_zero(self, expr: Expr) -> bool:
        """Let no sign pass; returns whether that is new."""
        return self.sign.add(bits_of(expr.sign))

    def root(self, v: int) -> tuple[int, int]:
        """The unknown whose variance represents that of ``v``, and whether it is the same (1) or opposite (-1)."""
        parity = 1
        while v in self._turn:
            v, step = self._turn[v]
            parity *= step
        return v, parity

    def relate(self, a: Expr, b: Expr, parity: int) -> None:
        """Make two axes transform alike (1), or inversely to each other (-1), as axes that are contracted do."""
        self.log.add((a + b.power(-parity, True)).log)
        self.sign.add(bits_of(a.sign ^ b.sign))
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
