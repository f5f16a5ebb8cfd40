"""What every kernel of a CKA declares and can do, and the list of those that have a name."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from ._features import Moments

__all__ = ["Kernel", "kernel", "kernels"]


class Kernel(ABC):
    """A function of two examples' features; its Gram matrix over all examples is all that a CKA sees.

    Concrete kernels are small frozen dataclasses.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the registry."""

    @property
    @abstractmethod
    def measure(self) -> str:
        """Name of the CKA that uses it."""

    @property
    @abstractmethod
    def group(self) -> str:
        """The exact invariance group of that CKA, in words."""

    @property
    @abstractmethod
    def psd(self) -> bool:
        """Whether every Gram matrix is positive semi-definite."""

    @abstractmethod
    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix ``(N, N)`` and what was chosen on the way.

        Args:
            x: Features ``(N, C, *S)``, constant channels left out.
            moments: Their per-channel moments.
        """

    def explicit(self, x: Tensor, moments: Moments) -> Tensor | None:
        """Numbers of each example whose inner products are the Gram matrix, ``(N, ...)``, where there are such.

        Where they are fewer than examples, a CKA needs no Gram matrix.

        Args:
            x: Features ``(N, C, *S)``, constant channels left out.
            moments: Their per-channel moments.
        """
        return None


def kernel(name: str | Kernel) -> Kernel:
    """Find a kernel by name; kernels pass through.

    Raises:
        ValueError: If no kernel has this name.
    """
    known = _known()
    if isinstance(name, Kernel):
        return name
    if name not in known:
        raise ValueError(f"kernel must be one of {', '.join(map(repr, known))}, or a Kernel. Got {name!r}.")
    return known[name]


def kernels() -> tuple[str, ...]:
    """Names of all kernels."""
    return tuple(_known())


def _known() -> dict[str, Kernel]:
    from .gates import GatesKernel
    from .laplace import LaplaceKernel
    from .linear import ChannelNormalizedKernel, LinearKernel
    from .maximum import MaxKernel
    from .rbf import RBFKernel

    found = (LinearKernel(), MaxKernel(), LaplaceKernel(), RBFKernel(), GatesKernel(), ChannelNormalizedKernel())
    return {k.name: k for k in found}
