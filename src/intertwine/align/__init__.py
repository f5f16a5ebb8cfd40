"""Bring networks into one basis, merge them, and measure the barrier between them."""

import sys
from types import ModuleType

from .align import METHODS, align
from .alignment import Alignment
from .barrier import barrier, barriers
from .curves import Barrier, Curve
from .evaluate import Score, evaluate
from .export import export
from .merge import merge
from .merge_many import Gathering, average, gather, merge_many
from .norm_gains import fold_norm_gains
from .places import Place, places
from .recalibrate import recalibrate_
from .repair import repair_
from .sharded import align_sharded
from .task import Found, Task
from .transport import Transport, transport

__all__ = [
    # align
    "METHODS", "Alignment", "Found", "Task", "align",
    # checkpoints that do not fit in memory
    "align_sharded",
    # where spaces can be seen in a run
    "Place", "places",
    # residual streams that rotate
    "fold_norm_gains",
    # networks of other widths
    "Transport", "transport",
    # merge
    "Gathering", "average", "export", "gather", "merge", "merge_many", "recalibrate_", "repair_",
    # the path between two networks
    "Barrier", "Curve", "Score", "barrier", "barriers", "evaluate",
]  # fmt: skip


class _Room(ModuleType):
    """A room that shares its name with its main function: ``iw.align(...)`` and ``iw.align.Alignment`` both work."""

    __call__ = staticmethod(align)


sys.modules[__name__].__class__ = _Room
