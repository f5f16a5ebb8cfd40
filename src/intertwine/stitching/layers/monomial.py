"""Permutations with nonzero scales: the intertwiner group of ``|x|`` and ``x^d``."""

from .birkhoff import Birkhoff

__all__ = ["Monomial"]


class Monomial(Birkhoff):
    """``P D`` with signs on ``P`` and positive ``D``. Arguments are those of :class:`Birkhoff`."""

    family = "monomial"
    group_name = "monomial"
    signed = True
