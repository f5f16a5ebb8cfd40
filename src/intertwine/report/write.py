"""The table of pages: which one shows which result."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from .._result import Result
from .._untrusted.files import json_of
from .page import Page, render

# Kind of result -> where its class is, and the function that lays out its page; both are imported when used.
# A result that is not here gets a plain page of its table.
_PAGES = {
    "Reproduction": ("intertwine.lab.experiments:Reproduction", "intertwine.report.pages.reproduce:reproduction_page"),
    "Alignment": ("intertwine.matching:Alignment", "intertwine.report.pages.align:alignment_page"),
    "Match": ("intertwine.matching:Match", "intertwine.report.pages.match:match_page"),
    "Lineage": ("intertwine.provenance:Lineage", "intertwine.report.pages.lineage:lineage_page"),
    "Tree": ("intertwine.provenance:Tree", "intertwine.report.pages.lineage:tree_page"),
    "Barrier": ("intertwine.merging:Barrier", "intertwine.report.pages.barrier:barrier_page"),
    "Diff": ("intertwine.provenance:Diff", "intertwine.report.pages.diff:diff_page"),
    "Dissection": ("intertwine.dissection:Dissection", "intertwine.report.pages.dissection:dissection_page"),
    "Mappings": ("intertwine.exchange:Mappings", "intertwine.report.pages.mappings:mappings_page"),
    "Symmetry": ("intertwine.symmetry:Symmetry", "intertwine.report.pages.symmetry:symmetry_page"),
    "GateStudy": ("intertwine.gates:GateStudy", "intertwine.report.pages.gates:gates_page"),
    "Distances": ("intertwine.similarity:Distances", "intertwine.report.pages.distances:distances_page"),
    "Comparison": ("intertwine.similarity:Comparison", "intertwine.report.pages.comparison:comparison_page"),
    "Stitching": ("intertwine.stitching:Stitching", "intertwine.report.pages.stitching:stitching_page"),
    "StitchingStudy": ("intertwine.stitching:StitchingStudy", "intertwine.report.pages.stitching:stitching_page"),
}
KINDS = frozenset(_PAGES)  # of saved results
_PLAIN = "intertwine.report.pages.plain:plain_page"


def write_page(result: Result, path: str | Path | None = None) -> str | Path:
    """Write a result as one self-contained HTML page, atomically; without a path, return its text.

    Raises:
        ValueError: If the path ends otherwise.
    """
    from .._io import write_text

    if path is None:
        return render(page_of(result))
    path = Path(path)
    if path.suffix not in (".html", ".htm"):
        raise ValueError(f"path must end in .html. Got {str(path)!r}.")
    return write_text(path, render(page_of(result)))


def page_of(result: Result) -> Page:
    """Lay out the page of a result.

    Raises:
        TypeError: If there is no page for such a value.
    """
    from .._result import Result

    if not isinstance(result, Result):
        raise TypeError(f"result must be a result of intertwine, such as a Comparison. Got {type(result).__name__}.")
    for kind in type(result).__mro__:
        if kind.__name__ in _PAGES:
            page: Page = _find(_PAGES[kind.__name__][1])(result)
            return replace(page, networks=result.networks)
    return replace(_find(_PLAIN)(result), networks=result.networks)


def load_result(path: str | Path) -> Result:
    """Read a result of any kind that its ``save`` wrote as JSON.

    Raises:
        ValueError: If the file is missing, damaged or holds no result.
    """
    path = Path(path)
    data = json_of(path, "results")
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _PAGES:
        raise ValueError(
            f"results must be a file that save() wrote, of kind {', '.join(_PAGES)}. Got {kind!r} in {str(path)!r}."
        )
    try:
        return _find(_PAGES[kind][0]).load(path)
    except Exception as error:  # a file that was changed may fail anywhere
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"results must be a complete {kind}. Got {str(path)!r}, where something is amiss ({reason})."
        ) from error


def _find(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)
