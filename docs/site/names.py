"""Links of the site: a name of the library on a theory page links to its place in the API, where it has one."""

import re
from typing import Any

_NAME = re.compile(r"<code>(intertwine(?:\.\w+)+)</code>")


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Mark every name of a theory page, and of the fidelity table, as a reference that may be missing."""
    if not page.file.src_path.startswith(("theory/", "fidelity")):
        return content
    return _NAME.sub(r'<autoref identifier="\1" optional><code>\1</code></autoref>', content)
