"""Configurations of other libraries that no list names, by package: what yields them, drawn when it is asked for."""

from collections.abc import Callable, Iterator
from functools import partial

from .packages import PACKAGES, drawn
from .registries import Draw, timm, torch_geometric, transformers

__all__ = ["DRAWS", "Draw"]

DRAWS: dict[str, Callable[[], Iterator[Draw]]] = {
    **{"transformers": transformers, "timm": timm, "torch_geometric": torch_geometric},
    **{package: partial(drawn, package) for package in PACKAGES},
}
