"""One self-contained HTML page from any result."""

from .blocks import Block, Details, Facts, Figure, Grid, Heading, Listing, Network, Paragraph, Shot, Table, Tabs, Wall
from .figures import Series, bars, heatmap, lines, scatter
from .notebook import notebook
from .page import Page, render
from .write import load_result, page_of, write_page

__all__ = [
    # pages of results
    "write_page",
    "page_of",
    "load_result",
    "notebook",
    # pages by hand
    "Page",
    "render",
    # blocks
    "Block",
    "Heading",
    "Paragraph",
    "Listing",
    "Facts",
    "Table",
    "Figure",
    "Network",
    "Grid",
    "Tabs",
    "Details",
    "Wall",
    "Shot",
    # figures
    "heatmap",
    "lines",
    "bars",
    "scatter",
    "Series",
]
