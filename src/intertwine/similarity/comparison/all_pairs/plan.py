"""A plan of what Procrustes measures compute, where all pairs, shuffles and halves would take hours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...base import Measure
from ...measures.procrustes import Procrustes
from ..draws import Cells, Draws
from ..layers import Layer
from ..spatial_sizes import common_space

WORK = 3e13  # multiplications and additions in float32 that Procrustes measures take: minutes on two cores
_SOLVED = 3  # shuffles of a pair whose best maps are searched, where work is saved
_HALVES = 4
_FOLDS = 8
_SEARCH = {True: 4.5, False: 3.0}  # times the smaller width cubed: a nuclear norm by eigenvalues, an assignment


@dataclass(frozen=True)
class Plan:
    """Which pairs of layers are scored, which of them get shuffles and halves, and how many of these."""

    draws: Draws
    cells: Tensor  # ``(L_a, L_b)`` bool: pairs that are scored
    drawn: Tensor  # Those of them that get shuffles and halves
    solved: int  # Shuffles of a pair whose best map is searched; scores of the others follow from cheaper numbers
    notes: tuple[str, ...] = field(default=())


def whole(draws: Draws, rows: int, columns: int) -> Plan:
    """Everything for every pair."""
    every = torch.ones(rows, columns, dtype=torch.bool)
    return Plan(draws, every, every, len(draws.permutations))


def plan(
    measures: Sequence[Procrustes],
    a: Sequence[Layer],
    b: Sequence[Layer],
    draws: Draws,
    work: float,
    scores: Tensor | None,
    untrained: int,
) -> Plan:
    """As much as ``work`` allows: first the scores of partners with their chance and intervals, then all other scores.

    Args:
        measures: Measures that share the products of channels.
        a: Layers of A.
        b: Layers of B.
        draws: Shuffles and halves that were asked for.
        work: Multiplications and additions that may be spent.
        scores: Scores of all pairs of layers by another measure, by which layers without a counterpart find one.
        untrained: Pairs of untrained networks whose layers are compared as well, without shuffles and halves.
    """
    full = whole(draws, len(a), len(b))
    every, none = full.cells, draws.without()
    partners = counterparts(a, b, scores)
    few = draws.fewer(_HALVES, _FOLDS)
    solved = min(_SOLVED, full.solved)

    def spent(cells: Tensor, drawn: Tensor, some: Draws, searched: int) -> float:
        pairs = {at: pair_work(measures, a[at[0]], b[at[1]], none, 0) for at in map(tuple, cells.nonzero().tolist())}
        with_draws = (
            pair_work(measures, a[i], b[j], some, searched) - pairs[i, j] for i, j in drawn.nonzero().tolist()
        )
        return (1 + untrained) * sum(pairs.values()) + sum(with_draws)

    asked = spent(every, every, draws, full.solved)
    if asked <= work:
        return full
    choices = [
        Plan(few, every, every, solved),
        Plan(few, every, partners, solved),
        Plan(few, partners, partners, solved),
    ]
    chosen = next((c for c in choices if spent(c.cells, c.drawn, few, solved) <= work), choices[-1])
    share = asked / spent(chosen.cells, chosen.drawn, few, solved)
    return Plan(few, chosen.cells, chosen.drawn, solved, (_note(chosen, full, share),))


def pair_work(measures: Sequence[Procrustes], x: Layer, y: Layer, draws: Draws, solved: int) -> float:
    """Multiplications and additions in float32 that a pair of layers takes; those in float64 count twice."""
    rows = draws.examples * prod(common_space(x.space, y.space))
    products = rows * x.channels * y.channels * (4 if len(draws.permutations) else 2)
    searches = 1 + len(draws.halves) + solved
    widths = [min(x.channels, y.channels, *([rows] if m.rotates else [])) for m in measures]
    return products + searches * sum(_SEARCH[m.rotates] * n**3 for m, n in zip(measures, widths))


def in_order(a: Sequence[Layer], b: Sequence[Layer]) -> bool:
    """Whether layers of one place are counterparts."""
    return ordered_alike(*([(layer.name, layer.shape) for layer in side] for side in (a, b)))


def ordered_alike(a: Sequence[tuple[str, Any]], b: Sequence[tuple[str, Any]]) -> bool:
    """Whether layers of one place are counterparts, by names and shapes: all names agree, or all shapes."""
    return any([x[k] for x in a] == [x[k] for x in b] for k in (0, 1))


def counterparts(a: Sequence[Layer], b: Sequence[Layer], scores: Tensor | None) -> Tensor:
    """The layer of B that each layer of A is judged with, ``(L_a, L_b)`` bool.

    That of the same name; or of the same place, where all shapes agree; or else the most similar one by the given
    scores, or that of the same depth without any.
    """
    rows = torch.arange(len(a))
    if in_order(a, b):
        columns = rows
    elif scores is not None:
        columns = scores.nan_to_num(nan=-torch.inf).argmax(1)
    else:
        columns = (rows * (len(b) - 1) / max(1, len(a) - 1)).round().long()
    return torch.zeros(len(a), len(b), dtype=torch.bool).index_put_((rows, columns), torch.tensor(True))


def alike(measures: Sequence[Measure[Any]], found: Mapping[str, Cells]) -> Tensor | None:
    """Scores of all pairs of layers by a centred kernel alignment, if there is one."""
    return next((found[m.name].scores for m in measures if m.engine == "grams"), None)


def _note(chosen: Plan, full: Plan, share: float) -> str:
    """Say what was left out, and how to have it."""
    said = []
    if not chosen.cells.all():
        said.append(f"scored for {int(chosen.cells.sum())} of {chosen.cells.numel()} pairs of layers")
    if not chosen.drawn.equal(chosen.cells):
        said.append(f"chance and intervals of {int(chosen.drawn.sum())} pairs of layers")
    if chosen.solved < full.solved:
        said.append(
            f"chance estimated: the best map was searched for {chosen.solved} of {full.solved} shuffles of a pair, and "
            "the other scores follow from the norms of their products"
        )
    if len(chosen.draws.halves) < len(full.draws.halves):
        said.append(f"intervals from {len(chosen.draws.halves)} halves of the examples")
    times = f"{share:,.0f}" if share >= 10 else f"{share:.1f}"
    return (
        f"Procrustes measures, to save work: {'; '.join(said)}. Everything would take {times} times the work: "
        "Reading(work=math.inf), or --exhaustive on the command line."
    )
