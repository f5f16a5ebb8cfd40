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

# public name -> the room that defines it
_NAMES = {
    # groups
    "intertwiner": "groups",
    "Intertwiner": "groups",
    # symmetry of a model
    "Examples": "_examples",
    "symmetries": "symmetry",
    "Symmetry": "symmetry",
    "canonical": "symmetry",
    "fingerprint": "symmetry",
    "fold": "symmetry",
    "Fold": "symmetry",
    # what other tools do
    "rotate": "exchange",
    "prune_channels": "exchange",
    # two networks in one basis
    "same": "matching",
    "correspond": "matching",
    "Correspondence": "matching",
    "align": "matching",
    "Alignment": "matching",
    "merge": "merging",
    "barrier": "merging",
    "Barrier": "merging",
    # descent of one network from another
    "lineage": "provenance",
    "Lineage": "provenance",
    "lineage_tree": "provenance",
    # what changed between two checkpoints
    "diff": "provenance",
    "Diff": "provenance",
    # similarity of representations
    "compare": "similarity",
    "Comparison": "similarity",
    "compare_many": "similarity",
    "ComparisonSet": "similarity",
    # stitching
    "stitch": "stitching",
    "Stitching": "stitching",
    # dissection
    "dissect": "dissection",
    "Dissection": "dissection",
    # features
    "collect": "features",
    # errors
    "IntertwineError": "errors",
}

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
        from importlib.metadata import version  # a fifth of what help takes

        return version(__name__)
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
