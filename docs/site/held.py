"""Theory pages: every test that a table names leads to its source, which stands at the end of the page."""

import ast
import html
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

_ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"<code>(tests/[\w/]+\.py)::(\w+)(\[[^<]*\])?</code>")


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Turn names of tests into links, and add the tests."""
    if not page.file.src_path.startswith("theory/"):
        return content
    named = dict.fromkeys((found[1], found[2]) for found in _TEST.finditer(content))
    if not named:
        return content
    linked = _TEST.sub(lambda found: f'<a href="#{_anchor(found[1], found[2])}">{found[0]}</a>', content)
    return "\n".join([linked, '<h2 id="the-tests">The tests</h2>', *(_shown(path, name) for path, name in named)])


def _anchor(path: str, name: str) -> str:
    return f"{Path(path).stem}-{name}"


def _shown(path: str, name: str) -> str:
    """A test's source, folded away; its anchor lies inside, so that a link to it unfolds it."""
    code = highlight(_source(path, name), PythonLexer(), HtmlFormatter(cssclass="highlight", wrapcode=True))
    title = html.escape(f"{path}::{name}")
    return f'<details><summary><code>{title}</code></summary><div id="{_anchor(path, name)}">{code}</div></details>'


def _source(path: str, name: str) -> str:
    """The lines of a function, its decorators first.

    Raises:
        PluginError: If the file holds none of that name.
    """
    text = (_ROOT / path).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            start = min(part.lineno for part in (node, *node.decorator_list))
            return "\n".join(text.splitlines()[start - 1 : node.end_lineno]) + "\n"
    raise PluginError(f"{path} must hold the test {name}, which a theory page names.")
