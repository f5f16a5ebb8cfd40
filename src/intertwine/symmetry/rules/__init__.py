"""Rules by family; importing this package registers them all."""

from . import (
    attention,
    constants,
    elementwise,
    indexing,
    linear,
    normalisation,
    pooling,
    reductions,
    routing,
    scattering,
    shapes,
    stacks,
    strides,
)
from .registry import apply, register_rule

__all__ = [
    "apply",
    "register_rule",
    # families
    "attention", "constants", "elementwise", "indexing", "linear", "normalisation", "pooling", "reductions", "routing",
    "scattering", "shapes", "stacks", "strides",
]  # fmt: skip
