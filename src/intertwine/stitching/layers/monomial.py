"""Monomial groups as stitching layers: permutations, with or without signs and positive scales."""

from ... import groups
from .birkhoff import Birkhoff


class GReLU(Birkhoff):
    """``P D`` with positive ``D``: the intertwiner group of ReLU (paper 1, v2 D.2.1). Arguments as of ``Birkhoff``.

    Examples:
        >>> layer = GReLU(3, 3).eval()
        >>> (layer.rounded() > 0).sum(1)
        tensor([1, 1, 1])
    """

    family = "g_relu"


class Permutation(Birkhoff):
    """``P``: the intertwiner group of sigmoid, GELU and most smooth activations. Arguments as of ``Birkhoff``."""

    family = "permutation"
    relaxes = groups.Permutation(1)


class SignedPermutation(Birkhoff):
    """Entries -1 or 1, one in every row and column: the intertwiner group of tanh, erf and sin.

    In training magnitudes are doubly stochastic, and an entry changes sign when a step carries it through zero.
    Arguments as of ``Birkhoff``.
    """

    family = "signed_permutation"
    relaxes = groups.SignedPermutation(1)


class Monomial(Birkhoff):
    """``P D`` with signs on ``P``: the intertwiner group of ``|x|`` and ``x^d``. Arguments as of ``Birkhoff``."""

    family = "monomial"
    relaxes = groups.Monomial(1)
