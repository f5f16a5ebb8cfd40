"""One captured program of a model: what it computed, from which parameters, and where in the code."""

from .capture import capture
from .paths import capture_paths
from .program import Call, Program, Ref, Value
from .union import union

__all__ = ["Call", "Program", "Ref", "Value", "capture", "capture_paths", "union"]
