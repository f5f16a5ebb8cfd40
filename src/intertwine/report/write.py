"""The table of pages: the page function for each kind of result."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from .._io import write_text
from .._io.values import kind_in
from .._result import Result
from .blocks import Details, Listing, Paragraph, Table
from .page import Page, render

_PLAIN = ""  # the plain page: headline, table and printed form
# Kind of result -> the module of its class, and the function that lays out its page; both are imported on use.
_PAGES = {
    "ActiveSubnetwork": ("gates.affine_maps", _PLAIN),
    "Alignment": ("matching", "matching:alignment_page"),
    "Barrier": ("merging", "matching:barrier_page"),
    "Comparison": ("similarity", "similarity:comparison_page"),
    "ComparisonSet": ("similarity", "similarity:comparison_set_page"),
    "Correspondence": ("matching", _PLAIN),
    "Diff": ("provenance", "provenance:diff_page"),
    "Dissection": ("dissection", "dissection:dissection_page"),
    "Distances": ("similarity", "similarity:distances_page"),
    "EffectiveMaps": ("gates.affine_maps", _PLAIN),
    "Embedding": ("similarity", _PLAIN),
    "Fold": ("symmetry", _PLAIN),
    "GateMatch": ("gates", _PLAIN),
    "GateStudy": ("gates", "gates:gates_page"),
    "Gathering": ("matching", _PLAIN),
    "Lineage": ("provenance", "provenance:lineage_page"),
    "Mappings": ("exchange", "symmetry:mappings_page"),
    "Match": ("matching", "matching:match_page"),
    "PrivilegedBases": ("dissection", _PLAIN),
    "Reproduction": ("lab.experiments", "reproduce:reproduction_page"),
    "Rotation": ("exchange", _PLAIN),
    "SharedGates": ("gates.examine", _PLAIN),
    "Stitching": ("stitching", "stitching:stitching_page"),
    "StitchingStudy": ("stitching", "stitching:stitching_page"),
    "Symmetry": ("symmetry", "symmetry:symmetry_page"),
    "Tangent": ("symmetry", _PLAIN),
    "Tree": ("provenance", "provenance:tree_page"),
    "Verification": ("symmetry", _PLAIN),
}
KINDS = frozenset(_PAGES)  # of saved results


def write_page(result: Result, path: str | Path | None = None) -> str | Path:
    """Write a result as one self-contained HTML page, atomically; without a path, return the HTML text.

    Raises:
        ValueError: If the path does not end in .html or .htm.
    """
    if path is None:
        return render(page_of(result))
    path = Path(path)
    if path.suffix not in (".html", ".htm"):
        raise ValueError(f"path must end in .html. Got {str(path)!r}.")
    return write_text(path, render(page_of(result)))


def page_of(result: Result) -> Page:
    """Lay out the page of a result.

    Raises:
        TypeError: If there is no page for this type.
    """
    if not isinstance(result, Result):
        raise TypeError(f"result must be a result of intertwine, such as a Comparison. Got {type(result).__name__}.")
    layout = next((_PAGES[kind.__name__][1] for kind in type(result).__mro__ if kind.__name__ in _PAGES), _PLAIN)
    if layout:
        module, name = layout.split(":")
        page: Page = getattr(import_module(f"intertwine.report.pages.{module}"), name)(result)
    else:
        text = Details("The result as text", [Listing(str(result))])
        page = Page(type(result).__name__, [Paragraph(result.headline, "verdict"), Table.of(result.to_frame()), text])
    return replace(page, networks=result.networks)


def load_result(path: str | Path) -> Result:
    """Read a result of any kind, as its ``save`` wrote it to ``.json`` or ``.safetensors``.

    Raises:
        ValueError: If the file is missing, damaged or holds no result.
    """
    path = Path(path)
    kind = kind_in(path, "results")
    if not isinstance(kind, str) or kind not in _PAGES:
        raise ValueError(
            f"results must be a file that save() wrote, of kind {', '.join(_PAGES)}. Got {kind!r} in {str(path)!r}."
        )
    try:
        result: Result = getattr(import_module(f"intertwine.{_PAGES[kind][0]}"), kind).load(path)
        return result
    except Exception as error:  # an edited file may fail anywhere
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"results must be a complete {kind}. Got {str(path)!r}, where something is amiss ({reason})."
        ) from error
