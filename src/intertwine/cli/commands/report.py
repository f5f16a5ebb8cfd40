"""``intertwine report``: the page of saved results."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import Json, Options


@dataclass(frozen=True)
class ReportOptions(Options):
    """Write the page of saved results again.

    Example:
      intertwine report comparison/results.json --out page.html
    """

    suffixes = (".html", ".htm")

    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A results.json that another command wrote.")]
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page; beside the results otherwise.")
    ] = None
    as_json: Json = False
