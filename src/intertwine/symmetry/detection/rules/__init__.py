"""Rules by family; importing this package registers them all."""

from . import (
    attention,
    constants,
    derivatives,
    distances,
    elementwise,
    linear,
    losses,
    matrices,
    normalisation,
    pooling,
    reductions,
    regions,
    spectral,
)
from .application import apply
from .indices import indexing, masks, routing, scattering
from .registry import register_rule
from .views import sequences, shapes, stacks, strides

__all__ = [
    "apply",
    "register_rule",
    # families
    "attention", "constants", "derivatives", "distances", "elementwise", "indexing", "linear", "losses", "masks",
    "matrices", "normalisation", "pooling", "reductions", "regions", "routing", "scattering", "sequences", "shapes",
    "spectral", "stacks", "strides",
]  # fmt: skip
