"""``intertwine report``: the page of saved results."""

from pathlib import Path
from typing import Annotated

import typer

from ._options import Json

__all__ = ["report"]


def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A results.json that another command wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page; beside the results otherwise.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the page of saved results again.

    Example:
      intertwine report comparison/results.json --out page.html
    """
    from .._io import check_writable
    from ..report import load_result, write_page
    from ._show import print_json

    path = write_page(load_result(results), check_writable(out or results.with_suffix(".html")))
    if as_json:
        print_json({"page": path})
    else:
        print(f"wrote {path}")
