"""Hidden features at named points of any module; nothing stays attached afterwards."""

from .collect import collect
from .points import Point, layers
from .tapped import Tapped, tap

__all__ = ["Point", "Tapped", "collect", "layers", "tap"]
