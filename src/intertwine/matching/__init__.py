"""Matching: the element of the symmetry group that takes one network to another, and what it reveals."""

from .align import Alignment, align
from .correspondence.correspond import Correspondence, correspond
from .joint import Gathering, gather
from .judgement.verdict import Match
from .same import same
from .solvers import (
    METHODS,
    Activations,
    CoordinateDescent,
    FrankWolfe,
    Gates,
    Learned,
    Sinkhorn,
    Solver,
    StraightThrough,
)
from .solvers.responses import Carrier, carriers

__all__ = [
    "METHODS", "Activations", "Alignment", "Carrier", "CoordinateDescent", "Correspondence", "FrankWolfe", "Gates",
    "Gathering", "Learned", "Match", "Sinkhorn", "Solver", "StraightThrough", "align", "carriers",
    "correspond", "gather", "same",
]  # fmt: skip
