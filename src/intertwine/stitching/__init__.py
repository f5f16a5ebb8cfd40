"""Stitching: can network B read network A's features through a map of one family?"""

from .drift import Drift, drift
from .layer import Fixed, StitchingLayer
from .layers.families import families, family_of
from .moments import Moments
from .networks.cut import Cut
from .networks.pair import Pair, stream_moments
from .networks.stitched import Stitched
from .options import StitchOptions
from .penalty import Evaluation, accuracies, evaluate, penalty
from .recalibrate import recalibrate
from .result import Stitching, StitchingStudy
from .stitch import stitch
from .training.recipe import RECIPES, Recipe
from .training.state import Epoch
from .training.train_layers import Trained, train_layers

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
