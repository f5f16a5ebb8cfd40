"""The result of comparing many networks, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._result import Result
from .._words import columns, counted
from .embedding import Embedding, classical_scaling, majorised
from .registry import measure_title


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonSet(Result):
    """Similarities of every network with every other at each layer.

    Attributes:
        names: Names of the networks.
        layers: Names of the layers, which all of them have.
        measures: Names of the measures.
        scores: By measure, ``(L, n, n)`` in float64, NaN where ``notes`` says why.
        error: By measure, within which the exact score lies, 19 times of 20.
        chance: By measure, the mean score of shuffled examples.
        p: By measure, the share of shuffles that score at least as high.
        groups: By measure, the group that its score is invariant under, in words.
        examples: Number of examples.
        settings: Options of the run.
        notes: What a reader must know.
        versions: Versions of the software.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...]
    measures: tuple[str, ...]
    scores: Mapping[str, Tensor]
    error: Mapping[str, Tensor]
    chance: Mapping[str, Tensor]
    p: Mapping[str, Tensor]
    groups: Mapping[str, str]
    examples: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def matrix(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """Scores of all pairs of networks ``(n, n)`` at a layer, or their mean over layers.

        Raises:
            ValueError: If there is no such measure or layer.
        """
        name = self.measures[0] if measure is None else measure
        if name not in self.measures:
            raise ValueError(f"measure must be one of {list(self.measures)}. Got {measure!r}.")
        if layer is None:
            return self.scores[name].nanmean(0)
        if layer not in self.layers:
            raise ValueError(f"layer must be one of {list(self.layers)}. Got {layer!r}.")
        return self.scores[name][self.layers.index(layer)]

    def distances(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """``1 - score``, 0 on the diagonal, symmetric; 1 where there is no score."""
        found = (1 - self.matrix(measure, layer)).nan_to_num(nan=1.0).clamp(min=0)
        return ((found + found.T) / 2).fill_diagonal_(0)

    def embedding(self, measure: str | None = None, layer: str | None = None, dimensions: int = 2) -> Embedding:
        """Place the networks in a space of few dimensions, so that distances there are like these (SMACOF)."""
        distances = self.distances(measure, layer)
        return Embedding.of(self.names, distances, majorised(distances, classical_scaling(distances, dimensions)))

    def dendrogram(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """Average linkage of the networks: the rows of ``scipy.cluster.hierarchy.linkage``, ``(n - 1, 4)``."""
        from scipy.cluster.hierarchy import linkage
        from scipy.spatial.distance import squareform

        condensed = squareform(self.distances(measure, layer).numpy(), checks=False)
        return torch.from_numpy(linkage(condensed, method="average", optimal_ordering=True))

    def order(self, measure: str | None = None, layer: str | None = None) -> list[int]:
        """The networks in the order of the leaves of the dendrogram: like ones beside each other."""
        from scipy.cluster.hierarchy import leaves_list

        return [int(k) for k in leaves_list(self.dendrogram(measure, layer).numpy())]

    def _rows(self) -> list[dict[str, Any]]:
        """One row per measure, layer and pair of different networks."""
        parts = ("scores", "error", "chance", "p")
        return [
            {"measure": m, "layer": layer, "a": a, "b": b}
            | {
                part.removesuffix("s") if part == "scores" else part: float(getattr(self, part)[m][k, i, j])
                for part in parts
            }
            for m in self.measures
            for k, layer in enumerate(self.layers)
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names)
            if i < j
        ]

    def summary(self) -> str:
        """Which networks are alike, by the first measure, and where."""
        name, n = self.measures[0], len(self.names)
        mean = self.matrix(name).clone()
        off = mean.clone().fill_diagonal_(-torch.inf).nan_to_num(nan=-torch.inf)
        best = int(off.argmax())
        i, j = divmod(best, n)
        head = (
            f"Of {counted(n, 'network')}, {self.names[i]} and {self.names[j]} are most alike: {measure_title(name)} "
            f"{float(off.max()):.2f}, the mean over {counted(len(self.layers), 'layer')} on "
            f"{counted(self.examples, 'example')}"
        )
        rows: list[tuple[str, ...]] = [("layer", "mean of pairs", "lowest", "highest", "chance", "beyond chance")]
        upper = torch.ones(n, n, dtype=torch.bool).triu(1)
        for k, layer in enumerate(self.layers):
            values, chance, p = (x[name][k][upper] for x in (self.scores, self.chance, self.p))
            known = ~values.isnan()
            if not known.any():
                rows.append((layer, "", "", "", "", ""))
                continue
            beyond = f"{int((p[known] <= 0.05).sum())} of {int(known.sum())}"
            numbers = (values[known].mean(), values[known].min(), values[known].max(), chance[known].mean())
            rows.append((layer, *(f"{float(v) + 0.0:.3f}" for v in numbers), beyond))
        return "\n".join([head, "", *columns(rows), *(f"Note: {note}" for note in self.notes)])
