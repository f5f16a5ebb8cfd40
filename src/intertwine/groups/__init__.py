"""Groups of hidden transformations as values, and the group that each activation lets through."""

from .activations import activation_names
from .assignment import assign
from .dense import DenseElement, GeneralLinear, Orthogonal, UnitRowSum
from .gelu import gelu_error
from .group import Element, Group, Unattained
from .homogeneity import Homogeneity
from .intertwiners import GatedIntertwiner, Intertwiner, TableRow, classify, intertwiner, table
from .lattice import is_subgroup, join, named, names, next_larger
from .monomial import Monomial, Permutation, PositiveMonomial, SignedPermutation, Trivial
from .monomial_element import MonomialElement
from .products import BlockElement, Product, Wreath

__all__ = [
    # groups
    "Trivial", "Permutation", "SignedPermutation", "PositiveMonomial", "Monomial",
    "Orthogonal", "UnitRowSum", "GeneralLinear", "Product", "Wreath", "Group",
    # elements
    "Element", "MonomialElement", "DenseElement", "BlockElement", "Unattained",
    # by name, and which lies in which
    "named", "names", "is_subgroup", "join", "next_larger",
    # activations
    "intertwiner", "Intertwiner", "GatedIntertwiner", "Homogeneity", "classify", "table", "TableRow",
    "activation_names",     "gelu_error",
    # solver
    "assign",
]  # fmt: skip
