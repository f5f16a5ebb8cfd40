"""Architecture page: the drawing of the rooms, made from the imports of the code as it is.

``python docs/site/rooms.py`` prints it.
"""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "intertwine"
MARK = "<!-- rooms -->"
LEVELS = (
    ("cli",),
    ("report",),
    ("lab",),
    ("merging", "provenance", "exchange", "stitching", "gates", "dissection"),
    ("matching", "similarity"),
    ("symmetry",),
    ("programs",),
    ("groups", "features"),
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the drawing in the place of its mark."""
    return markdown.replace(MARK, drawing()) if MARK in markdown else markdown


def drawing() -> str:
    """One row for each room: its files, its lines, and how many of its files import from each room below."""
    rows = ["| level | room | files | lines | imports from (in so many files) |", "|---|---|---|---|---|"]
    order = [room for level in LEVELS for room in level]
    for number, level in enumerate(LEVELS):
        for room in level:
            files = sorted((SOURCE / room).rglob("*.py"))
            lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
            used = Counter(other for file in files for other in imported(file) if other in order and other != room)
            said = ", ".join(f"{other} {used[other]}" for other in order if used[other])
            rows.append(f"| {len(LEVELS) - number} | `{room}` | {len(files)} | {lines:,} | {said or 'nothing'} |")
    return "\n".join(rows)


def imported(file: Path) -> set[str]:
    """The rooms that a file imports from, also within functions and for types."""
    package = ["intertwine", *file.relative_to(SOURCE).with_suffix("").parts]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            path = [*package[: len(package) - node.level], *(node.module or "").split(".")]
            found.add(path[1] if node.level and len(path) > 1 else "")
    return found - {""}


if __name__ == "__main__":
    print(drawing())
