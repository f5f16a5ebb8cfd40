"""Hidden features at named points of any module; nothing stays attached afterwards."""

from .evaluate import Score, evaluate
from .points import Point, Reading, Selector, layers
from .tapped import Tapped, collect, tap

__all__ = ["Point", "Reading", "Score", "Selector", "Tapped", "collect", "evaluate", "layers", "tap"]
