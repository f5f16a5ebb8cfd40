"""``intertwine report``: the page of saved results."""

from pathlib import Path
from typing import Annotated

import typer

from ._options import Json
from ._show import say

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
    """  # noqa: DOC501
    from ..report import load_result, write_page
    from ._outputs import claim_file
    from ._show import print_json

    result = load_result(results)
    place = claim_file(out or results.with_suffix(".html"), [results])
    try:
        path = write_page(result, place)
    except OSError:
        raise
    except Exception as error:  # parts that were changed may not fit each other anywhere
        raise ValueError(
            f"results must be a complete {type(result).__name__}. Got {str(results)!r}, of which no page can be made "
            f"({type(error).__name__}: {error})."
        ) from error
    if as_json:
        print_json({"page": path})
    else:
        say(f"wrote {path}")
