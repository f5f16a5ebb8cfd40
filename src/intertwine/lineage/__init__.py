"""Lineage: whether one network was trained independently of another, which parts, and what changed between two.

``intertwine.lineage(a, b, example_inputs)`` is the function of the same name in this room: the module can be called.
"""

import sys
from types import ModuleType

from .diff import diff
from .difference import Diff
from .lineage import lineage, lineage_of_states
from .result import DERIVED, NO_SIGN, UNTOLD, BlockAgreement, Lineage
from .tree import Link, Tree, tree, tree_of_states

__all__ = [
    "DERIVED",
    "NO_SIGN",
    "UNTOLD",
    "BlockAgreement",
    "Diff",
    "Lineage",
    "Link",
    "Tree",
    "diff",
    "lineage",
    "lineage_of_states",
    "tree",
    "tree_of_states",
]


class _Callable(ModuleType):
    """This room, which bears the name of its front door."""

    __call__ = staticmethod(lineage)


sys.modules[__name__].__class__ = _Callable
