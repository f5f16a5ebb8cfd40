"""Groups of hidden transformations as values, and the group that each activation lets through."""

from .activations import Homogeneity, activation_names
from .assignment import assign
from .dense import DenseElement, GeneralLinear, Orthogonal, UnitRowSum
from .element import Element, Semidirect, SpaceGroup
from .group import Group, MatrixElement, Unattained
from .intertwiner_laws import gelu_error
from .intertwiners import GatedIntertwiner, Intertwiner, TableRow, classify, intertwiner, table
from .monomial import Monomial, MonomialElement, Permutation, PositiveMonomial, SignedPermutation, Trivial
from .naming import canonical_name, name_of, named, names
from .representation import Representation

__all__ = [
    # groups
    "Trivial", "Permutation", "SignedPermutation", "PositiveMonomial", "Monomial",
    "Orthogonal", "UnitRowSum", "GeneralLinear", "Semidirect", "Group", "SpaceGroup",
    # elements
    "Element", "MatrixElement", "MonomialElement", "DenseElement", "Unattained",
    # how an element acts on an axis
    "Representation",
    # by name
    "canonical_name", "name_of", "named", "names",
    # activations
    "intertwiner", "Intertwiner", "GatedIntertwiner", "Homogeneity", "classify", "table", "TableRow",
    "activation_names", "gelu_error",
    # solver
    "assign",
]  # fmt: skip
