"""Merging: one network from several, repaired statistics, and the loss barrier between networks."""

from .barrier import PathOptions, barrier, barriers
from .curves import Barrier, Curve
from .export import export
from .merge import merge
from .merge_many import average, merge_many
from .recalibrate import recalibrate_
from .repair import repair_
from .transport import Transport, transport

__all__ = [
    "Barrier", "Curve", "PathOptions", "Transport", "average", "barrier", "barriers", "export", "merge",
    "merge_many", "recalibrate_", "repair_", "transport",
]  # fmt: skip
