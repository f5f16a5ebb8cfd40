"""Results of comparing two networks, every layer with every layer, and many networks, every pair at each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations, combinations_with_replacement, product
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._result import Result
from ..._words import columns, counted, layer_title, listed
from ..distances import Embedding
from ..registry import measure_title
from . import verdict

if TYPE_CHECKING:
    import pandas as pd

_NAMED = 12  # layers, or pairs of networks, that a summary names
_NOTHING = "-"  # shown where a number is not known
SMALL_P = 0.001  # p-values below this are not told apart in a table
_MATRICES = ("error", "low", "high", "chance", "untrained", "null_p", "calibrated", "floor")


def _place(what: str, name: str, known: tuple[str, ...]) -> int:
    if name not in known:
        raise ValueError(f"{what} must be one of {list(known)}. Got {name!r}.")
    return known.index(name)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """Similarities of every layer of network A with every layer of network B.

    Every matrix is ``(L_a, L_b)`` in float64, by measure name; NaN where ``notes`` says why.

    Attributes:
        layers_a: Layers of A, in the order in which it runs.
        layers_b: Layers of B.
        measures: Names of the measures.
        scores: The similarities; 1 means equal up to ``groups[measure]``.
        low: Lower ends of the confidence intervals, ``None`` for a measure without them.
        high: Upper ends.
        chance: Mean score after the examples of B were shuffled: what unrelated features of these shapes would get.
        null_p: Share of shuffles that score at least as high, counting the true order as one.
        calibrated: ``(score - c) / (1 - c)`` with ``c`` the 95 % quantile of the shuffled scores, 0 where that is
            negative.
        floor: The lowest possible score, where it is known.
        groups: By measure, the exact group that its score is invariant under, in words.
        channels_a: Channels per layer of A.
        channels_b: Channels per layer of B.
        dead_a: Channels of A that never respond; they are left out and never count as agreement.
        dead_b: Channels of B that never respond.
        shapes_a: Shape of one example's features, per layer of A.
        shapes_b: Shape of one example's features, per layer of B.
        examples: Number of examples.
        seed: Seed of the shuffles and subsamples.
        settings: Options of the run.
        notes: Caveats for the reader, such as feature maps that were pooled.
        versions: Versions of the software.
        untrained_pairs: Scores of the same layers of networks with fresh weights, if any: ``(pairs, L_a, L_b)``.
        untrained_networks: Number of networks in these pairs; if less than two a pair, pairs share some; 0: not known.
        acting_a: For each layer of A, the name of the group by which other weights of the same function move its
            features, such as ``"positive_monomial"`` behind a ReLU; empty if it is not known, or if only one measure
            was asked for.
        acting_b: For each layer of B.
        best_p: p-value of the partner that :meth:`best` names for each layer of A, ``(L_a,)``: ``null_p`` times the
            scored layers of B, or the share of shuffles whose own best match lies as far above chance, if all were.
        error: Bound within which the exact score lies 19 times out of 20, if scores are estimated from pairs of
            examples within blocks and from sampled positions; ``None`` if they are exact.

    Examples:
        >>> import intertwine as iw
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> found = iw.compare(net, net, torch.randn(60, 5).split(20))
        >>> found.layers_a, found.acting_a, found.headline.partition(":")[0]
        (('1',), ('positive_monomial',), 'very similar')
        >>> found.best("g_relu_cka")[["layer_a", "layer_b"]].to_numpy().tolist()
        [['1', '1']]
    """

    layers_a: tuple[str, ...]
    layers_b: tuple[str, ...]
    measures: tuple[str, ...]
    scores: Mapping[str, Tensor]
    low: Mapping[str, Tensor | None]
    high: Mapping[str, Tensor | None]
    chance: Mapping[str, Tensor | None]
    null_p: Mapping[str, Tensor | None]
    calibrated: Mapping[str, Tensor | None]
    floor: Mapping[str, Tensor | None]
    groups: Mapping[str, str]
    channels_a: tuple[int, ...]
    channels_b: tuple[int, ...]
    dead_a: tuple[int, ...]
    dead_b: tuple[int, ...]
    shapes_a: tuple[tuple[int, ...], ...]
    shapes_b: tuple[tuple[int, ...], ...]
    examples: int
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    untrained_pairs: Mapping[str, Tensor] = field(default_factory=dict)
    untrained_networks: int = 0
    acting_a: tuple[str, ...] = ()
    acting_b: tuple[str, ...] = ()
    best_p: Mapping[str, Tensor | None] = field(default_factory=dict)
    error: Mapping[str, Tensor | None] = field(default_factory=dict)

    @property
    def untrained(self) -> dict[str, Tensor]:
        """Mean score of the same layers of networks with fresh weights, if there were such networks."""
        return {name: pairs.nanmean(0) for name, pairs in self.untrained_pairs.items()}

    @property
    def headline(self) -> str:
        """The verdict in one short line, by the measure whose group is that of the networks."""
        return verdict.brief(self)

    def best(self, measure: str | None = None) -> pd.DataFrame:
        """The layer of B most similar to each layer of A, by the first measure unless told otherwise.

        Scores are ranked by their excess over chance, which differs with width. The highest of many is biased upwards;
        ``null_p`` here is ``best_p``, which takes that into account. ``layer_b`` is missing where there is no score. An
        unknown measure is a ``ValueError``.
        """
        measure = self.measures[0 if measure is None else _place("measure", measure, self.measures)]
        frame = self.to_frame()
        frame = frame[frame["measure"] == measure].reset_index(drop=True)
        best = verdict.best_partners(self, measure)
        found = frame.iloc[(torch.arange(len(best)) * len(self.layers_b) + best).tolist()].reset_index(drop=True)
        found["layer_b"] = found["layer_b"].where(found["score"].notna())
        p = self.best_p.get(measure)
        return found if p is None else found.assign(null_p=p.numpy())

    def _rows(self) -> list[dict[str, Any]]:
        """One row per measure and pair of layers; missing values are NaN."""
        columns = {"score": self.scores, **{name: getattr(self, name) for name in _MATRICES}}
        nan = torch.full((len(self.layers_a), len(self.layers_b)), torch.nan, dtype=torch.float64)
        rows = []
        for measure in self.measures:
            cells = {k: (nan if v.get(measure) is None else v[measure]).tolist() for k, v in columns.items()}
            for (i, a), (j, b) in product(enumerate(self.layers_a), enumerate(self.layers_b)):
                rows.append({"measure": measure, "layer_a": a, "layer_b": b, **{k: x[i][j] for k, x in cells.items()}})
        return rows

    def summary(self) -> str:
        """The verdict, and for every measure and layer of A the most similar layer of B."""
        head, (yes, no) = [verdict.headline(self)], verdict.agreeing(self)
        if yes or no:
            head.append(f"Beyond {verdict.judged_by(bool(self.untrained_pairs))}: {_listed(yes)}; not: {_listed(no)}.")
        sizes = f"{len(self.layers_a)} with {counted(len(self.layers_b), 'layer')}"
        least = verdict.least_p(self)
        said = f"; no p is below {least:.2g}, with {self.settings['null']} shuffles" if least else ""
        head.append(f"Comparison of {sizes} on {counted(self.examples, 'example')}, seed {self.seed}{said}")
        notes = "\n".join(f"Note: {note}" for note in self.notes)
        tables = (_table(self, measure) for measure in self.measures)
        return "\n\n".join(["\n".join(head), *tables, *filter(None, [notes])])


def _table(result: Comparison, measure: str) -> str:
    """The best match of every layer of A as a text table."""
    whose = "most similar of B" if verdict.searched(result, measure) else "partner in B"
    rows = [["layer of A", whose, "score", "+-", "interval", "chance", "untrained", "p", "calibrated"]]
    for row in result.best(measure).itertuples():
        partner = layer_title(row.layer_b) if isinstance(row.layer_b, str) else _NOTHING
        interval = _NOTHING if row.low != row.low else f"[{row.low:.3f}, {row.high:.3f}]"
        p = "<0.001" if row.null_p < SMALL_P else _number(row.null_p)
        judged = _number(row.chance), _number(row.untrained), p, _number(row.calibrated)
        rows.append([layer_title(row.layer_a), partner, _number(row.score), _number(row.error), interval, *judged])
    used = [i for i in range(len(rows[0])) if i <= 2 or any(row[i] != _NOTHING for row in rows[1:])]
    lines = columns([[row[i] for i in used] for row in rows])
    return "\n".join([f"{measure} (invariant under: {result.groups.get(measure, 'unknown')})", *lines])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(layer_title, names[:_NAMED])) + more or "no layer"


def _number(value: float) -> str:
    return _NOTHING if value != value else f"{round(value, 3) + 0.0:.3f}"  # no "-0.000"


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonSet(Result):
    """Similarities of every pair of networks at each layer.

    Attributes:
        names: Names of the networks.
        layers: Names of the layers, which all networks have.
        measures: Names of the measures.
        scores: By measure, ``(L, n, n)`` in float64, NaN where ``notes`` says why.
        error: By measure, bound within which the exact score lies 19 times out of 20.
        low: By measure, lower ends of the confidence intervals over examples.
        high: By measure, upper ends.
        chance: By measure, the mean score after the examples were shuffled.
        null_p: By measure, the share of shuffles that score at least as high.
        groups: By measure, the group that its score is invariant under, in words.
        examples: Number of examples.
        settings: Options of the run.
        notes: Caveats for the reader.
        versions: Versions of the software.
        architectures: Number of each network's architecture.
        untrained_pairs: By measure, scores of networks with fresh weights by their architectures, ``(pairs, L, K, K)``,
            NaN where there are none.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...]
    measures: tuple[str, ...]
    scores: Mapping[str, Tensor]
    error: Mapping[str, Tensor]
    low: Mapping[str, Tensor]
    high: Mapping[str, Tensor]
    chance: Mapping[str, Tensor]
    null_p: Mapping[str, Tensor]
    groups: Mapping[str, str]
    examples: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[int, ...] = ()
    untrained_pairs: Mapping[str, Tensor] = field(default_factory=dict)

    def matrix(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """Scores of all pairs of networks ``(n, n)`` at a layer, or their mean; unknown names are a ``ValueError``."""
        scores = self.scores[self._measure(measure)]
        if layer is None:
            return scores.nanmean(0)
        return scores[_place("layer", layer, self.layers)]

    def against(self, name: str | None = None, measure: str | None = None) -> Tensor:
        """Scores of every network with one of them, layer by layer ``(n, L)``; by default with the last.

        For the checkpoints of one training run in order, the rows show when each layer became what it is at the end. An
        unknown name is a ``ValueError``.
        """
        last = -1 if name is None else _place("name", name, self.names)
        return self.scores[self._measure(measure)][:, :, last].T

    def _measure(self, measure: str | None) -> str:
        return self.measures[0 if measure is None else _place("measure", measure, self.measures)]

    def untrained(self, measure: str | None = None, reached: bool = False) -> Tensor:
        """Mean scores of untrained networks of each pair's architectures, ``(L, n, n)``; NaN where none is known.

        ``reached`` is the level below which another pair stays in 19 of 20 cases, as in :func:`intertwine.compare`.
        """
        name, kinds = self._measure(measure), torch.tensor(self.architectures)
        if name not in self._levels:
            return torch.full_like(self.scores[name], torch.nan)
        return self._levels[name][int(reached)][:, kinds[:, None], kinds]

    @cached_property
    def _levels(self) -> dict[str, Tensor]:
        """By measure, means of untrained networks and levels below which another pair stays, ``(2, L, K, K)``."""
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
        """1 where networks agree beyond chance and untrained networks, else 0; NaN if unknown: ``(L, n, n)``."""
        name = self._measure(measure)
        reached = self.untrained(name, reached=True) if self.untrained_pairs else None
        return verdict.agreement(self.scores[name], self.null_p[name], reached)

    def agreeing(self, measure: str | None = None) -> str:
        """The networks that agree, and at how many layers, in words; empty where nothing is known."""
        by: dict[str, list[str]] = {"every layer": [], "some layers": [], "no layer": []}
        found = self.agreement(measure)[:, *self._upper]
        for (a, b), count, known in zip(combinations(self.names, 2), found.nansum(0).int(), (~found.isnan()).sum(0)):
            kind = "every layer" if count == known else "some layers" if count else "no layer"
            least = " known" if known < len(found) else ""  # a layer without a score is not known
            which = f" ({count} of {known}{least})" if least or kind == "some layers" else ""
            by[kind] += [f"{a} and {b}{which}"] if known else []
        said = "; ".join(f"{counted(len(x), 'pair')} at {kind} ({listed(x, _NAMED)})" for kind, x in by.items() if x)
        return said and f"Beyond {verdict.judged_by(bool(self.untrained_pairs))}: {said}."

    def distances(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """``1 - score``, 0 on the diagonal, symmetric; 1 where there is no score."""
        found = (1 - self.matrix(measure, layer)).nan_to_num(nan=1.0).clamp(min=0)
        return ((found + found.T) / 2).fill_diagonal_(0)

    def embedding(self, measure: str | None = None, layer: str | None = None, dimensions: int = 2) -> Embedding:
        """Embed the networks in a space of few dimensions, at distances as close to theirs as possible (SMACOF)."""
        return Embedding.of(self.names, self.distances(measure, layer), dimensions)

    def dendrogram(self, measure: str | None = None, layer: str | None = None) -> Tensor:
        """Average linkage of the networks: the rows of ``scipy.cluster.hierarchy.linkage``, ``(n - 1, 4)``."""
        from scipy.cluster.hierarchy import linkage
        from scipy.spatial.distance import squareform

        condensed = squareform(self.distances(measure, layer).numpy(), checks=False)
        return torch.from_numpy(linkage(condensed, method="average", optimal_ordering=True))

    def order(self, measure: str | None = None, layer: str | None = None) -> list[int]:
        """Order of the networks along the leaves of the dendrogram: similar networks are beside each other."""
        from scipy.cluster.hierarchy import leaves_list

        return [int(k) for k in leaves_list(self.dendrogram(measure, layer).numpy())]

    def judged(self, measure: str | None = None) -> dict[str, Tensor]:
        """Scores and all that they are judged by, by name, ``(L, n, n)`` each; NaN where not known."""
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
        """The networks that are alike, by the first measure; and by each measure, at how many layers, and where."""
        name, n = self.measures[0], len(self.names)
        off = self.matrix(name).clone().fill_diagonal_(-torch.inf).nan_to_num(nan=-torch.inf)
        i, j = divmod(int(off.argmax()), n)
        title, where = measure_title(name), counted(len(self.layers), "layer")
        head = f"No pair of {counted(n, 'network')} could be compared by {title}; the notes say why"
        if i != j:
            found = f"{self.names[i]} and {self.names[j]} are most alike: {title} {float(off.max()):.2f}"
            head = f"Of {counted(n, 'network')}, {found}, the mean over {where} on {counted(self.examples, 'example')}"
        notes = [f"Note: {note}" for note in self.notes]
        return "\n".join([head, *chain.from_iterable(map(self._lines, self.measures)), *notes])

    def _lines(self, name: str) -> list[str]:
        """Findings of one measure: which networks agree, and a row for each layer."""
        judged = {part: matrix[:, *self._upper] for part, matrix in self.judged(name).items()}
        scores, mean = judged["score"], lambda part: judged[part].nanmean(1)
        ends = {
            "lowest": scores.nan_to_num(nan=torch.inf).amin(1),
            "highest": scores.nan_to_num(nan=-torch.inf).amax(1),
        }
        table = {"mean of pairs": mean("score"), **ends, "from": mean("low"), "to": mean("high")}
        table |= {part: mean(part) for part in ("chance", "untrained")} | {"share that agrees": mean("agree")}
        table = {title: column for title, column in table.items() if column.isfinite().any()}
        number = lambda x: f"{x + 0.0:.3f}" if isfinite(x) else "-"
        rows = zip(map(layer_title, self.layers), *(map(number, column.tolist()) for column in table.values()))
        return ["", f"{measure_title(name)}. {self.agreeing(name)}".strip(), *columns([("layer", *table), *rows])]
