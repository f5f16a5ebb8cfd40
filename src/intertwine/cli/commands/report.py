"""``intertwine report``: the page of saved results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._options import Options, argument, option
from .._outputs import claim_file, print_json, say
from . import iw


@dataclass(frozen=True)
class ReportOptions(Options):
    """Write the page of saved results again.

    Example:
      intertwine report comparison/results.json --out page.html
    """

    suffixes = (".html", ".htm")

    results: Path = argument(..., "Results that a command or save() wrote: .json or .safetensors.", metavar="RESULTS")
    out: Path | None = option(None, "The page; beside the results otherwise.", metavar="FILE")


def run(asked: ReportOptions) -> None:
    """Write the page of saved results again."""
    result = iw.report.load_result(asked.results)
    place = asked.out or asked.results.with_suffix(".html")
    claim_file(place, [asked.results])
    try:
        path = iw.report.write_page(result, place)
    except OSError:
        raise
    except Exception as error:  # parts that were changed may not fit each other anywhere
        raise ValueError(
            f"results must be a complete {type(result).__name__}. Got {str(asked.results)!r}, of which no page can be "
            f"made ({type(error).__name__}: {error})."
        ) from error
    print_json({"page": path}) if asked.as_json else say(f"wrote {path}")
