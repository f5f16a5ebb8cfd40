"""Matching: the element of the symmetry group that takes one network to another, and what it reveals.

Five steps: coordinates in which networks can be compared weight by weight (``coordinates``), costs of pairs of units
(``costs``), the best step of one space (``solvers.steps``), a schedule of such steps (``solvers``; ``element_fit`` then
fits scales and bases, ``components`` does so part by part), and a judgement of what is left (``judgement``,
``decision``). Networks in other code are first brought into one code (``correspondence``).
"""

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
