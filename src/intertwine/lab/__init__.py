"""The lab: the papers' networks, the data they were trained on, and the loop that trains them.

The lab imports the library, never the other way round; each of its rooms is loaded when it is first used.

Example:
    >>> from intertwine import lab
    >>> lab.networks.build("resnet20:leaky_slope=0.1").relu
    LeakyReLU(negative_slope=0.1)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data, experiments, networks, runs, tiles, training, zoo

__all__ = ["data", "experiments", "networks", "runs", "tiles", "training", "zoo"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
