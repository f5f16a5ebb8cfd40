"""Functions of rooms above that objects of rooms below offer: a result has a page and knows nothing of pages.

Each loads its room when it is called.
"""

from importlib import import_module
from typing import Any

_PLACES = {
    "page": ("report", "write_page"),
    "notebook": ("report", "notebook"),
    "mappings": ("exchange", "mappings"),
}


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call the function of a name."""
    room, function = _PLACES[name]
    return getattr(import_module(f"{__package__}.{room}"), function)(*args, **kwargs)
