"""Merging: one network from several, repaired statistics, and the loss barrier between networks."""

from .barrier import PathOptions, barrier, barriers
from .curves import Barrier, Curve
from .export import export
from .merge import average, merge, merge_many, merge_moved
from .recipe import Recipe, TaskArithmetic, read_recipe
from .relatives import Family, align_family
from .repair import recalibrate_, repair_
from .transport import Transport, transport

__all__ = [
    "Barrier", "Curve", "Family", "PathOptions", "Recipe", "TaskArithmetic", "Transport", "align_family", "average",
    "barrier", "barriers", "export", "merge", "merge_many", "merge_moved", "read_recipe", "recalibrate_", "repair_",
    "transport",
]  # fmt: skip
