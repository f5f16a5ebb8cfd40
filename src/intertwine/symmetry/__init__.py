"""The symmetries of any PyTorch model: find, explain, act, verify, remove."""

from .action import act, act_
from .admissible import admissible
from .canonical import canonical
from .completeness import Completeness, completeness
from .find import symmetries
from .fingerprint import fingerprint
from .refine import refine
from .rules import register_rule
from .same import same
from .sharded import ShardedState, act_sharded, fingerprint_sharded
from .spaces import Axis, BatchNormTensors, Fixed, FixedAxis, Layout, Leaf, Part, Product, Space, Sum
from .symmetry import Symmetry
from .transformation import Transformation
from .verify import Verification, verify

__all__ = [
    # find
    "Symmetry", "register_rule", "symmetries",
    # act and verify
    "Transformation", "Verification", "act", "act_", "admissible", "refine", "verify",
    # remove
    "canonical", "fingerprint", "same",
    # checkpoints larger than memory
    "ShardedState", "act_sharded", "fingerprint_sharded",
    # how much was found
    "Completeness", "completeness",
    # the description
    "Axis", "BatchNormTensors", "Fixed", "FixedAxis", "Layout", "Leaf", "Part", "Product", "Space", "Sum",
]  # fmt: skip
