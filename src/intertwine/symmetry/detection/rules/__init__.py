"""Rules by family; importing this package registers them all."""

from . import constants, derivatives, elementwise
from .application import apply
from .axes import losses, normalisation, pooling, reductions, regions
from .indices import indexing, masks, routing, scattering
from .products import attention, distances, linear, matrices, spectral
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
