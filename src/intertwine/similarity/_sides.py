"""The sides of a pair as measures keep them: the features themselves, or a matrix over pairs of examples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from torch import Tensor

from ._features import Moments, channels_first, check_distinct, double, example_blocks, moments, unit_scale

_SUBSAMPLE = "Got a subsample in which all channels are constant"


@dataclass(frozen=True)
class FeatureSide:
    """One side as features: which examples of them, their channels' moments, and which channels are alive."""

    features: Tensor = field(repr=False)  # ``(N, C, *S)``
    moments: Moments = field(repr=False)  # Per-channel moments of the examples ``rows``
    center: bool = False  # Whether channels are centred, so that constant ones are dead
    rows: Tensor | None = field(default=None, repr=False)  # Which examples, in which order; all of them where ``None``

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.features) if self.rows is None else len(self.rows)

    @property
    def channels(self) -> int:
        """Number of channels, dead ones included."""
        return self.features.shape[1]

    @cached_property
    def kept(self) -> Tensor:
        """Channels that are alive, ``(C,)`` bool: not zero everywhere, and not constant where channels are centred."""
        return ~(self.moments.constant if self.center else self.moments.dead)

    @property
    def norms(self) -> Tensor:
        """Norms of the channels as :meth:`block` gives them, ``(C,)``; 0 where dead."""
        return (self.moments.spread if self.center else self.moments.norm) * self.unit

    @cached_property
    def unit(self) -> float:
        """The power of 2 that brings the norms near 1 where products would leave the range of numbers; 1 elsewhere."""
        norms = self.moments.spread if self.center else self.moments.norm
        return 1.0 if 1e-100 < float(norms.max()) < 1e100 else float(unit_scale(norms))

    @cached_property
    def dead(self) -> int:
        """Number of channels left out: zero everywhere, or constant where channels are centred."""
        return self.channels - int(self.kept.sum())

    @property
    def size(self) -> tuple[int, ...]:
        """Spatial size."""
        return tuple(self.features.shape[2:])

    @property
    def details(self) -> Mapping[str, Any]:
        """Nothing: nothing is chosen here."""
        return {}

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``; moments of a subsample are taken anew."""
        index = index.to(self.features.device)
        rows = index if self.rows is None else self.rows[index]
        if check_distinct(index, self.n):
            return type(self)(self.features, self.moments, self.center, rows)
        taken = type(self)(self.features, moments(self.features[rows]), self.center, rows)
        if not taken.kept.any():
            raise ValueError(f"features must vary between examples. {_SUBSAMPLE}.")
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
    """Check features and take their moments; they are kept, not copied."""
    x = channels_first(x, channel_dim)
    m = moments(x)
    _check_variation(m)
    return FeatureSide(x, m, center)


def check_same_size(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Refuse two sides whose positions do not correspond."""
    if a != b:
        raise ValueError(
            f"x and y must have the same spatial size. Got {a} and {b}. Pool the finer one first, for "
            "example with torch.nn.functional.adaptive_avg_pool2d, or use a CKA, which compares any two sizes."
        )


def cross_moments(a: FeatureSide, b: FeatureSide) -> Tensor:
    """Products of the *living* channels, ``sum over n, s of x[n, c, s] y[n, c', s]`` (v2 D.2, v1 D.1), in float64.

    Rows and columns count living channels only: use :func:`placed` where positions matter.
    """
    check_same_size(a.size, b.size)
    return products(a, b, a.block, b.block)


def products(
    a: FeatureSide, b: FeatureSide, left: Callable[[slice], Tensor], right: Callable[[slice], Tensor]
) -> Tensor:
    """``sum over blocks of left(block)^T right(block)``, so many examples of both sides at a time as is cheap."""
    wider = a.features if a.features[0].numel() > b.features[0].numel() else b.features
    blocks = example_blocks(wider[: a.n])
    first = next(blocks)
    total = left(first).T @ right(first)
    for rows in blocks:
        total += left(rows).T @ right(rows)
    return total


def placed(cross: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Products ``(c, c')`` of living channels at their places in ``(C, C')``, 0 for dead ones."""
    full = cross.new_zeros(len(rows), len(columns))
    full[rows.nonzero(), columns.nonzero()[:, 0]] = cross
    return full


@dataclass(frozen=True)
class PairwiseSide:
    """One side as similarities or distances of all pairs of examples."""

    matrix: Tensor = field(repr=False)
    channels: int
    dead: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.matrix)

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``: the submatrix."""
        index = index.to(self.matrix.device)
        check_distinct(index, self.n)
        return type(self)(self.matrix[index][:, index], self.channels, self.dead, self.details)


def living_channels(x: Tensor, channel_dim: int) -> tuple[Tensor, Moments, int]:
    """Check features; return them without constant channels, ``(N, C', *S)``, their moments, and how many went."""
    x = channels_first(x, channel_dim)
    m = moments(x)
    _check_variation(m)
    dead = int(m.constant.sum())
    return (x[:, ~m.constant], m.select(~m.constant), dead) if dead else (x, m, 0)


def _check_variation(m: Moments) -> None:
    """Refuse features that tell no example from another: equal ones would score 1 without any evidence."""
    if m.constant.all():
        what = "zero" if m.dead.all() else "constant"
        raise ValueError(f"features must vary between examples. Got {len(m.constant)} channels, all of them {what}.")
