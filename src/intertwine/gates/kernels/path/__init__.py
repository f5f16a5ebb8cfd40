"""The neural path kernel of any ReLU network, by second moments over random signs, without enumerating a path."""

from .path_kernel import neural_path_kernel, neural_path_kernel_cost
from .rules import register_kernel_rule

__all__ = ["neural_path_kernel", "neural_path_kernel_cost", "register_kernel_rule"]
