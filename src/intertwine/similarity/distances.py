"""Distances between many sets of features, and points embedded at these distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from .._io import versions
from .._progress import track
from .._result import Result
from .._words import columns, counted
from .base import Measure
from .registry import measure as find

if TYPE_CHECKING:
    import pandas as pd

_STEPS, _TOLERANCE = 1000, 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Embedding(Result):
    """Named points in a space of few dimensions.

    Attributes:
        names: Names of the points.
        points: ``(n, dimensions)``, float64, centred, along their principal axes.
        stress: Kruskal's stress-1, ``sqrt(sum (d_ij - |p_i - p_j|)^2 / sum d_ij^2)``: 0 where the points reproduce
            every distance; above 0.2 a picture misleads.
    """

    names: tuple[str, ...]
    points: Tensor
    stress: float

    @classmethod
    def of(cls, names: Sequence[str], distances: Tensor, dimensions: int) -> Self:
        """Points from classical scaling, moved to the least stress (SMACOF), along principal axes.

        Raises:
            ValueError: If ``dimensions`` is less than 1.
        """
        if dimensions < 1:
            raise ValueError(f"dimensions must be at least 1. Got {dimensions}.")
        points = majorised(distances, classical_scaling(distances, dimensions))
        points = points - points.mean(0)
        _, _, axes = torch.linalg.svd(points, full_matrices=False)
        points = nn.functional.pad(points @ axes.T, (0, points.shape[1] - len(axes)))
        largest = points.gather(0, points.abs().argmax(0, keepdim=True))
        points = points * torch.where(largest < 0, -1.0, 1.0)  # signs are free: make the farthest point positive
        missed = (distances - torch.cdist(points, points)).square().sum() / distances.square().sum()
        return cls(tuple(names), points, float(missed.nan_to_num(0).sqrt()))

    def _rows(self) -> list[dict[str, Any]]:
        """One row per point."""
        points = zip(self.names, self.points.tolist())
        return [{"name": name, **{f"x{k}": x for k, x in enumerate(point, 1)}} for name, point in points]

    def summary(self) -> str:
        """The stress, and the coordinates of every point."""
        rows = [(name, *(f"{v:8.3f}" for v in point)) for name, point in zip(self.names, self.points.tolist())]
        space = counted(self.points.shape[1], "dimension")
        return "\n".join([f"{counted(len(rows), 'point')} in {space}, stress {self.stress:.3f}", *columns(rows)])


def classical_scaling(distances: Tensor, dimensions: int) -> Tensor:
    """Points whose inner products best fit the squared distances centred on both sides (Torgerson 1952)."""
    square = distances.square()
    products = -(square - square.mean(0) - square.mean(1, keepdim=True) + square.mean()) / 2
    values, vectors = torch.linalg.eigh(products)
    points = vectors.flip(1)[:, :dimensions] * values.flip(0)[:dimensions].clamp(min=0).sqrt()
    return nn.functional.pad(points, (0, dimensions - points.shape[1]))


def majorised(distances: Tensor, points: Tensor) -> Tensor:
    """Move points by Guttman's transform, which lowers the stress, until it falls no more (SMACOF; de Leeuw 1977)."""
    before = torch.inf
    for _ in range(_STEPS):
        now = torch.cdist(points, points)
        stress = float((distances - now).square().sum())
        if before - stress <= _TOLERANCE * stress:
            break
        before = stress
        ratio = torch.where(now > 0, distances / now.clamp(min=1e-300), 0.0)
        points = (torch.diag(ratio.sum(1)) - ratio) @ points / len(points)
    return points


@dataclass(frozen=True, eq=False, repr=False)
class Distances(Result):
    """Distances between all pairs of sets of features of the same examples, for example of several networks.

    Attributes:
        names: Names of the networks.
        measure: Name of the measure.
        group: Group that the score is invariant under, in words.
        metric: Whether the distances obey the triangle inequality (for Procrustes: between layers of one width).
        distances: ``(n, n)``, float64: symmetric, 0 on the diagonal.
        scores: ``(n, n)``: score of row against column.
        channels: Number of channels of each set.
        dead: Number of channels of each set that were left out.
        examples: Number of examples.
        notes: Caveats for the reader.
        versions: Versions of the software.
    """

    names: tuple[str, ...]
    measure: str
    group: str
    metric: bool
    distances: Tensor
    scores: Tensor
    channels: tuple[int, ...]
    dead: tuple[int, ...]
    examples: int
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def embedding(self, dimensions: int = 2) -> Embedding:
        """Embed the sets in a space of few dimensions, at distances as close to these as possible (SMACOF)."""
        return Embedding.of(self.names, self.distances, dimensions)

    def nearest(self) -> pd.DataFrame:
        """The nearest other network of each network, one row each."""
        import pandas as pd

        found = self.distances.clone().fill_diagonal_(torch.inf).min(1)
        nearest = [self.names[i] for i in found.indices.tolist()]
        return pd.DataFrame({"name": self.names, "nearest": nearest, "distance": found.values.tolist()})

    def _rows(self) -> list[dict[str, Any]]:
        """One row per ordered pair of different networks."""
        return [
            {"a": a, "b": b, "score": float(self.scores[i, j]), "distance": float(self.distances[i, j])}
            for (i, a), (j, b) in permutations(enumerate(self.names), 2)
        ]

    def summary(self) -> str:
        """What was compared, the nearest network of each, and notes."""
        head = (
            f"Distances of {counted(len(self.names), 'network')} by {self.measure} (invariant under: {self.group}) on "
            f"{counted(self.examples, 'example')}"
        )
        width = max(map(len, ("name", *self.names)))
        rows = [f"{'name':<{width}}  {'nearest':<{width}}  distance"]
        for name, nearest, distance in self.nearest().itertuples(index=False):
            rows.append(f"{name:<{width}}  {nearest:<{width}}  {distance:.3f}")
        return "\n".join([head, *rows, *(f"Note: {note}" for note in self.notes)])


def distances(
    features: Mapping[str, Tensor],
    measure: str | Measure[Any] = "orthogonal_procrustes",
    *,
    channel_dim: int = 1,
    progress: bool | None = None,
) -> Distances:
    """Distances between all pairs of sets of features ``(N, C, *S)`` of the same examples, by one measure.

    A score becomes a distance by :meth:`Measure.to_distance`. Procrustes gives the least distance over its group
    (divided by the root of the larger width, if channels are scaled one by one), a CKA the angle between Gram matrices,
    and soft matching its own distance: all of these are metrics. Other measures give ``1 - score``, which orders pairs
    but obeys no triangle inequality. For a directed measure, distances are means of both directions.

    Get features of networks from :func:`intertwine.features.collect`, one layer of each. To compare all layers of
    networks of one architecture, use :func:`intertwine.compare_many`.

    Raises:
        ValueError: If there are fewer than two sets, or the measure refuses one, which the message names.
        TypeError: If a set is not a tensor.

    References:
        Williams, Kunz, Kornblith, Linderman, "Generalized shape metrics on neural representations", NeurIPS 2021.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import distances
        >>> g = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(60, 8, generator=g), torch.randn(60, 8, generator=g)
        >>> rotation = torch.linalg.qr(torch.randn(8, 8, generator=g)).Q
        >>> found = distances({"x": x, "turned": x @ rotation, "other": y, "between": x + y})
        >>> found.nearest()["nearest"].tolist()[:3]
        ['turned', 'x', 'between']
        >>> found.embedding().points.shape
        torch.Size([4, 2])
    """  # noqa: DOC502 - raised by the measure
    chosen = find(measure)
    if len(features) < 2:
        raise ValueError(f"features must be of at least two. Got {len(features)}.")
    sides: list[Any] = []
    for name, x in track(features.items(), "Preparing", len(features), progress):
        try:
            sides.append(chosen.prepare(x, channel_dim))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"features of {name!r} cannot be compared: {error}") from None
    scores = torch.eye(len(sides), dtype=torch.float64)
    between = torch.zeros_like(scores)
    pairs = list(permutations(range(len(sides)), 2))
    for i, j in track(pairs, f"Comparing by {chosen.name}", len(pairs), progress):
        scores[i, j] = chosen.score(sides[i], sides[j])
        between[i, j] = chosen.to_distance(float(scores[i, j]), sides[i], sides[j])
    directed = not torch.allclose(scores, scores.T, atol=1e-6)
    return Distances(
        names=tuple(features),
        measure=chosen.name,
        group=chosen.group,
        metric=chosen.obeys_triangle(sides),
        distances=(between + between.T) / 2,
        scores=scores,
        channels=tuple(side.channels for side in sides),
        dead=tuple(side.dead for side in sides),
        examples=sides[0].n,
        notes=(f"{chosen.name} is directed: distances are means of both directions.",) if directed else (),
        versions=versions(),
    )
