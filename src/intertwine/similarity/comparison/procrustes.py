"""Procrustes measures of all pairs of layers from rows of channels, at all positions or at sampled ones."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod, sqrt
from threading import local
from typing import Any

import torch
from torch import Tensor

from ..._threads import in_threads
from ..._zoo_intervals import student_t
from .._sides import placed
from ..inference import CONFIDENCE
from ..measures.procrustes import Procrustes
from .channel_products import WIDE, Stack, Table
from .estimates import Estimates, How, Pair, is_asked, judge, one_in, tell
from .layers import Layer, Network, chunks
from .positions import common_space, pooling_note

SHUFFLES = 4
_WIDTH = 512  # channels that are stacked in one product
_ROUNDED = 2e-4  # of the largest possible trace, that their rounding may move one: twice what was seen
SHARE = 8  # of the memory, for the features of each network
_SOLVED = 2  # shuffles of wide layers whose best maps are searched
_STEP = 1e-6
_NEAR = 0.995  # of the largest possible trace, from which on products are taken in float64
_WORKERS = 4  # threads that take a table each: their products are in memory at a time
_SLIGHT = 4  # times the bias of a best map that its other error must be for it not to be measured


def estimate_procrustes(
    measures: Sequence[Procrustes], a: Network, b: Network, how: How, found: dict[str, Estimates]
) -> Iterator[None]:
    """Score all pairs of layers by Procrustes measures, with errors, intervals and chance levels, pair by pair.

    All follow from products of channels ``X^T Y`` (v2 D.2), taken by folds of examples and parts of the positions. The
    best map of a pair is found once; by the envelope theorem what a fold or a part adds to the score is what that map
    gives there, so that the infinitesimal jackknife over folds is the interval over examples, and that over parts of
    the positions the error of their sampling. The upward bias of a best map, which is fitted to noise as well, falls
    like one over the number of rows: maps of half of the positions and of half of the folds tell it. Chance comes from
    a few shuffles within blocks and Student's distribution, or from the shuffles of ``how.draws``. Many pairs of wide
    layers of equal shapes tell each other's: see ``estimates``.
    """
    for center in dict.fromkeys(m.center for m in measures):
        some = [m for m in measures if m.center == center]
        told: dict[Any, list[Pair]] = {}  # of layers of one shape on either side, by measure
        workers = 1 if how.draws else min(_WORKERS, torch.get_num_threads())
        for cells in in_threads(_tables(some, a, b, how, found), workers):
            for m, shapes, pair in cells:
                if isinstance(pair, str):
                    found[m.name].notes.append(pair)
                elif shapes and pair is not None:
                    told.setdefault((m.name, shapes), []).append(pair)
                yield
        for (name, _), pairs in told.items():
            tell(pairs, found[name])
    if measures:
        found[measures[0].name].notes += pooling_note("Procrustes", a.layers, b.layers)


_Shapes = tuple[tuple[int, ...], ...]  # of layers that tell of each other; none where a pair tells of itself alone
_Cells = list[tuple[Procrustes, _Shapes, Pair | str | None]]


def _tables(
    some: Sequence[Procrustes], a: Network, b: Network, how: How, found: dict[str, Estimates]
) -> Iterator[Callable[[], _Cells]]:
    """What scores the pairs of a few layers of either side, by measures that all centre channels or none does."""
    sizes = [Counter(n.layers[k].shape for k in n.living) for n in (a, b)]
    make = lambda side, ks, space: Stack([side.layers[k] for k in ks], space, some[0].center, bool(how.draws))
    theirs: dict[tuple[Any, ...], Stack] = {}  # of all columns; of the rows those of a few layers at a time
    seen, room = Counter[tuple[Any, ...]](), local()

    def work(x: Stack, y: Stack, rows: Any, columns: Any, alike: _Shapes, drawn: Any, asked: bool) -> _Cells:
        table, cells = Table(x, y, how, a.blocks, drawn, vars(room)), _Cells()
        for (i, row), (j, column), m in product(enumerate(rows), enumerate(columns), some):
            layers, cell = (a.layers[row], b.layers[column]), _Cell(m, table, i, j, how)
            cells.append((m, alike, cell.fill(found[m.name], (row, column), *layers, asked)))
        return cells

    for rows, ours in ((part, dict[tuple[int, ...], Stack]()) for part in _alike(a, b, how)):
        for columns in _alike(b, a, how):
            if how.paired and not set(rows) & set(columns):
                yield partial(list[Any], [(m, (), None) for m in some] * (len(rows) * len(columns)))
                continue
            space = common_space(a.layers[rows[0]].space, b.layers[columns[0]].space)
            if how.draws:
                ours.clear()
                theirs.clear()
            ours[space] = ours.get(space) or make(a, rows, space)
            theirs[*columns, space] = theirs.get((*columns, space)) or make(b, columns, space)
            shapes = a.layers[rows[0]].shape, b.layers[columns[0]].shape
            wide = len(rows) == len(columns) == 1 and min(shape[0] for shape in shapes) >= WIDE and not how.draws
            each = one_in(*(of[shape] for of, shape in zip(sizes, shapes))) if wide else 0
            asked = is_asked(*divmod(seen[shapes], sizes[1][shapes[1]]), each)
            halved = asked and (not each or seen[shapes] // each % each == 0)
            seen[shapes] += 1
            # Pairs that have one shuffle each have each their own: what they share would not show.
            own = how.seed + (1 + rows[0]) * len(b.layers) + columns[0] if each else how.seed
            shuffles = (1 if each else SHUFFLES, own) if asked else (0, 0)
            sides = ours[space], theirs[*columns, space]
            yield partial(work, *sides, rows, columns, shapes if each else (), shuffles, halved)


def _alike(side: Network, other: Network, how: How) -> Iterator[list[int]]:
    """Layers of one size, in parts of a few hundred channels that fit in their share of the memory."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for k in side.living:
        groups.setdefault(side.layers[k].space, []).append(k)
    for some in groups.values():
        shapes, others = [side.layers[k].shape for k in some], [layer.shape for layer in other.layers]
        sizes = stack_sizes(shapes, others, side.examples if how.draws else 0, how.memory)
        yield from ([some[k] for k in part] for part in chunks(sizes, how.memory, SHARE) if part)


def stack_sizes(
    shapes: Sequence[tuple[int, ...]], others: Sequence[tuple[int, ...]], examples: int, memory: int
) -> list[int]:
    """Bytes of layers of one size at the sizes of others, or as many as their part of the products takes."""
    spaces = {common_space(shapes[0][1:], shape[1:]) for shape in others}
    numbers, part = examples * max(map(prod, spaces), default=1), memory // SHARE
    return [max(min(part, part * shape[0] // _WIDTH), 4 * numbers * shape[0]) for shape in shapes]


class _Cell:
    """One pair of layers and the measure that compares them."""

    def __init__(self, measure: Procrustes, table: Table, i: int, j: int, how: How) -> None:
        self._m, self._t, self._how = measure, table, how
        self._box = table.x.channels[i], table.y.channels[j]
        self._ratio = table.x.scales[i] / table.y.scales[j]
        self._squares = [table.squares[k][:, :, part] for k, part in enumerate(self._box)]
        self._norms = [s.sum((0, 1)).sqrt() for s in self._squares]

    def fill(self, found: Estimates, at: tuple[int, int], x: Layer, y: Layer, asked: bool) -> Pair | str:
        """Write what is known of this pair, the interval where it is ``asked`` for, and give what others may tell.

        In words why it has no score where its channels say nothing.
        """
        m, t = self._m, self._t
        if not all((norm > 0).any() for norm in self._norms):
            return (
                f"{m.name} has no score for layer {x.name!r} of A and {y.name!r} of B: at their common size all "
                "channels are constant."
            )
        alive = [int((norm > 0).sum()) for norm in self._norms]
        found.floor[at] = m.lowest(alive[0], alive[1], bool((x.low >= 0).all() and (y.low >= 0).all()))
        gains = m.gains(t.total[self._box], *self._norms)
        if self._how.draws:
            trace, chosen = m.best_trace(gains), m.best(gains)[1] if self._how.intervals else None
        else:
            needed, quick = self._how.intervals or t.unseen > 0, min(gains.shape) >= WIDE
            trace, chosen = m.best(gains, quick) if needed else (float(m.best_traces(gains[None])), None)
            if trace > _NEAR * (min(alive) if m.scales else 1):
                cross, self._norms = t.precise(self._box)
                trace, chosen = m.best(m.gains(cross, *self._norms), quick, sure=True)
        score_of = partial(m.score_trace, norm_a=self._norms[0], norm_b=self._norms[1], ratio=self._ratio)
        adds = None if chosen is None else self._adds(chosen)
        bias, sampling = self._sampling(trace, adds) if adds is not None and t.unseen > 0 else (0.0, 0.0)
        sampling += _ROUNDED * (min(alive) if m.scales else 1) if t.rounded else 0.0
        centre = trace - bias
        found.scores[at] = score = score_of(centre)
        found.error[at] = max(score_of(centre + sampling) - score, score - score_of(centre - sampling))
        rest = Pair(at, score_of, centre)
        if self._how.intervals and adds is not None:
            folds, count = adds.sum(1), len(adds)
            spread = float(folds.square().sum()) * count / max(1, count - 1)
            rest.width = student_t(CONFIDENCE, max(1, count - 1)) * sqrt(spread)
            rest.rough = self._rough(trace, "folds")
            if asked:
                rest.bias = self._bias(trace, "folds")
                rest.write_interval(found, rest.bias)
        if len(t.shuffled):
            self._chance(found, rest)
        return rest

    def _sampling(self, trace: float, adds: Tensor) -> tuple[float, float]:
        """The bias of the best map for sampled positions, and within which the trace of all positions lies."""
        t = self._t
        blocks = torch.zeros(int(t.block_of.max()) + 1, t.parts, dtype=torch.float64).index_add_(0, t.block_of, adds)
        spread = (blocks - blocks.mean(1, keepdim=True)).square().sum() * t.parts / max(1, t.parts - 1) * t.unseen
        error = student_t(CONFIDENCE, max(1, len(blocks) * (t.parts - 1))) * sqrt(float(spread))
        rough = self._rough(trace, "parts") * t.unseen
        if _SLIGHT * rough < error:
            return 0.0, error + rough
        bias = self._bias(trace, "parts") * t.unseen
        bias = 0.0 if abs(bias) < _STEP * abs(trace) else bias  # rounding of the halves
        return bias, error + abs(bias) / 2

    def _adds(self, chosen: Tensor) -> Tensor:
        """What each fold and part adds to the trace, about 0: ``(folds, parts)``."""
        m = self._m
        alive = [norm > 0 for norm in self._norms]
        cross = self._t.cross[:, :, self._box[0], self._box[1]]
        if m.scales:
            shares = [s / n.square().clamp(min=1e-300) for s, n in zip(self._squares, self._norms)]
            rows, columns = (chosen != 0).nonzero(as_tuple=True)
            own, other = alive[0].nonzero()[:, 0][rows], alive[1].nonzero()[:, 0][columns]
            unit = (chosen[rows, columns] / (self._norms[0][own] * self._norms[1][other])).double()
            picked = cross[:, :, own, other].double() * unit
            worth = picked.sum((0, 1))
            return (picked - worth / 2 * (shares[0][:, :, own] + shares[1][:, :, other])).sum(2)
        full, size = placed(chosen, *alive) if m.permutes else chosen, [n.norm() for n in self._norms]
        gained = torch.einsum("fhcd,cd->fh", cross, (full / (size[0] * size[1])).to(cross.dtype)).double()
        totals = [s.sum(2) / n.square() for s, n in zip(self._squares, size)]
        return gained - gained.sum() / 2 * (totals[0] + totals[1])  # what the map gives: it lacks small directions

    def _rough(self, trace: float, of: str) -> float:
        """The size of the bias of the best map, from how far two halves are apart."""
        one, two = (self._t.half(of, k)[self._box] for k in (0, 1))
        noise = self._m.gains(one - two, *self._norms)
        typical = max(trace, 1e-300) / min(noise.shape)  # of singular values, or of the gains that are chosen
        return float(noise.norm()) ** 2 / (2 * typical)

    def _bias(self, trace: float, of: str) -> float:
        """How much a best map gains from noise: the mean of those of two halves, less that of the whole."""
        if self._t.cross.shape[of == "parts"] < 2:
            return 0.0
        gains = []
        for which in (0, 1):
            half = slice(which, None, 2)
            chosen = (slice(None), half) if of == "parts" else (half, slice(None))
            norms = [s[chosen].sum((0, 1)).sqrt() for s in self._squares]
            if not all((n > 0).any() for n in norms):
                return 0.0
            norms = [torch.where(whole > 0, n.clamp(min=1e-150), 0.0) for n, whole in zip(norms, self._norms)]
            gains.append(self._m.gains(self._t.half(of, which)[self._box], *norms))
        return float(self._m.best_traces(torch.stack(gains)).mean()) - trace

    def _chance(self, found: Estimates, pair: Pair) -> None:
        m, gains, at = self._m, self._m.gains(self._t.shuffled[:, *self._box], *self._norms), pair.at
        if self._how.draws:
            traces = [m.best_trace(one) for one in gains]
        else:
            few = min(part.stop - part.start for part in self._box) >= WIDE
            solved, sizes = m.best_traces(gains[:_SOLVED] if few else gains), torch.linalg.matrix_norm(gains)
            ratio = solved.sum() / sizes[: len(solved)].sum().clamp(min=1e-300)  # nearly the same in every shuffle
            traces = [*solved.tolist(), *(sizes[len(solved) :] * ratio).tolist()]
        drawn = torch.tensor([pair.score_of(trace) for trace in traces], dtype=torch.float64)
        if self._how.draws:
            found.null[at] = drawn
            return
        found.chance[at] = float(drawn.mean())
        if len(drawn) > 1:
            judge(found, at, float(drawn.std()) * sqrt(1 + 1 / len(drawn)), len(drawn) - 1)
