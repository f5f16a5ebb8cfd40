"""Hidden features at named points of any module; nothing stays attached afterwards."""

from ._outputs import Selector
from .collect import collect
from .points import Point, layers
from .tapped import Tapped, tap

__all__ = ["Point", "Selector", "Tapped", "collect", "layers", "tap"]
