"""Work of ``intertwine report``."""

from ...report import load_result, write_page
from ..commands.report import ReportOptions
from ..outputs.files import claim_file
from ..outputs.show import print_json, say


def run(asked: ReportOptions) -> None:
    """Write the page of saved results again."""
    result = load_result(asked.results)
    place = asked.out or asked.results.with_suffix(".html")
    claim_file(place, [asked.results])
    try:
        path = write_page(result, place)
    except OSError:
        raise
    except Exception as error:  # parts that were changed may not fit each other anywhere
        raise ValueError(
            f"results must be a complete {type(result).__name__}. Got {str(asked.results)!r}, of which no page can be "
            f"made ({type(error).__name__}: {error})."
        ) from error
    if asked.as_json:
        print_json({"page": path})
    else:
        say(f"wrote {path}")
