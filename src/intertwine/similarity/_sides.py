"""The sides of a pair as measures keep them: the features themselves, or a matrix over pairs of examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from ._features import Moments, channels_first, check_distinct, double, example_blocks, moments, unit_scale


class FeatureSide:
    """One side as features ``(N, C, *S)``: the examples ``rows``, all unless given, and the moments of these."""

    def __init__(self, features: Tensor, moments: Moments, center: bool, rows: Tensor | None = None) -> None:
        self.features, self.moments, self.center, self.rows = features, moments, center, rows
        self.n, self.channels = len(features if rows is None else rows), features.shape[1]
        self.size, self.details = tuple(features.shape[2:]), dict[str, Any]()
        norms, dead = (moments.spread, moments.constant) if center else (moments.norm, moments.dead)
        # channels that are alive, (C,) bool: not zero everywhere, and not constant where they are centred
        self.kept, self.dead = ~dead, int(dead.sum())
        # the power of 2 that brings norms near 1 where products would leave the range of numbers; 1 elsewhere
        self.unit = 1.0 if 1e-100 < float(norms.max()) < 1e100 else float(unit_scale(norms))
        self.norms = norms * self.unit  # of the channels as `block` gives them, (C,); 0 where dead

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``; moments of a subsample are taken anew."""
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
    """Check features and take their moments; they are kept, not copied."""
    return FeatureSide(*_checked(x, channel_dim), center)


def living_channels(x: Tensor, channel_dim: int) -> tuple[Tensor, Moments, int]:
    """Check features; return them without constant channels, ``(N, C', *S)``, their moments, and how many went."""
    x, m = _checked(x, channel_dim)
    dead, alive = int(m.constant.sum()), ~m.constant
    some: Any = {k: v[alive] for k, v in vars(m).items() if isinstance(v, Tensor)}
    return (x[:, alive], replace(m, **some), dead) if dead else (x, m, 0)


def _checked(x: Tensor, channel_dim: int) -> tuple[Tensor, Moments]:
    """Features and moments; refused where no example differs from another: equal ones would score 1 for nothing."""
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

    Rows and columns count living channels only: use :func:`placed` where positions matter. So many examples of both
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
    """Products ``(c, c')`` of living channels at their places in ``(C, C')``, 0 for dead ones."""
    full = cross.new_zeros(len(rows), len(columns))
    full[rows.nonzero(), columns.nonzero()[:, 0]] = cross
    return full


@dataclass(frozen=True)
class PairwiseSide:
    """One side as a number for every pair of examples, ``(N, N)``: dissimilarities, or what a subclass says."""

    gram: Tensor = field(repr=False)
    channels: int
    dead: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.gram)

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``: the submatrix, or what a subclass makes of it."""
        index, everything = check_distinct(index, self.gram, self.n)
        return self._taken(self.gram[index][:, index], index, everything)

    def _taken(self, part: Tensor, index: Tensor, everything: bool) -> Self:
        return replace(self, gram=part)
