"""Output: tables for people, JSON for machines, both on standard output; everything else on standard error."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._progress import is_silent
from ..._untrusted.text import printable, printable_json

_WIDE = 200  # characters of a line where there is no terminal to fit


def print_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinities become null."""
    print(printable_json(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """Print a table; numbers are aligned right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    table = Table(
        box=box.SIMPLE_HEAD, title=Text(printable(title)) if title else None, title_justify="left", pad_edge=False
    )
    for k, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[k], int | float) for row in rows)
        table.add_column(Text(printable(str(column))), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row))
    with console.capture() as drawn:
        console.print(table)
    # without the empty lines and spaces around it
    print("\n".join(line.rstrip().removeprefix(" ") for line in drawn.get().splitlines() if line.strip()))


def tell(text: str) -> None:
    """Say something to the person at the terminal, on standard error, unless ``--quiet`` was said."""
    if not is_silent():
        print(printable(text), file=sys.stderr)


def say(text: object) -> None:
    """Print a result on standard output; names in it may be of anyone, and a terminal obeys none of them."""
    print(printable(str(text)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{round(value, 3) + 0.0:.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return str(value) if isinstance(value, Path) else value
