"""Gates and paths: the dual view of ReLU networks."""

from .paths import Paths, paths
from .patterns import gate_patterns

__all__ = ["Paths", "gate_patterns", "paths"]
