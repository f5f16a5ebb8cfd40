"""Matching: which element of the symmetry group brings one network to another, and what that tells."""

from .align import METHODS, align
from .alignment import Alignment
from .carriers import Place, places
from .same import same
from .sharded import align_sharded
from .task import Found, Task
from .verdict import Match

__all__ = ["METHODS", "Alignment", "Found", "Match", "Place", "Task", "align", "align_sharded", "places", "same"]
