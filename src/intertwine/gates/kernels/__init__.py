"""Kernels of inputs: path kernels, overlaps, tangent kernels, their limits, and regression with them."""

from . import layer_rules  # noqa: F401 - its rules register themselves
from .alignment import KernelRegression, kernel_alignment, kernel_regression, npk_alignment, overlap
from .gate_products import Budget, base_kernels, product_kernel
from .path_kernel import neural_path_kernel, neural_path_kernel_cost, register_kernel_rule
from .tangent_kernel import neural_tangent_kernel
from .wide_limits import convolutional_tangent_kernel, ensemble_tangent_kernel

__all__ = [
    # of a network
    "Budget", "kernel_alignment", "neural_path_kernel", "neural_path_kernel_cost", "neural_tangent_kernel",
    "npk_alignment", "overlap", "register_kernel_rule",
    # of gates
    "base_kernels", "product_kernel",
    # limits
    "convolutional_tangent_kernel", "ensemble_tangent_kernel",
    # learning
    "KernelRegression", "kernel_regression",
]  # fmt: skip
