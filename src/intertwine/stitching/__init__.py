"""Stitching: can network B read network A's features through a map of one family?"""

from .cut import Cut
from .drift import Drift, drift
from .layer import Fixed, StitchingLayer
from .layers.families import families, family_of
from .moments import Moments
from .pair import Pair, stream_moments
from .penalty import Evaluation, accuracies, evaluate, penalty, penalty_interval
from .recalibrate import recalibrate
from .result import Stitching, StitchingStudy
from .stitch import stitch
from .stitched import Stitched
from .training import RECIPES, Epoch, Recipe, Trained, train_layers

__all__ = [
    # one call
    "stitch", "Stitching", "StitchingStudy",
    # by hand
    "Pair", "Cut", "Stitched", "StitchingLayer", "Fixed", "families", "family_of",
    "train_layers", "Recipe", "RECIPES", "Trained", "Epoch", "recalibrate",
    # measures
    "accuracies", "evaluate", "Evaluation", "penalty", "penalty_interval", "drift", "Drift",
    "Moments", "stream_moments",
]  # fmt: skip
