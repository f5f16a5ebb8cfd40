"""Permutations alone: the intertwiner group of sigmoid, GELU and most smooth activations."""

from .birkhoff import Birkhoff

__all__ = ["Permutation"]


class Permutation(Birkhoff):
    """``P``, by projected gradient on the Birkhoff polytope. Arguments are those of :class:`Birkhoff`."""

    family = "permutation"
    group_name = "permutation"
    scaled = False
