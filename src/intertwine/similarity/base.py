"""The base class of similarity measures, and the sides of a pair: features, or a matrix over pairs of examples."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isnan
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from torch import Tensor

from ._features import (
    Moments,
    channels_first,
    check_distinct,
    check_same_examples,
    double,
    example_blocks,
    moments,
    unit_scale,
)


class Prepared(Protocol):
    """Everything that a measure needs to know about one side of a pair, computed once."""

    @property
    def n(self) -> int:
        """Number of examples."""

    @property
    def channels(self) -> int:
        """Number of channels given, dead ones included."""

    @property
    def dead(self) -> int:
        """Number of dead channels. They are left out and never count as agreement."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Values that the measure chose by itself, for example a kernel's ``bandwidth``."""

    def take(self, index: Tensor) -> Self:
        """Return the same preparation with the examples ``index`` (distinct): a permutation or a subsample."""


P = TypeVar("P", bound=Prepared)


class Measure(ABC, Generic[P]):
    """A similarity of two sets of features over the same examples; 1 means equal up to ``group``.

    Constant channels carry no information and are left out, unless a measure says otherwise. An example without any
    living activity counts like any other. Concrete measures are small frozen dataclasses, so they can be compared,
    printed and kept in results.

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

    stem: ClassVar[str]  # Name of the measure with default options, unless it defines ``name``
    group: str  # The exact group of maps of either side's channels that leaves the score unchanged, in words
    range: tuple[float, float]  # Smallest and largest possible score
    reads_gates: bool = False  # Whether signs of features are taken as the gates of their units
    # Whether a side keeps a number for every pair of examples, so that its memory grows with their number squared
    pairwise: ClassVar[bool] = False
    # Whether ``to_distance`` obeys the triangle inequality, so that it can place networks in a space
    metric: ClassVar[bool] = False
    # Whether the score tends to a limit as examples grow, with a bias like 1/N: the limit is what an interval covers
    has_limit: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name in the registry and in results: the stem, and each text or number option that is not at its default."""
        options = ((getattr(self, one.name), one.default) for one in fields(self))  # type: ignore[arg-type]
        other = (v for v, usual in options if v != usual and isinstance(v, str | int | float))
        return "_".join([self.stem, *(v if isinstance(v, str) else f"{v:g}" for v in other)])

    @abstractmethod
    def prepare(self, x: Tensor, channel_dim: int = 1) -> P:
        """Compute what depends on one side alone, ``(N, C, *S)``, or tokens ``(N, T, C)`` with ``channel_dim=-1``."""

    def score(self, a: P, b: P) -> float:
        """Compare two preparations over the same examples in the same order; rounding leaves no score out of range."""
        check_same_examples(a.n, b.n)
        if isnan(found := float(self._compared(a, b))):  # `max` would make the lowest score of it
            raise ValueError(f"{self.name} must be a number. Got NaN for these features: they leave it undefined.")
        return min(self.range[1], max(self.range[0], found))

    def _compared(self, a: P, b: P) -> float:
        """The measure's formula."""
        raise NotImplementedError

    def floor(self, a: P, b: P) -> float | None:
        """Lowest score that features of these widths and signs can get; ``None`` where it is not known."""
        return None

    def obeys_triangle(self, sides: Sequence[P]) -> bool:
        """Whether distances between these sides obey the triangle inequality."""
        return self.metric

    def to_distance(self, score: float, a: P, b: P) -> float:
        """Distance that corresponds to a score: 0 for equal sides; ``1 - score`` where there is no better one."""
        return 1 - score

    def __call__(self, x: Tensor, y: Tensor, channel_dim: int = 1) -> float:
        """Prepare both sides and compare them."""
        return self.score(self.prepare(x, channel_dim), self.prepare(y, channel_dim))


class FeatureSide:
    """One side as features ``(N, C, *S)``: the examples ``rows``, by default all, and their moments."""

    def __init__(self, features: Tensor, moments: Moments, center: bool, rows: Tensor | None = None) -> None:
        self.features, self.moments, self.center, self.rows = features, moments, center, rows
        self.n, self.channels = len(features if rows is None else rows), features.shape[1]
        self.size, self.details = tuple(features.shape[2:]), dict[str, Any]()
        norms, dead = (moments.spread, moments.constant) if center else (moments.norm, moments.dead)
        # living channels, (C,) bool: not zero everywhere, and not constant where they are centred
        self.kept, self.dead = ~dead, int(dead.sum())
        # the power of 2 that brings norms near 1 where products would leave the floating-point range; 1 elsewhere
        self.unit = 1.0 if 1e-100 < float(norms.max()) < 1e100 else float(unit_scale(norms))
        self.norms = norms * self.unit  # of the channels as `block` gives them, (C,); 0 where dead

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``; moments of a subsample are computed anew."""
        index, everything = check_distinct(index, self.features, self.n)
        rows = index if self.rows is None else self.rows[index]
        found = self.moments if everything else moments(self.features[rows])
        taken = type(self)(self.features, found, self.center, rows)
        if not taken.kept.any():
            raise ValueError("features must vary between examples. Got a subsample in which all channels are constant.")
        return taken

    def block(self, b: slice) -> Tensor:
        """Examples ``b`` with the living channels as columns: ``(n P, C)`` in float64, in units of ``unit``."""
        x = self.features[b] if self.rows is None else self.features[self.rows[b]]
        x, mean = double(x).movedim(1, -1).flatten(0, -2), self.moments.mean
        if self.dead:
            x, mean = x[:, self.kept], mean[self.kept]
        x = x - mean if self.center else x
        return x if self.unit == 1 else x * self.unit


def feature_side(x: Tensor, channel_dim: int, center: bool) -> FeatureSide:
    """Check features and compute their moments; the features are kept, not copied."""
    return FeatureSide(*_checked(x, channel_dim), center)


def living_channels(x: Tensor, channel_dim: int) -> tuple[Tensor, Moments, int]:
    """Check features; return them without constant channels, ``(N, C', *S)``, their moments, and the number dropped."""
    x, m = _checked(x, channel_dim)
    dead, alive = int(m.constant.sum()), ~m.constant
    some: Any = {k: v[alive] for k, v in vars(m).items() if isinstance(v, Tensor)}
    return (x[:, alive], replace(m, **some), dead) if dead else (x, m, 0)


def _checked(x: Tensor, channel_dim: int) -> tuple[Tensor, Moments]:
    """Features and their moments; refused where all examples are equal, which would score a meaningless 1."""
    x = channels_first(x, channel_dim)
    m = moments(x)
    if m.constant.all():
        what = "zero" if m.dead.all() else "constant"
        raise ValueError(f"features must vary between examples. Got {len(m.constant)} channels, all of them {what}.")
    return x, m


def check_same_size(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Refuse two sides whose positions do not correspond."""
    if a != b:
        raise ValueError(
            f"x and y must have the same spatial size. Got {a} and {b}. Pool the finer one first, for "
            "example with torch.nn.functional.adaptive_avg_pool2d, or use a CKA, which compares any two sizes."
        )


def cross_moments(a: FeatureSide, b: FeatureSide) -> Tensor:
    """Products of the *living* channels, ``sum over n, s of x[n, c, s] y[n, c', s]`` (v2 D.2, v1 D.1), in float64.

    Rows and columns count living channels only: use :func:`placed` where positions matter. As many examples of both
    sides are upcast at a time as is cheap.
    """
    check_same_size(a.size, b.size)
    wider = a.features if a.features[0].numel() > b.features[0].numel() else b.features
    first, *others = example_blocks(wider[: a.n])
    total = a.block(first).T @ b.block(first)
    for rows in others:
        total += a.block(rows).T @ b.block(rows)
    return total


def placed(cross: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Products ``(c, c')`` of living channels at their positions in ``(C, C')``, 0 for dead ones."""
    full = cross.new_zeros(len(rows), len(columns))
    full[rows.nonzero(), columns.nonzero()[:, 0]] = cross
    return full


@dataclass(frozen=True)
class PairwiseSide:
    """One side as a number for every pair of examples, ``(N, N)``: dissimilarities, or whatever a subclass defines."""

    gram: Tensor = field(repr=False)
    channels: int
    dead: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.gram)

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``: the submatrix, or what a subclass derives from it."""
        index, everything = check_distinct(index, self.gram, self.n)
        return self._taken(self.gram[index][:, index], index, everything)

    def _taken(self, part: Tensor, index: Tensor, everything: bool) -> Self:
        return replace(self, gram=part)
