"""The symmetries of any PyTorch model: find, explain, act, verify, remove."""

from .._io.lazy import LazyState, StoredState, write_shards
from .action import act, act_, admissible
from .detection.rules import register_rule
from .find import symmetries
from .folding.fold import Fold, fold
from .folding.norms import fold_norm_gains
from .gauge.canonical import canonical, gradient_norm, sharpness
from .gauge.fingerprint import fingerprint
from .proof import Verification, verify
from .spaces import Axis, BatchNormTensors, Fixed, FixedAxis, Layout, Leaf, Part, Product, Space, Sum
from .symmetry import Symmetry
from .tangent import Tangent
from .transformation import Transformation

__all__ = [
    # find
    "Symmetry", "register_rule", "symmetries",
    # act and verify
    "Transformation", "Verification", "act", "act_", "admissible", "verify",
    # remove
    "Fold", "canonical", "fingerprint", "fold", "fold_norm_gains",
    # the optimiser's view
    "Tangent", "gradient_norm", "sharpness",
    # state dicts larger than memory
    "LazyState", "StoredState", "write_shards",
    # the description
    "Axis", "BatchNormTensors", "Fixed", "FixedAxis", "Layout", "Leaf", "Part", "Product", "Space", "Sum",
]  # fmt: skip
