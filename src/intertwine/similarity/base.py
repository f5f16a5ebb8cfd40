"""The base class of similarity measures."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from torch import Tensor

from ._features import check_same_examples


class Prepared(Protocol):
    """Everything that a measure needs to know of one side of a pair, computed once."""

    @property
    def n(self) -> int:
        """Number of examples."""

    @property
    def channels(self) -> int:
        """Number of channels that were given, dead ones included."""

    @property
    def dead(self) -> int:
        """Number of dead channels. They are left out and never count as agreement."""

    @property
    def details(self) -> Mapping[str, Any]:
        """What the measure chose by itself, for example a kernel's ``bandwidth``."""

    def take(self, index: Tensor) -> Self:
        """Return the same preparation with the examples ``index`` (distinct): a permutation or a subsample."""


P = TypeVar("P", bound=Prepared)


class Measure(ABC, Generic[P]):
    """A similarity of two sets of features over the same examples; 1 means equal up to ``group``.

    Constant channels say nothing and are left out, unless a measure says otherwise; an example without any living
    activity is an example like others. Concrete measures are small frozen dataclasses, so that they compare, print and
    can be kept in results.

    Examples:
        >>> import torch
        >>> from intertwine import similarity
        >>> cka = similarity.measure("linear_cka")
        >>> x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        >>> a, b = cka.prepare(x), cka.prepare(3 * x.flip(1))
        >>> cka.score(a, b)
        1.0
        >>> order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
        >>> cka.score(a, b.take(order)) < 0.2  # other partners: chance
        True
    """

    stem: ClassVar[str]  # Name of the measure with its usual options, unless it says its ``name``
    group: str  # The exact group of maps of either side's channels that leaves the score alone, in words
    range: tuple[float, float]  # Smallest and largest possible score
    reads_gates: bool = False  # Whether signs of features are taken for the gates of their units
    # Whether a side keeps numbers for every pair of examples, so that it takes memory like their number squared
    pairwise: ClassVar[bool] = False
    # Whether ``to_distance`` obeys the triangle inequality, so that networks can be placed in a space by it
    metric: ClassVar[bool] = False
    # Whether the score tends to a limit as examples grow, with a bias like 1/N: what confidence intervals are of
    has_limit: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name in the registry and in results: the stem, and every option, text or a number, that is not the usual."""
        options = ((getattr(self, one.name), one.default) for one in fields(self))  # type: ignore[arg-type]
        other = (v for v, usual in options if v != usual and isinstance(v, str | int | float))
        return "_".join([self.stem, *(v if isinstance(v, str) else f"{v:g}" for v in other)])

    @abstractmethod
    def prepare(self, x: Tensor, channel_dim: int = 1) -> P:
        """Compute what depends on one side alone: on features ``(N, C, *S)``.

        ``channel_dim`` is the axis of the channels; ``-1`` for tokens ``(N, T, C)``.
        """

    def score(self, a: P, b: P) -> float:
        """Compare two preparations over the same examples in the same order; rounding takes no score out of range."""
        check_same_examples(a.n, b.n)
        return min(self.range[1], max(self.range[0], self._compared(a, b)))

    def _compared(self, a: P, b: P) -> float:
        """The measure's formula."""
        raise NotImplementedError

    def floor(self, a: P, b: P) -> float | None:
        """Lowest score that features of these widths and signs can get, where it is known; ``None`` elsewhere."""
        return None

    def obeys_triangle(self, sides: Sequence[P]) -> bool:
        """Whether distances between these sides obey the triangle inequality."""
        return self.metric

    def to_distance(self, score: float, a: P, b: P) -> float:
        """Distance that belongs to a score: 0 for equal sides; ``1 - score`` where there is no better one."""
        return 1 - score

    def __call__(self, x: Tensor, y: Tensor, channel_dim: int = 1) -> float:
        """Prepare both sides and compare them."""
        return self.score(self.prepare(x, channel_dim), self.prepare(y, channel_dim))
