"""``intertwine report``: the page of saved results."""

from __future__ import annotations

from pathlib import Path

from .._options import Options, argument, option
from .._outputs import claim_file, print_json, say
from . import iw


class Report(Options):
    """Write the page of saved results again.

    Example:
      intertwine report comparison/results.json --out page.html
    """

    python = 'iw.report.write_page(iw.report.load_result("results.json"), "page.html")'
    suffixes = (".html", ".htm")

    results: Path = argument("Results that a command or save() wrote: .json or .safetensors.", ..., metavar="RESULTS")
    out: Path | None = option("The page; beside the results otherwise.", metavar="FILE")

    def __call__(self) -> None:
        result = iw.report.load_result(self.results)
        place = self.out or self.results.with_suffix(".html")
        claim_file(place, [self.results])
        try:
            path = iw.report.write_page(result, place)
        except OSError:
            raise
        except Exception as error:  # parts that were changed may not fit each other anywhere
            raise ValueError(
                f"results must be a complete {type(result).__name__}. Got {str(self.results)!r}, of which no page can "
                f"be made ({type(error).__name__}: {error})."
            ) from error
        print_json({"page": path}) if self.as_json else say(f"wrote {path}")
