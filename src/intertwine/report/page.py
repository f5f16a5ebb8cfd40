"""Pages: from blocks to one self-contained HTML file, and the closing section of most pages."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from .._untrusted.text import printable, printable_json
from .._words import release
from .blocks import Block, Facts, Grid, Heading, Listing

if TYPE_CHECKING:
    from jinja2 import Environment

_LONG = 50_000  # characters of a figure beyond which it is compressed
_CARDS = {"network": "Network", "data": "Data", "versions": "Versions"}


@dataclass(frozen=True)
class Page:
    """A page before rendering to HTML."""

    title: str
    blocks: Sequence[Block]
    subtitle: str = ""
    networks: Sequence[str] = ()

    @property
    def of(self) -> list[str]:
        """The networks, lettered if there are two."""
        letters = ("A: ", "B: ") if len(self.networks) == 2 else [""] * len(self.networks)
        return [f"{letter}{network}" for letter, network in zip(letters, self.networks)]

    @property
    def headings(self) -> list[str]:
        """Texts of the headings, for the table of contents."""
        return [block.text for block in self.blocks if isinstance(block, Heading)]

    @property
    def anchors(self) -> list[str]:
        """An anchor within the page for each heading."""
        return [f"{k}-{re.sub('[^a-z0-9]+', '-', text.lower()).strip('-')}" for k, text in enumerate(self.headings, 1)]


def render(page: Page) -> str:
    """A page as HTML, with escaped texts, that contains all it needs: styles, plots and the script that draws them.

    Examples:
        >>> from intertwine.report import Paragraph
        >>> html = render(Page("<Title>", [Paragraph("1 < 2")]))
        >>> "<h1>&lt;Title&gt;</h1>" in html, "1 &lt; 2" in html
        (True, True)
    """
    source = files("intertwine.report")
    held = set(_kinds(page.blocks))
    drawing = [(source / name).read_text("utf-8") for name in ("dagre.min.js", "network.js")]
    return _environment().get_template("page.html").render(
        page=page, style=Markup((source / "page.css").read_text("utf-8")),
        script=Markup((source / "page.js").read_text("utf-8")),
        plotly=Markup(packed_plotly() if "figure" in held else ""),
        drawing=Markup("".join(drawing) if "network" in held else ""), version=release(),
    )  # fmt: skip


def _kinds(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        yield block.kind
        for inner in (getattr(block, "blocks", ()), *getattr(block, "tabs", {}).values()):
            yield from _kinds(inner)


@cache
def packed_plotly() -> str:
    """The JavaScript of the installed plotly package, compressed and encoded in characters safe for HTML."""
    return _packed((files("plotly") / "package_data" / "plotly.min.js").read_bytes())


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("intertwine", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    environment.filters["data"] = _data
    environment.tests["number"] = lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    return environment


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _data(value: Any) -> Markup:
    # A script element that holds a value as JSON, compressed if long.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = printable_json(text, shown=True)
    if len(text) > _LONG:
        return Markup(f'<script type="text/plain">{_packed(text.encode())}</script>')
    # "</script" and "<!--" would end or change the element: no angle bracket is left as it is
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json">{text}</script>')


def provenance(
    settings: Mapping[str, Any], facts: Mapping[str, Any], shown: Collection[str] = (), extra: Collection[Facts] = ()
) -> list[Block]:
    """The end of a page: ``settings["command"]``, then cards: of networks, data, versions, ``extra``, and the rest.

    A card is a mapping in the settings: ``network``, ``data``, ``versions``, or one of the list ``networks``. Settings
    are left out where they are ``None`` or the page has ``shown`` them; ``facts`` come before them.
    """
    cards = [Facts(x, str(x.get("name", "Network"))) for x in settings.get("networks", ()) if isinstance(x, Mapping)]
    cards += [
        Facts(settings[key], title)
        for key, title in _CARDS.items()
        if key not in shown and isinstance(settings.get(key), Mapping)
    ]
    placed = {"command", "networks", "notes", *_CARDS, *shown}
    rest = {key: _said(value) for key, value in settings.items() if key not in placed and value not in (None, {}, [])}
    cards += [*extra, Facts({**facts, **rest}, "Settings")]
    command = settings.get("command")
    said = [Listing(f"$ {command}")] if command else []
    return [Heading("How this was made"), *said, Grid(cards, width=320)]


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_said(v)}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
