"""Kernels by name."""

from ..._words import near
from .base import Kernel
from .gates import GatesKernel
from .laplace import LaplaceKernel
from .linear import ChannelNormalizedKernel, LinearKernel
from .maximum import MaxKernel
from .rbf import RBFKernel

_KERNELS: dict[str, Kernel] = {
    k.name: k
    for k in (LinearKernel(), MaxKernel(), LaplaceKernel(), RBFKernel(), GatesKernel(), ChannelNormalizedKernel())
}


def kernel(name: str | Kernel) -> Kernel:
    """Find a kernel by name; kernels pass through.

    Raises:
        ValueError: If no kernel has this name.
    """
    if isinstance(name, Kernel):
        return name
    if name not in _KERNELS:
        known = ", ".join(map(repr, _KERNELS))
        raise ValueError(f"kernel must be one of {known}, or a Kernel. Got {name!r}.{near(name, _KERNELS)}")
    return _KERNELS[name]


def kernel_names() -> tuple[str, ...]:
    """Names of all kernels."""
    return tuple(_KERNELS)
