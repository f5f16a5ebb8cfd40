"""The page of a result that has none of its own: what it prints, and its table."""

from ..._result import Result
from ..blocks import Heading, Listing, Table
from ..page import Page

_ROWS = 2000


def plain_page(result: Result) -> Page:
    """Lay out any result as its printed form and the first 2,000 rows of its table."""
    frame = result.to_frame()
    rows = frame.head(_ROWS).to_numpy().tolist()
    shown = f"The first {_ROWS:,} of {len(frame):,} rows." if len(frame) > _ROWS else ""
    return Page(
        type(result).__name__,
        [Listing(str(result)), Heading("Table"), Table([str(c) for c in frame.columns], rows, caption=shown)],
    )
