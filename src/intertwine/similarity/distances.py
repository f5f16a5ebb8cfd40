"""Many networks at once: the distances of all pairs by one measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._io import versions
from .._progress import track
from .._result import Result
from .._words import counted
from ..features import batches as batching
from ..features import collect, layers
from .base import Measure
from .embedding import Embedding, classical_scaling, majorised
from .registry import measure as find

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Distances", "distances"]


@dataclass(frozen=True, eq=False, repr=False)
class Distances(Result):
    """Distances of all pairs of networks, or of other sets of features of the same examples.

    Attributes:
        names: Names of the networks.
        measure: Name of the measure.
        group: What its score is invariant under, in words.
        metric: Whether the distances obey the triangle inequality (Procrustes: between layers of one width).
        distances: ``(n, n)``, float64: symmetric, 0 on the diagonal.
        scores: ``(n, n)``: score of row against column.
        channels: Channels of each.
        dead: Channels of each that were left out.
        examples: Number of examples.
        notes: What a reader must know.
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

    def embedding(self, dimensions: int = 2, method: str = "stress") -> Embedding:
        """Place the networks in a space of few dimensions, so that their distances there are like these.

        Args:
            dimensions: Of the space, at least 1.
            method: ``"classical"`` scaling (Torgerson 1952: the best inner products) or ``"stress"``, which moves its
                points until the distances themselves fit best (SMACOF; de Leeuw 1977).

        Raises:
            ValueError: If the method is unknown or the dimensions are fewer than 1.
        """
        if method not in ("classical", "stress"):
            raise ValueError(f"method must be 'classical' or 'stress'. Got {method!r}.")
        if dimensions < 1:
            raise ValueError(f"dimensions must be at least 1. Got {dimensions}.")
        points = classical_scaling(self.distances, dimensions)
        if method == "stress":
            points = majorised(self.distances, points)
        return Embedding.of(self.names, self.distances, points)

    def nearest(self) -> pd.DataFrame:
        """The nearest other network of each: one row per network."""
        import pandas as pd

        off = self.distances.clone().fill_diagonal_(torch.inf)
        found = off.min(1)
        nearest = [self.names[i] for i in found.indices.tolist()]
        return pd.DataFrame({"name": self.names, "nearest": nearest, "distance": found.values.tolist()})

    def _rows(self) -> list[dict[str, Any]]:
        """One row per ordered pair of different networks."""
        scores, between = self.scores.tolist(), self.distances.tolist()
        return [
            {"a": a, "b": b, "score": scores[i][j], "distance": between[i][j]}
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names)
            if i != j
        ]

    def summary(self) -> str:
        """What was compared, the nearest of each, and notes."""
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
    networks: Mapping[str, Tensor | nn.Module],
    measure: str | Measure[Any] = "orthogonal_procrustes",
    loader: Iterable[Any] | None = None,
    layer: str | Mapping[str, str] | None = None,
    *,
    channel_dim: int | None = None,
    max_examples: int | None = None,
    progress: bool | None = None,
) -> Distances:
    """Distances of all pairs of networks at one layer each, by one measure.

    A score becomes a distance by :meth:`Measure.to_distance`: Procrustes gives the least distance over its group, a CKA
    the angle between Gram matrices, soft matching its own distance, all of them metrics; other measures give
    ``1 - score``, which orders pairs but obeys no triangle inequality. Where a measure is directed, distances are the
    mean of both directions.

    Args:
        networks: By name, features ``(N, C, *S)`` of the same examples, or networks.
        measure: A measure or its name.
        loader: Batches for networks; read once for each of them, so it must not be an iterator.
        layer: The layer of the networks, one name for all or one by network.
        channel_dim: Axis of the channels; that of :func:`intertwine.features.layers` for networks and 1 for features
            unless given.
        max_examples: Use this many examples at most.
        progress: Whether to show progress.

    Raises:
        ValueError: If there are fewer than two networks, a layer is missing or matches more than one, or the measure
            refuses the features of one, which the message names.
        TypeError: If one is neither a tensor nor a network, or networks come without a loader or with an iterator.

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
    """  # noqa: DOC502 - raised by a check
    chosen = find(measure)
    if len(networks) < 2:
        raise ValueError(f"networks must be at least two. Got {len(networks)}.")
    if loader is not None:
        batching.check_repeatable(loader)
    sides: dict[str, Any] = {}
    for name, one in track(networks.items(), "Preparing", len(networks), progress):
        x, axis = _features(name, one, loader, layer, channel_dim, max_examples)
        try:
            sides[name] = chosen.prepare(x, axis)
        except ValueError as error:
            raise ValueError(f"features of {name!r} cannot be compared: {error}") from None
    names, count = tuple(sides), len(sides)
    scores = torch.eye(count, dtype=torch.float64)
    between = torch.zeros(count, count, dtype=torch.float64)
    pairs = list(combinations(range(count), 2))
    values: Sequence[Any] = list(sides.values())
    for i, j in track(pairs, f"Comparing by {chosen.name}", len(pairs), progress):
        for p, q in ((i, j), (j, i)):
            scores[p, q] = chosen.score(values[p], values[q])
            between[p, q] = chosen.to_distance(float(scores[p, q]), values[p], values[q])
    directed = not torch.allclose(scores, scores.T, atol=1e-6)
    return Distances(
        names=names,
        measure=chosen.name,
        group=chosen.group,
        metric=chosen.obeys_triangle(values),
        distances=(between + between.T) / 2,
        scores=scores,
        channels=tuple(side.channels for side in values),
        dead=tuple(side.dead for side in values),
        examples=values[0].n,
        notes=(f"{chosen.name} is directed: distances are means of both directions.",) if directed else (),
        versions=versions(),
    )


def _features(
    name: str,
    one: Tensor | nn.Module,
    loader: Iterable[Any] | None,
    layer: str | Mapping[str, str] | None,
    channel_dim: int | None,
    max_examples: int | None,
) -> tuple[Tensor, int]:
    """Features of one network, and where their channels are."""
    if isinstance(one, Tensor):
        return one[:max_examples], 1 if channel_dim is None else channel_dim
    if not isinstance(one, nn.Module):
        raise TypeError(f"{name!r} must be a tensor of features or a network. Got {type(one).__name__}.")
    wanted = layer.get(name) if isinstance(layer, Mapping) else layer
    if loader is None or wanted is None:
        missing = "loader" if loader is None else f"layer of {name!r}"
        raise TypeError(f"{missing} must be given for networks. Got none.")
    found = collect(one, loader, wanted, max_examples=max_examples)
    if len(found) != 1:
        raise ValueError(f"layer must name one layer of {name!r}. Got {wanted!r}, which matches {len(found)}.")
    point = next(p for p in layers(one, batching.peek(loader)[0]) if p.name in found)
    return next(iter(found.values())), point.channel_dim if channel_dim is None else channel_dim
