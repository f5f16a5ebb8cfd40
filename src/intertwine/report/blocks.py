"""Blocks of a page: small values, independent of HTML."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = [
    "Block", "Details", "Facts", "Figure", "Grid", "Heading", "Listing", "Network", "Paragraph", "Shot", "Table",
    "Tabs", "Wall",
]  # fmt: skip

_ROWS = 2000


@dataclass(frozen=True)
class Block:
    """Base of everything that a page may hold. Texts are plain: their contents are shown literally."""

    @property
    def kind(self) -> str:
        """The name of the class in lower case."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Heading(Block):
    """A heading of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph(Block):
    """A paragraph; a ``"verdict"`` is the main conclusion in one sentence, a ``"note"`` qualifies it."""

    text: str
    tone: Literal["plain", "verdict", "note"] = "plain"


def noted(notes: Iterable[str]) -> list[Block]:
    """Notes as paragraphs."""
    return [Paragraph(f"Note: {note}", "note") for note in notes]


@dataclass(frozen=True)
class Listing(Block):
    """Preformatted text, such as a command or a printed table."""

    text: str


@dataclass(frozen=True)
class Facts(Block):
    """Names and values, one pair per line."""

    facts: Mapping[str, Any]
    title: str = ""


@dataclass(frozen=True)
class Table(Block):
    """A table; numeric cells are aligned and rounded, ``None`` and NaN are left empty.

    Columns without any content are not shown.

    Raises:
        ValueError: If a row has not one cell per column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    digits: int = 3

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"rows must have {len(self.columns)} cells, one for each column. Got {len(row)}.")

    @classmethod
    def of(cls, frame: Any, caption: str = "", digits: int = 3) -> "Table":
        """The table of a data frame, limited to the first 2,000 rows."""
        more = f"The first {_ROWS:,} of {len(frame):,} rows. " if len(frame) > _ROWS else ""
        rows = frame.head(_ROWS).astype(object).to_numpy().tolist()
        return cls([str(c) for c in frame.columns], rows, f"{more}{caption}".strip(), digits)

    @property
    def shown(self) -> "Table":
        """The table without its empty columns."""
        kept = [k for k in range(len(self.columns)) if any(self.cell(row[k]) for row in self.rows)]
        if not self.rows or len(kept) == len(self.columns):
            return self
        rows = [[row[k] for k in kept] for row in self.rows]
        return replace(self, columns=[self.columns[k] for k in kept], rows=rows)

    def numeric(self, column: int) -> bool:
        """Whether a column holds only numbers."""
        found = [row[column] for row in self.rows if self.cell(row[column])]
        return bool(found) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in found)

    def cell(self, value: Any) -> str:
        """The text of a cell."""
        if value is None or value != value:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{round(value, self.digits) + 0.0:.{self.digits}f}"  # no "-0.000"
        return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Figure(Block):
    """A plot with plotly's ``data`` and ``layout``; its texts have gone through ``figures.label``."""

    spec: Mapping[str, Any]
    title: str = ""
    caption: str = ""
    height: int = 400


@dataclass(frozen=True)
class Network(Block):
    """A network drawn from top to bottom, as ``network.network`` describes it; ``title`` is for screen readers."""

    spec: Mapping[str, Any]
    title: str
    caption: str = ""


@dataclass(frozen=True)
class Grid(Block):
    """Blocks side by side, as many of at least ``width`` pixels as fit."""

    blocks: Sequence[Block]
    width: int = 420


@dataclass(frozen=True)
class Tabs(Block):
    """Alternatives by title, shown one at a time, starting with the first; ``name`` is for screen readers."""

    tabs: Mapping[str, Sequence[Block]]
    name: str = "Show"


@dataclass(frozen=True)
class Details(Block):
    """Blocks that a reader can unfold, with a line that says what is inside."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Shot:
    """Pictures that belong together (JPEG files as base64), with a line of text."""

    images: Sequence[str]
    title: str
    detail: str = ""


@dataclass(frozen=True)
class Wall(Block):
    """A wall of pictures."""

    shots: Sequence[Shot]
    caption: str = ""
