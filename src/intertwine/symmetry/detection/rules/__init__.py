"""Rules by family; importing this package registers them all."""

from . import (
    attention,
    constants,
    distances,
    elementwise,
    indexing,
    linear,
    masks,
    matrices,
    normalisation,
    pooling,
    reductions,
    regions,
    routing,
    scattering,
    sequences,
    shapes,
    spectral,
    stacks,
    strides,
)
from .application import apply
from .registry import register_rule

__all__ = [
    "apply",
    "register_rule",
    # families
    "attention", "constants", "distances", "elementwise", "indexing", "linear", "masks", "matrices", "normalisation",
    "pooling", "reductions", "regions", "routing", "scattering", "sequences", "shapes", "spectral", "stacks", "strides",
]  # fmt: skip
