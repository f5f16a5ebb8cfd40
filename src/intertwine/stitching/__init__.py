"""Stitching: can network B read network A's features through a map of one family?"""

from .closed_form import Moments
from .families import families, family_of
from .layer import Fixed, StitchingLayer
from .options import RECIPES, Recipe, StitchOptions
from .pair import Cut, Pair, stream_moments
from .penalty import Drift, Evaluation, accuracies, drift, evaluate, penalty, recalibrate
from .result import Stitching, StitchingStudy
from .stitch import stitch
from .stitched import Stitched
from .train_layers import Trained, train_layers
from .training_state import Epoch

__all__ = [
    # one call
    "stitch", "StitchOptions", "Stitching", "StitchingStudy",
    # by hand
    "Pair", "Cut", "Stitched", "StitchingLayer", "Fixed", "families", "family_of", "train_layers", "Recipe",
    "RECIPES", "Trained", "Epoch", "recalibrate",
    # measures
    "accuracies", "evaluate", "Evaluation", "penalty", "drift", "Drift", "Moments",
    "stream_moments",
]  # fmt: skip
