"""One self-contained HTML page from any result."""

from . import blocks
from .blocks import *  # noqa: F403
from .figures import Series, bars, heatmap, lines, scatter
from .notebook import notebook
from .page import Page, render
from .write import load_result, page_of, write_page

__all__ = [
    # pages of results
    "write_page", "page_of", "load_result", "notebook",
    # pages by hand, and what they hold
    "Page", "render", *blocks.__all__,
    # figures
    "heatmap", "lines", "bars", "scatter", "Series",
]  # fmt: skip
