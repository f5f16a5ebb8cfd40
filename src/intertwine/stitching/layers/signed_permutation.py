"""Permutations with signs: the intertwiner group of tanh, erf and sin."""

from .birkhoff import Birkhoff

__all__ = ["SignedPermutation"]


class SignedPermutation(Birkhoff):
    """Matrices with one entry -1 or 1 in every row and column; in training their magnitudes are doubly stochastic.

    An entry changes sign when a step carries it through zero. Arguments are those of :class:`Birkhoff`.
    """

    family = "signed_permutation"
    group_name = "signed_permutation"
    scaled = False
    signed = True
