"""Provenance: whether networks or parts of them were trained independently, and what changed between two."""

from .comparable import States, in_one_gauge
from .descent import Merge
from .diff import diff
from .difference import Diff
from .in_place import BlockAgreement
from .lineage import DERIVED, NO_SIGN, UNTOLD, Lineage, lineage, lineage_folded, lineage_of_states
from .relatives import Link
from .tree import Tree, lineage_tree, tree_of_states

__all__ = [
    "DERIVED", "NO_SIGN", "UNTOLD", "BlockAgreement", "Diff", "Lineage", "Link", "Merge", "States", "Tree", "diff",
    "in_one_gauge", "lineage", "lineage_folded", "lineage_of_states", "lineage_tree", "tree_of_states",
]  # fmt: skip
