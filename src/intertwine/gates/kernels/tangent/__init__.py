"""The empirical neural tangent kernel, from Grams of layer inputs and gradients or from Jacobians."""

from .tangent_kernel import neural_tangent_kernel

__all__ = ["neural_tangent_kernel"]
