"""Find, use and remove the symmetries of PyTorch networks.

Importing the package is cheap: every public name below loads its room when it is first used.

Examples:
    >>> import intertwine as iw
    >>> iw.intertwiner("relu", n=3).group
    PositiveMonomial(3)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_ROOMS = (
    *("groups", "features", "programs", "similarity", "symmetry", "matching"),
    *("merging", "provenance", "exchange", "stitching", "gates", "dissection"),
    *("report", "testing", "lab"),
)

# room -> the public names that it defines
_OF_ROOMS = {
    "groups": ("intertwiner", "Intertwiner"),
    "_examples": ("Examples",),
    "symmetry": ("symmetries", "Symmetry", "canonical", "fingerprint", "fold", "Fold"),
    "exchange": ("rotate", "prune_channels"),
    "matching": ("same", "correspond", "Correspondence", "align", "Alignment"),
    "merging": ("merge", "barrier", "Barrier"),
    "provenance": ("lineage", "Lineage", "lineage_tree", "diff", "Diff"),
    "similarity": ("compare", "Comparison", "compare_many", "ComparisonSet"),
    "stitching": ("stitch", "Stitching"),
    "dissection": ("dissect", "Dissection"),
    "features": ("collect",),
    "errors": ("IntertwineError",),
}
_NAMES = {name: room for room, names in _OF_ROOMS.items() for name in names}

__all__ = ["__version__", *_ROOMS, *_NAMES]

if TYPE_CHECKING:
    __version__: str
    from . import (
        dissection,
        exchange,
        features,
        gates,
        groups,
        lab,
        matching,
        merging,
        programs,
        report,
        similarity,
        stitching,
        symmetry,
        testing,
    )
    from ._examples import Examples
    from .dissection import Dissection, dissect
    from .errors import IntertwineError
    from .exchange import prune_channels, rotate
    from .features import collect
    from .groups import Intertwiner, intertwiner
    from .matching import Alignment, Correspondence, align, correspond, same
    from .merging import Barrier, barrier, merge
    from .provenance import Diff, Lineage, diff, lineage, lineage_tree
    from .similarity import Comparison, ComparisonSet, compare, compare_many
    from .stitching import Stitching
    from .stitching.stitch import stitch
    from .symmetry import Fold, Symmetry, canonical, fingerprint, fold, symmetries


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module(f"{__name__}._words").release()
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
