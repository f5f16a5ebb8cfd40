"""Kernels of inputs: path kernels, overlaps, tangent kernels, their limits, and regression with them."""

from .alignment import kernel_alignment, npk_alignment
from .arc_cosine import convolutional_tangent_kernel
from .budget import Budget
from .kernel_regression import KernelRegression, kernel_regression
from .overlap import overlap
from .path import neural_path_kernel, neural_path_kernel_cost, register_kernel_rule
from .product_kernel import base_kernels, product_kernel
from .residual_limit import ensemble_tangent_kernel
from .tangent import neural_tangent_kernel

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
