"""Kernels of inputs: path kernels, overlaps, tangent kernels, their limits, and regression with them."""

from .alignment import kernel_alignment, npk_alignment
from .arc_cosine import arc_cosine_tangent_kernel, convolutional_tangent_kernel
from .ensemble_kernel import ensemble_kernel, ensemble_tangent_kernel
from .kernel_regression import KernelRegression, kernel_regression
from .overlap import overlap
from .path import neural_path_kernel, neural_path_kernel_cost
from .product_kernel import base_kernels, product_kernel, sum_kernel
from .rotation_kernel import rotation_kernel
from .tangent import neural_tangent_kernel

__all__ = [
    "KernelRegression", "arc_cosine_tangent_kernel", "base_kernels", "convolutional_tangent_kernel", "ensemble_kernel",
    "ensemble_tangent_kernel", "kernel_alignment", "kernel_regression", "neural_path_kernel",
    "neural_path_kernel_cost", "neural_tangent_kernel", "npk_alignment", "overlap", "product_kernel",
    "rotation_kernel", "sum_kernel",
]  # fmt: skip
