"""The page of a result that has none of its own: its headline, its table, and what it prints."""

from ..._result import Result
from ..blocks import Details, Listing, Paragraph, Table
from ..page import Page

_ROWS = 2000


def plain_page(result: Result) -> Page:
    """Lay out any result as its headline, the first 2,000 rows of its table and its printed form."""
    frame = result.to_frame()
    rows = frame.head(_ROWS).to_numpy().tolist()
    shown = f"The first {_ROWS:,} of {len(frame):,} rows." if len(frame) > _ROWS else ""
    return Page(
        type(result).__name__,
        [
            Paragraph(result.headline, "verdict"),
            Table([str(c) for c in frame.columns], rows, caption=shown),
            Details("The result as text", [Listing(str(result))]),
        ],
    )
