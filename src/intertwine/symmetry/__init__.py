"""The symmetries of any PyTorch model: find, explain, act, verify, remove."""

from .spaces import Axis, BatchNormTensors, Fixed, FixedAxis, Layout, Leaf, Part, Product, Space, Sum
from .symmetry import Symmetry

__all__ = [
    "Symmetry",
    # the description
    "Axis", "BatchNormTensors", "Fixed", "FixedAxis", "Layout", "Leaf", "Part", "Product", "Space", "Sum",
]  # fmt: skip
