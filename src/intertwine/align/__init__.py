"""Bring two networks into one basis."""

import sys
from types import ModuleType

from .align import METHODS, align
from .alignment import Alignment
from .task import Found, Task

__all__ = ["METHODS", "Alignment", "Found", "Task", "align"]


class _Room(ModuleType):
    """A room that shares its name with its main function: ``iw.align(...)`` and ``iw.align.Alignment`` both work."""

    __call__ = staticmethod(align)


sys.modules[__name__].__class__ = _Room
