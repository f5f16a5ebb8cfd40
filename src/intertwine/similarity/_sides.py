"""What measures keep of one side: the features themselves, or a matrix over pairs of examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from ._features import Moments, channels_first, check_distinct, double, example_blocks, moments

__all__ = ["FeatureSide", "PairwiseSide", "cross_moments", "feature_side", "living_channels"]


@dataclass(frozen=True)
class FeatureSide:
    """One side as features: which examples of them, their channels' moments, and which channels are alive."""

    features: Tensor = field(repr=False)
    moments: Moments = field(repr=False)
    kept: Tensor = field(repr=False)
    rows: Tensor | None = field(default=None, repr=False)

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.features) if self.rows is None else len(self.rows)

    @property
    def channels(self) -> int:
        """Number of channels, dead ones included."""
        return self.features.shape[1]

    @property
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
        new = self.moments if check_distinct(index, self.n) else moments(self.features[rows])
        return type(self)(self.features, new, self.kept, rows)

    def block(self, b: slice, center: bool) -> Tensor:
        """Examples ``b`` with the living channels as columns: ``(n P, C)`` in float64."""
        x = self.features[b] if self.rows is None else self.features[self.rows[b]]
        x = double(x).movedim(1, -1).flatten(0, -2)
        return (x - self.moments.mean if center else x)[:, self.kept]


def feature_side(x: Tensor, channel_dim: int, center: bool) -> FeatureSide:
    """Check features and take their moments; they are kept, not copied."""
    x = channels_first(x, channel_dim)
    m = moments(x)
    _check_variation(m)
    return FeatureSide(x, m, ~(m.constant if center else m.dead))


def cross_moments(a: FeatureSide, b: FeatureSide, center: bool) -> Tensor:
    """``sum over n, s of x[n, c, s] y[n, c', s]`` (v2 D.2, v1 D.1) in float64, a block of examples at a time.

    Raises:
        ValueError: If the spatial sizes differ.
    """
    if a.size != b.size:
        raise ValueError(
            f"x and y must have the same spatial size. Got {a.size} and {b.size}. Pool the finer one first, for "
            "example with torch.nn.functional.adaptive_avg_pool2d, or use a CKA, which compares any two sizes."
        )
    wider = a.features if a.features[0].numel() > b.features[0].numel() else b.features
    blocks = example_blocks(wider[: a.n])
    first = next(blocks)
    total = a.block(first, center).T @ b.block(first, center)
    for rows in blocks:
        total += a.block(rows, center).T @ b.block(rows, center)
    return total


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
    """Refuse features that tell no example from another: equal ones would score 1 without any evidence.

    Raises:
        ValueError: If every channel is constant.
    """
    if m.constant.all():
        what = "zero" if m.dead.all() else "constant"
        raise ValueError(f"features must vary between examples. Got {len(m.constant)} channels, all of them {what}.")
