"""Kernels of examples: what a CKA asks of them."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from .._features import Moments


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

    reads_gates: ClassVar[bool] = False
    """Whether signs of features are taken for the gates of their units."""

    @abstractmethod
    def gram(self, x: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Any]]:
        """Gram matrix ``(N, N)`` of features without constant channels, and what was chosen on the way."""

    def explicit(self, x: Tensor, moments: Moments) -> Tensor | None:
        """Numbers of each example whose inner products are the Gram matrix, ``(N, ...)``, where there are such.

        Where they are fewer than examples, a CKA needs no Gram matrix.
        """
        return None
