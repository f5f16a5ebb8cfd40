"""Functions of rooms above that objects of rooms below offer: a result has a page and knows nothing of pages.

The package registers them when it is imported; each loads its room when it is first called.
"""

from collections.abc import Callable
from typing import Any

_offered: dict[str, Callable[..., Any]] = {}


def offer(name: str, function: Callable[..., Any]) -> None:
    """Let ``call(name, ...)`` be ``function(...)``."""
    _offered[name] = function


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call what was offered under a name."""
    return _offered[name](*args, **kwargs)
