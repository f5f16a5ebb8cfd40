"""The symmetries of any PyTorch model: find, explain, act, verify, remove."""

from .find import symmetries
from .rules import register_rule
from .spaces import Axis, BatchNormTensors, Fixed, FixedAxis, Layout, Leaf, Part, Product, Space, Sum
from .symmetry import Symmetry

__all__ = [
    # find
    "Symmetry", "register_rule", "symmetries",
    # the description
    "Axis", "BatchNormTensors", "Fixed", "FixedAxis", "Layout", "Leaf", "Part", "Product", "Space", "Sum",
]  # fmt: skip
