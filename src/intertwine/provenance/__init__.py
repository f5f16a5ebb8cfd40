"""Provenance: whether one network was trained independently of another, which parts, and what changed between two."""

from .diff import diff
from .difference import Diff
from .families.links import Link
from .families.merges import Merge
from .families.tree import Tree, lineage_tree, tree_of_states
from .lineage import lineage, lineage_of_states
from .result import DERIVED, NO_SIGN, UNTOLD, BlockAgreement, Lineage

__all__ = [
    "DERIVED",
    "NO_SIGN",
    "UNTOLD",
    "BlockAgreement",
    "Diff",
    "Lineage",
    "Link",
    "Merge",
    "Tree",
    "diff",
    "lineage",
    "lineage_of_states",
    "lineage_tree",
    "tree_of_states",
]
