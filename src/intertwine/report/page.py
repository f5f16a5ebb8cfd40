"""From blocks to one self-contained HTML file."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .._untrusted.text import printable, printable_json
from .blocks import Block, Heading

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_LONG = 50_000  # characters of a figure beyond which it is compressed


@dataclass(frozen=True)
class Page:
    """A page before it is HTML."""

    title: str
    blocks: Sequence[Block]
    subtitle: str = ""
    networks: Sequence[str] = ()

    @property
    def of(self) -> list[str]:
        """The networks, with letters where there are two."""
        letters = ("A: ", "B: ") if len(self.networks) == 2 else [""] * len(self.networks)
        return [f"{letter}{network}" for letter, network in zip(letters, self.networks)]

    @property
    def headings(self) -> list[str]:
        """Texts of the headings, for the list of contents."""
        return [block.text for block in self.blocks if isinstance(block, Heading)]

    @property
    def anchors(self) -> list[str]:
        """An address within the page for each heading."""
        return [f"{k}-{re.sub('[^a-z0-9]+', '-', text.lower()).strip('-')}" for k, text in enumerate(self.headings, 1)]


def render(page: Page) -> str:
    """Write a page, its texts escaped, as HTML that holds all it needs: styles, plots and the program that draws them.

    Examples:
        >>> from intertwine.report import Paragraph
        >>> html = render(Page("<Title>", [Paragraph("1 < 2")]))
        >>> "<h1>&lt;Title&gt;</h1>" in html, "1 &lt; 2" in html
        (True, True)
    """
    from importlib.metadata import version

    source = files("intertwine.report")
    held = set(_kinds(page.blocks))
    drawing = [(source / name).read_text("utf-8") for name in ("dagre.min.js", "network.js")]
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            style=_trusted((source / "page.css").read_text("utf-8")),
            script=_trusted((source / "page.js").read_text("utf-8")),
            plotly=_trusted(packed_plotly() if "figure" in held else ""),
            drawing=_trusted("".join(drawing) if "network" in held else ""),
            version=version("intertwine"),
        )
    )


def _kinds(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        yield block.kind
        for inner in (getattr(block, "blocks", ()), *getattr(block, "tabs", {}).values()):
            yield from _kinds(inner)


@cache
def packed_plotly() -> str:
    """The JavaScript of the installed plotly package, compressed and in letters that HTML may hold."""
    return _packed((files("plotly") / "package_data" / "plotly.min.js").read_bytes())


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("intertwine", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["data"] = _data
    environment.tests["number"] = lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    return environment


def _shown(value: Any) -> Any:
    from markupsafe import Markup

    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _data(value: Any) -> Markup:
    # A script element that holds a value as JSON, compressed where that is long.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = printable_json(text, shown=True)
    if len(text) > _LONG:
        return _trusted(f'<script type="text/plain">{_packed(text.encode())}</script>')
    # "</script" and "<!--" would end or change the element: no angle bracket is left as it is
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return _trusted(f'<script type="application/json">{text}</script>')


def _trusted(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)
