"""One self-contained HTML page from any result."""

from .blocks import (
    Arrow,
    Block,
    Box,
    Details,
    Diagram,
    Facts,
    Figure,
    Grid,
    Heading,
    Listing,
    Paragraph,
    Shot,
    Table,
    Tabs,
    Tag,
    Wall,
)
from .figures import Series, bars, heatmap, lines, scatter
from .page import Page, render
from .write import load_result, page_of, write_page

__all__ = [
    # pages of results
    "write_page",
    "page_of",
    "load_result",
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
    "Diagram",
    "Box",
    "Arrow",
    "Tag",
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
