"""The result of comparing two networks layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._result import Result
from ..._words import columns, counted, layer_title
from . import verdict

if TYPE_CHECKING:
    import pandas as pd

_NAMED = 12  # layers that a summary names
_NOTHING = "-"  # where a number is not known
_SMALL = 0.001  # p-values below are not told apart in a table
_MATRICES = ("error", "low", "high", "chance", "untrained", "null_p", "calibrated", "floor")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """Similarities of every layer of network A with every layer of network B.

    Every matrix is ``(L_a, L_b)`` in float64, by measure name; NaN where ``notes`` says why.

    Examples:
        >>> import intertwine as iw
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> found = iw.compare(net, net, torch.randn(60, 5).split(20))
        >>> found.layers_a, found.acting_a, found.headline.partition(":")[0]
        (('1',), ('positive_monomial',), 'very similar')
        >>> found.best("g_relu_cka")[["layer_a", "layer_b"]].to_numpy().tolist()
        [['1', '1']]
    """

    layers_a: tuple[str, ...]  # Layers of A, in the order in which it runs
    layers_b: tuple[str, ...]  # Layers of B
    measures: tuple[str, ...]  # Names of the measures
    scores: Mapping[str, Tensor]  # The similarities; 1 means equal up to ``groups[measure]``
    low: Mapping[str, Tensor | None]  # Lower ends of the confidence intervals, ``None`` for a measure without them
    high: Mapping[str, Tensor | None]  # Upper ends
    # Mean score after the examples of B were shuffled: what unrelated features of these shapes would get
    chance: Mapping[str, Tensor | None]
    null_p: Mapping[str, Tensor | None]  # Share of shuffles (the true order counted as one) that score at least as high
    # ``(score - c) / (1 - c)`` with ``c`` the 95 % quantile of the shuffled scores, 0 where that is negative
    calibrated: Mapping[str, Tensor | None]
    floor: Mapping[str, Tensor | None]  # The lowest possible score, where it is known
    groups: Mapping[str, str]  # By measure, the exact group that its score is invariant under, in words
    channels_a: tuple[int, ...]  # Channels per layer of A
    channels_b: tuple[int, ...]  # Channels per layer of B
    dead_a: tuple[int, ...]  # Channels of A that never respond; they are left out and never count as agreement
    dead_b: tuple[int, ...]  # Channels of B that never respond
    shapes_a: tuple[tuple[int, ...], ...]  # Shape of one example's features, per layer of A
    shapes_b: tuple[tuple[int, ...], ...]  # Shape of one example's features, per layer of B
    examples: int  # Number of examples
    seed: int  # Seed of the shuffles and subsamples
    settings: Mapping[str, Any] = field(default_factory=dict)  # Options of the run
    notes: tuple[str, ...] = ()  # What a reader must know, such as feature maps that were pooled
    versions: Mapping[str, str] = field(default_factory=dict)  # Versions of the software
    # Scores of the same layers of networks with fresh weights, ``(pairs, L_a, L_b)``, where there were such networks
    untrained_pairs: Mapping[str, Tensor] = field(default_factory=dict)
    untrained_networks: int = 0  # In these pairs, which share some where it is less than two a pair; 0 if not known
    # By layer of A, the name of the group by which other weights of the same function move its features, such as
    # ``"positive_monomial"`` behind a ReLU; empty where it is not known, or one measure alone was asked for
    acting_a: tuple[str, ...] = ()
    acting_b: tuple[str, ...] = ()  # By layer of B
    # ``null_p`` for the highest score of each layer of A, ``(L_a,)``: share of shuffles whose own best match scores at
    # least as high
    best_p: Mapping[str, Tensor | None] = field(default_factory=dict)
    # Within which the exact score lies, 19 times of 20, where scores are estimated from pairs of examples within blocks
    # and from sampled positions; ``None`` where they are exact
    error: Mapping[str, Tensor | None] = field(default_factory=dict)

    @property
    def untrained(self) -> dict[str, Tensor]:
        """Mean score of the same layers of networks with fresh weights, where there were such networks."""
        return {name: pairs.nanmean(0) for name, pairs in self.untrained_pairs.items()}

    @property
    def headline(self) -> str:
        """The verdict in one short line, by the measure whose group is that of the networks."""
        return verdict.brief(self)

    def best(self, measure: str | None = None) -> pd.DataFrame:
        """The layer of B that each layer of A is most similar to, by the first measure unless told otherwise.

        Scores are ranked by their excess over chance, which differs with widths. The highest of many is biased upwards:
        ``null_p`` is ``best_p`` here, which takes that into account. ``layer_b`` is missing where there is no score.

        Raises:
            ValueError: If there is no such measure here.
        """
        measure = self.measures[0] if measure is None else measure
        if measure not in self.measures:
            raise ValueError(f"measure must be one of {list(self.measures)}. Got {measure!r}.")
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
            rows += [
                {"measure": measure, "layer_a": a, "layer_b": b, **{k: matrix[i][j] for k, matrix in cells.items()}}
                for i, a in enumerate(self.layers_a)
                for j, b in enumerate(self.layers_b)
            ]
        return rows

    def summary(self) -> str:
        """The verdict, and for every measure and layer of A the most similar layer of B."""
        yes, no = verdict.agreeing(self)
        which = (
            [f"Beyond {verdict.judged_by(bool(self.untrained_pairs))}: {_listed(yes)}; not: {_listed(no)}."]
            if yes or no
            else []
        )
        head = "\n".join([verdict.headline(self), *which]) + (
            f"\nComparison of {len(self.layers_a)} with {counted(len(self.layers_b), 'layer')} on "
            f"{counted(self.examples, 'example')}, seed {self.seed}"
        )
        tables = [_table(self, measure) for measure in self.measures]
        notes = [f"Note: {note}" for note in self.notes]
        return "\n\n".join([head, *tables, *(["\n".join(notes)] if notes else [])])


def _table(result: Comparison, measure: str) -> str:
    """The best match of every layer of A as a text table."""
    whose = "most similar of B" if verdict.searched(result, measure) else "partner in B"
    rows = [["layer of A", whose, "score", "+-", "interval", "chance", "untrained", "p", "calibrated"]]
    for row in result.best(measure).itertuples():
        partner = layer_title(row.layer_b) if isinstance(row.layer_b, str) else _NOTHING
        interval = _NOTHING if row.low != row.low else f"[{row.low:.3f}, {row.high:.3f}]"
        p = "<0.001" if row.null_p < _SMALL else _number(row.null_p)
        judged = _number(row.chance), _number(row.untrained), p, _number(row.calibrated)
        rows.append([layer_title(row.layer_a), partner, _number(row.score), _number(row.error), interval, *judged])
    used = [i for i in range(len(rows[0])) if i <= 2 or any(row[i] != _NOTHING for row in rows[1:])]
    lines = columns([[row[i] for i in used] for row in rows])
    return "\n".join([f"{measure} (invariant under: {result.groups.get(measure, 'unknown')})", *lines])


def _listed(names: list[str]) -> str:
    return (
        ", ".join(map(layer_title, names[:_NAMED]))
        + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        or "no layer"
    )


def _number(value: float) -> str:
    return _NOTHING if value != value else f"{round(value, 3) + 0.0:.3f}"  # no "-0.000"
