"""Stitching layers, one family in each file."""

from .birkhoff import Birkhoff, frobenius_on_polytope
from .diagonal import Diagonal
from .families import families, family_of, takes
from .full import Full
from .identity import Identity
from .lasso import Lasso, sparsity
from .monomial import GReLU, Monomial, Permutation, SignedPermutation
from .orthogonal import Orthogonal
from .projected import Projected
from .rank import Rank
from .relaxed import RelaxedPermutation
from .sinkhorn import sinkhorn
from .soft_sort import SoftSort, soft_sort

__all__ = [
    # by name or by group
    "families", "family_of", "takes",
    # linear maps
    "Full", "Rank", "Lasso", "sparsity",
    # permutations, relaxed
    "RelaxedPermutation", "Birkhoff", "GReLU", "Permutation", "SignedPermutation", "Monomial", "SoftSort",
    # the rest
    "Orthogonal", "Diagonal", "Identity", "Projected",
    # tools
    "sinkhorn", "soft_sort", "frobenius_on_polytope",
]  # fmt: skip
