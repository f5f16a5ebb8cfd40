"""The result of comparing many networks: how similar each is to each, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, combinations_with_replacement, product
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..._result import Result
from ..._words import columns, counted, layer_title, listed
from ..distances import Embedding
from ..registry import measure_title
from . import verdict

_NAMED = 12  # pairs that a sentence names


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonSet(Result):
    """Similarities of every network with every other at each layer."""

    names: tuple[str, ...]  # Names of the networks
    layers: tuple[str, ...]  # Names of the layers, which all of them have
    measures: tuple[str, ...]  # Names of the measures
    scores: Mapping[str, Tensor]  # By measure, ``(L, n, n)`` in float64, NaN where ``notes`` says why
    error: Mapping[str, Tensor]  # By measure, within which the exact score lies, 19 times of 20
    low: Mapping[str, Tensor]  # By measure, lower ends of the confidence intervals over examples
    high: Mapping[str, Tensor]  # By measure, upper ends
    chance: Mapping[str, Tensor]  # By measure, the mean score of shuffled examples
    null_p: Mapping[str, Tensor]  # By measure, the share of shuffles that score at least as high
    groups: Mapping[str, str]  # By measure, the group that its score is invariant under, in words
    examples: int  # Number of examples
    settings: Mapping[str, Any] = field(default_factory=dict)  # Options of the run
    notes: tuple[str, ...] = ()  # What a reader must know
    versions: Mapping[str, str] = field(default_factory=dict)  # Versions of the software
    architectures: tuple[int, ...] = ()  # Of each network its architecture, by number
    # By measure, scores of networks with fresh weights by their architectures, ``(pairs, L, K, K)``, NaN where none is
    untrained_pairs: Mapping[str, Tensor] = field(default_factory=dict)

    def matrix(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """Scores of all pairs of networks ``(n, n)`` at a layer, or their mean over layers.

        Raises:
            ValueError: If there is no such measure or layer.
        """
        scores = self.scores[self._measure(measure)]
        if layer is None:
            return scores.nanmean(0)
        if layer not in self.layers:
            raise ValueError(f"layer must be one of {list(self.layers)}. Got {layer!r}.")
        return scores[self.layers.index(layer)]

    def against(self, name: str | None = None, measure: str | None = None) -> Tensor:
        """Scores of every network with one of them, layer by layer ``(n, L)``; with the last unless told otherwise.

        Of checkpoints of one training, in their order, the rows say when each layer became what it is at the end.

        Raises:
            ValueError: If there is no such network or measure.
        """
        if name is not None and name not in self.names:
            raise ValueError(f"name must be one of {list(self.names)}. Got {name!r}.")
        return self.scores[self._measure(measure)][:, :, -1 if name is None else self.names.index(name)].T

    def _measure(self, measure: str | None) -> str:
        name = self.measures[0] if measure is None else measure
        if name not in self.measures:
            raise ValueError(f"measure must be one of {list(self.measures)}. Got {measure!r}.")
        return name

    def untrained(self, measure: str | None = None, reached: bool = False) -> Tensor:
        """Mean scores of untrained networks of the architectures of each pair, ``(L, n, n)``; NaN where none is known.

        ``reached`` is what another pair of them stays below in 19 of 20 cases, as :func:`intertwine.compare` judges.
        """
        name, kinds = self._measure(measure), torch.tensor(self.architectures)
        if name not in self._levels:
            return torch.full_like(self.scores[name], torch.nan)
        return self._levels[name][int(reached)][:, kinds[:, None], kinds]

    @cached_property
    def _levels(self) -> dict[str, Tensor]:
        """By measure the means of untrained networks and what another pair stays below, ``(2, L, K, K)``."""
        found = {}
        for name, pairs in self.untrained_pairs.items():
            found[name] = torch.full_like(pairs[:1], torch.nan).repeat(2, 1, 1, 1)
            for s, t in combinations_with_replacement(range(pairs.shape[-1]), 2):
                levels = pairs[:, :, s, t][~pairs[:, :, s, t].isnan().all(1)]
                apart = 2 * len(levels) if s != t else 0  # such pairs share no network
                found[name][:, :, s, t] = torch.stack([levels.nanmean(0), verdict.reach(levels, apart)])
                found[name][:, :, t, s] = found[name][:, :, s, t]
        return found

    def agreement(self, measure: str | None = None) -> Tensor:
        """1 where networks agree beyond shuffled examples and untrained networks, else 0; NaN where that is not known.

        ``(L, n, n)``. Without any untrained networks, beyond shuffled examples alone.
        """
        name = self._measure(measure)
        reached = self.untrained(name, reached=True) if self.untrained_pairs else None
        return verdict.agreement(self.scores[name], self.null_p[name], reached)

    def agreeing(self, measure: str | None = None) -> str:
        """Which networks agree, and at how many layers; empty where nothing is known."""
        by: dict[str, list[str]] = {"every layer": [], "some layers": [], "no layer": []}
        found = self.agreement(measure)[:, *self._upper]
        for (a, b), count, known in zip(combinations(self.names, 2), found.nansum(0).int(), (~found.isnan()).sum(0)):
            kind = "every layer" if count == known else "some layers" if count else "no layer"
            least = " known" if known < len(found) else ""  # of a layer without a score nobody knows
            which = f" ({count} of {known}{least})" if least or kind == "some layers" else ""
            by[kind] += [f"{a} and {b}{which}"] if known else []
        said = "; ".join(f"{counted(len(x), 'pair')} at {kind} ({listed(x, _NAMED)})" for kind, x in by.items() if x)
        return said and f"Beyond {verdict.judged_by(bool(self.untrained_pairs))}: {said}."

    def distances(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """``1 - score``, 0 on the diagonal, symmetric; 1 where there is no score."""
        found = (1 - self.matrix(measure, layer)).nan_to_num(nan=1.0).clamp(min=0)
        return ((found + found.T) / 2).fill_diagonal_(0)

    def embedding(self, measure: str | None = None, layer: str | None = None, dimensions: int = 2) -> Embedding:
        """Place the networks in a space of few dimensions, so that distances there are like these (SMACOF)."""
        return Embedding.of(self.names, self.distances(measure, layer), dimensions)

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

    def judged(self, measure: str | None = None) -> dict[str, Tensor]:
        """Scores and all that they are judged by, by name, ``(L, n, n)`` each; NaN where it is not known."""
        name = self._measure(measure)
        found = {part: getattr(self, part)[name] for part in ("error", "low", "high", "chance", "null_p")}
        judged = {"untrained": self.untrained(name), "agree": self.agreement(name)}
        return {"score": self.scores[name], **found, **judged}

    @property
    def _upper(self) -> Tensor:
        """Rows and columns of the pairs of different networks, ``(2, pairs)``."""
        return torch.triu_indices(len(self.names), len(self.names), 1)

    def _rows(self) -> list[dict[str, Any]]:
        """One row per measure, layer and pair of different networks."""
        rows = []
        for m in self.measures:
            cells = {part: matrix[:, *self._upper].tolist() for part, matrix in self.judged(m).items()}
            for (k, layer), (at, (a, b)) in product(enumerate(self.layers), enumerate(combinations(self.names, 2))):
                rows.append({"measure": m, "layer": layer, "a": a, "b": b, **{p: x[k][at] for p, x in cells.items()}})
        return rows

    def summary(self) -> str:
        """Which networks are alike, by the first measure, and where."""
        name, n = self.measures[0], len(self.names)
        off = self.matrix(name).clone().fill_diagonal_(-torch.inf).nan_to_num(nan=-torch.inf)
        i, j = divmod(int(off.argmax()), n)
        title, where = measure_title(name), counted(len(self.layers), "layer")
        head = f"No pair of {counted(n, 'network')} could be compared by {title}; the notes say why"
        if i != j:
            found = f"{self.names[i]} and {self.names[j]} are most alike: {title} {float(off.max()):.2f}"
            head = f"Of {counted(n, 'network')}, {found}, the mean over {where} on {counted(self.examples, 'example')}"
        judged = {part: matrix[:, *self._upper] for part, matrix in self.judged(name).items()}
        scores, mean = judged["score"], lambda part: judged[part].nanmean(1)
        ends = {
            "lowest": scores.nan_to_num(nan=torch.inf).amin(1),
            "highest": scores.nan_to_num(nan=-torch.inf).amax(1),
        }
        table = {"mean of pairs": mean("score"), **ends, "from": mean("low"), "to": mean("high")}
        table |= {part: mean(part) for part in ("chance", "untrained", "agree")}
        table = {title: column for title, column in table.items() if column.isfinite().any()}
        number = lambda x: f"{x + 0.0:.3f}" if isfinite(x) else "-"
        rows = zip(map(layer_title, self.layers), *(map(number, column.tolist()) for column in table.values()))
        lines = [head, *filter(None, [self.agreeing(name)]), "", *columns([("layer", *table), *rows])]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])
