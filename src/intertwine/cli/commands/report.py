"""``intertwine report``: the page of saved results."""

from dataclasses import dataclass
from pathlib import Path

from .._options import Options, argument, option


@dataclass(frozen=True)
class ReportOptions(Options):
    """Write the page of saved results again.

    Example:
      intertwine report comparison/results.json --out page.html
    """

    suffixes = (".html", ".htm")

    results: Path = argument(..., "Results that a command or save() wrote: .json or .safetensors.", metavar="RESULTS")
    out: Path | None = option(None, "The page; beside the results otherwise.", metavar="FILE")
    as_json: bool = False
