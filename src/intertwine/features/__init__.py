"""Hidden features at named points of any module; nothing stays attached afterwards."""

from .collect import collect
from .evaluate import Score, evaluate
from .points import Point, layers
from .reading import Reading, Selector
from .tapped import Tapped, tap

__all__ = ["Point", "Reading", "Score", "Selector", "Tapped", "collect", "evaluate", "layers", "tap"]
