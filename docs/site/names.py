"""Links of the site: names of the library lead to their place in the API, and the table of all public names."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

from mkdocs.exceptions import PluginError

import intertwine

_NAME = re.compile(r"<code>(intertwine(?:\.\w+)+)</code>")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the tables of public names and of rooms."""
    if page.file.src_path != "api/intertwine.md":
        return markdown
    values = {name: getattr(intertwine, name) for name in intertwine.__all__ if not name.startswith("_")}
    rooms = {name: value for name, value in values.items() if inspect.ismodule(value)}
    names = (
        (f"iw.{name}", f"{value.__module__}.{value.__qualname__}", value)
        for name, value in values.items()
        if name not in rooms
    )
    markdown = markdown.replace("@@names@@", _table(names))
    return markdown.replace(
        "@@rooms@@", "\n".join(f"- [`iw.{name}`]({name}.md): {_line(room)}" for name, room in rooms.items())
    )


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Mark every name of a theory page, and of the fidelity table, as a reference that may be missing."""
    if not page.file.src_path.startswith(("theory/", "fidelity")):
        return content
    return _NAME.sub(r'<autoref identifier="\1" optional><code>\1</code></autoref>', content)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page with a reference that leads nowhere.

    Raises:
        PluginError: If there is one.
    """
    if found := re.search(r"\]\[intertwine\.[\w.]+\]", output):
        raise PluginError(f"{page.file.src_path}: no page of the API lists {found[0][2:-1]}")
    return output


def _table(names: Iterable[tuple[str, str, Any]]) -> str:
    """A row for each name: a link and the first line of its docstring."""
    rows = (f"| [`{shown}`][{place}] | {_line(value)} |" for shown, place, value in names)
    return "\n".join(["| name | |", "|---|---|", *rows])


def _line(value: Any) -> str:
    return (inspect.getdoc(value) or "").splitlines()[0].replace("|", r"\|")
