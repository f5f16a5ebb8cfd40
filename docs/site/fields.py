"""What a field holds is written beside it, as a comment; here the site learns to read it."""

import ast
import re
from typing import Any

import griffe

_BESIDE = re.compile(r"  # (?!type:|noqa|fmt:)(.+)$")


class Fields(griffe.Extension):
    """Gives each field of a class that has no docstring the comment beside it, or the lines of comment above it."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Read the comment of a field ``name: type``."""
        if attr.docstring is not None or not isinstance(node, ast.AnnAssign) or not attr.parent.is_class:
            return
        lines, above = attr.parent.parent.lines_collection[attr.filepath], []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.strip().startswith("# "):
                break
            above.insert(0, line.strip()[2:])
        beside = _BESIDE.search(lines[node.end_lineno - 1])
        said = beside[1] if beside else " ".join(above)
        if said:
            attr.docstring = griffe.Docstring(f"{said}.", lineno=node.lineno, parent=attr)
