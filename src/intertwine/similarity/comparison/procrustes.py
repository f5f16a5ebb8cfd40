"""Procrustes measures of all pairs of layers from rows of channels, at all positions or at sampled ones."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from math import prod, sqrt
from threading import local
from typing import Any

import torch
from torch import Tensor

from ..._memory import give_back
from ..._threads import in_threads
from ..._zoo_intervals import student_t
from ..inference import CONFIDENCE
from ..measures.procrustes import LARGE, Procrustes
from .channel_products import WIDE, Stack, Table
from .estimates import Estimates, How, Pairs, is_asked, judge, one_in, tell
from .layers import Network, chunks, common_space, pooling_note

SHUFFLES = 4
_WIDTH = 512  # channels stacked in one product
_ROUNDED = 2e-4  # share of the largest possible trace by which their rounding may move one: twice what was seen
SHARE = 8  # parts of the memory, one for the features of each network
_SOLVED = 2  # shuffles of wide layers for which best maps are searched
_STEP = 1e-6
_RARE = 1e-150  # a norm that counts and adds nothing
_NEAR = 0.995  # share of the largest possible trace from which on products are taken in float64
_WORKERS = 4  # threads, each with a table whose products are in memory
_TRIMMED = 8  # tables of wide layers after which memory is given back
_SLIGHT = 4  # the bias of a best map is not measured if its other error is so many times as large


def estimate_procrustes(
    measures: Sequence[Procrustes], a: Network, b: Network, how: How, found: dict[str, Estimates]
) -> Iterator[None]:
    """Score all pairs of layers by Procrustes measures, with errors, intervals and chance levels, pair by pair.

    All follow from products of channels ``X^T Y`` (v2 D.2), taken by folds of examples and parts of the positions. The
    best map of a pair is found once. By the envelope theorem, what a fold or a part adds to the score is what that map
    gives there: the infinitesimal jackknife over folds is the interval over examples, over parts the error of sampled
    positions. The upward bias of a best map falls like one over the number of rows: maps of half of the positions and
    half of the folds reveal it. Chance comes from a few shuffles within blocks and Student's distribution, or from
    ``how.draws``. Many pairs of wide layers of equal shapes tell about each other: see ``estimates``.
    """
    for center in dict.fromkeys(m.center for m in measures):
        some = [m for m in measures if m.center == center]
        told: dict[Any, list[Pairs]] = {}  # of layers of one shape on either side, by measure
        workers = 1 if how.draws else min(_WORKERS, torch.get_num_threads())
        for count, cells in in_threads(_tables(some, a, b, how, found), workers):
            for m, shapes, pairs, notes in cells:
                found[m.name].notes += notes
                if shapes and pairs:
                    told.setdefault((m.name, shapes), []).extend(pairs)
                yield from repeat(None, count)
        for (name, _), pairs in told.items():
            tell(pairs, found[name])
    if measures:
        found[measures[0].name].notes += pooling_note("Procrustes", a.layers, b.layers)


_Shapes = tuple[tuple[int, ...], ...]  # of layers that tell about each other; empty if a pair tells only about itself
_Told = tuple[Procrustes, _Shapes, list[Pairs], list[str]]  # a measure, pairs of a table, and why some have none


def _tables(
    some: Sequence[Procrustes], a: Network, b: Network, how: How, found: dict[str, Estimates]
) -> Iterator[Callable[[], tuple[int, list[_Told]]]]:
    """Tasks that score the pairs of a few layers of either side, by measures that all centre channels or none does."""
    sizes = [Counter(n.layers[k].shape for k in n.living) for n in (a, b)]
    exact = bool(how.draws)
    make = lambda side, ks, space, keeps: Stack([side.layers[k] for k in ks], space, some[0].center, exact, keeps)
    theirs: dict[tuple[Any, ...], Stack] = {}  # stacks of all columns; of the rows, a few layers at a time
    seen, room = Counter[tuple[Any, ...]](), local()

    def work(x: Stack, y: Stack, rows: Any, columns: Any, shapes: _Shapes, shuffles: Any, halves: bool) -> Any:
        table = Table(x, y, how, a.blocks, shuffles, vars(room))
        at, told = torch.cartesian_prod(torch.tensor(rows), torch.tensor(columns)).T, list[_Told]()
        alive = torch.cartesian_prod(*((squares.sum((0, 1)) > 0).sum(1) for squares in table.squares))
        for m in some:
            kinds = alive if m.permutes else alive.clamp(max=1)  # of pairs that are scored together
            groups = [(kinds == kind).all(1).nonzero()[:, 0] for kind in kinds.unique(dim=0) if kind.all()]
            cells = [_Cells(m, table, pairs, how).fill(found[m.name], at[:, pairs], halves) for pairs in groups]
            silent = [
                f"{m.name} has no score for layer {a.layers[i].name!r} of A and {b.layers[j].name!r} of B: at their "
                "common size all channels are constant."
                for i, j in at[:, ~alive.all(1)].T.tolist()
            ]
            told.append((m, shapes, cells, silent))
        return at.shape[1], told

    for rows, ours in ((part, dict[tuple[int, ...], Stack]()) for part in _alike(a, b, how)):
        for columns in _alike(b, a, how):
            if how.paired and not set(rows) & set(columns):
                yield partial(tuple[Any, ...], (len(rows) * len(columns), [(m, (), [], []) for m in some]))
                continue
            shapes = a.layers[rows[0]].shape, b.layers[columns[0]].shape
            space = common_space(*(shape[1:] for shape in shapes))
            if exact:
                ours.clear()
                theirs.clear()
            ours[space] = ours.get(space) or make(a, rows, space, not exact)
            theirs[*columns, space] = theirs.get((*columns, space)) or make(b, columns, space, False)
            wide = len(rows) == len(columns) == 1 and min(shape[0] for shape in shapes) >= WIDE and not exact
            if wide and seen.total() % _TRIMMED == 0:
                give_back()  # memory holes that best maps leave in every thread
            each = one_in(*(of[shape] for of, shape in zip(sizes, shapes))) if wide else 0
            asked = is_asked(*divmod(seen[shapes], sizes[1][shapes[1]]), each)
            halves = asked and (not each or seen[shapes] // each % each == 0)  # of those asked, again one in so many
            seen[shapes] += 1
            # Pairs with one shuffle each have their own shuffle: what they share in a common one would not show.
            own = how.seed + (1 + rows[0]) * len(b.layers) + columns[0] if each else how.seed
            shuffles = (1 if each else SHUFFLES, own) if asked else (0, 0)
            sides = ours[space], theirs[*columns, space]
            yield partial(work, *sides, rows, columns, shapes if each else (), shuffles, halves)


def _alike(side: Network, other: Network, how: How) -> Iterator[list[int]]:
    """Layers of one shape, in parts of a few hundred channels that fit in their share of the memory."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for k in side.living:
        groups.setdefault(side.layers[k].shape, []).append(k)
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


class _Cells:
    """Pairs of layers of a table, with equally many living channels each, and the measure that compares them."""

    def __init__(self, measure: Procrustes, table: Table, pairs: Tensor, how: How) -> None:
        self._m, self._t, self._pairs, self._how = measure, table, pairs, how
        sides = pairs // table.y.shape[0], pairs % table.y.shape[0]
        self._ratio = table.x.scales[sides[0]] / table.y.scales[sides[1]]
        self._squares = [squares[:, :, side] for squares, side in zip(table.squares, sides)]  # ``(F, H, k, C)``
        self._norms = [squares.sum((0, 1)).sqrt() for squares in self._squares]
        self._living = [stack.living[side] for stack, side in zip((table.x, table.y), sides)]  # ``(k, C)``
        self._positive = table.x.positive[sides[0]] & table.y.positive[sides[1]]

    def fill(self, found: Estimates, at: Tensor, halves: bool) -> Pairs:
        """Write what is known of these pairs, and return what others may tell; ``at`` has rows and columns, ``(2, k)``.

        Intervals need the bias of best maps: with ``halves``, maps of half the examples give it, else other pairs do.
        """
        m, t, exact = self._m, self._t, self._how.draws is not None
        gains = m.gains(t.total[self._pairs], *self._norms)
        least = min(gains.shape[1:])
        quick, largest = not exact and t.rows >= least >= WIDE, least if m.scales else 1  # of traces
        widths = [(n > 0).sum(1).tolist() for n in self._counted()]
        floors = [m.lowest(d, e, sign) for d, e, sign in zip(*widths, self._positive.tolist())]
        found.floor[*at] = torch.tensor(floors, dtype=torch.float64)
        chosen = None
        if self._how.intervals or t.unseen > 0:
            trace, chosen = m.best(gains, quick)
        if exact:
            trace = torch.tensor([m.best_trace(one) for one in gains], dtype=torch.float64)
        elif chosen is None:
            trace = self._traces(gains, t.rows)
        for k in [] if exact else (trace > _NEAR * largest).nonzero()[:, 0].tolist():
            cross, norms = t.precise(*divmod(int(self._pairs[k]), t.y.shape[0]))
            again = m.best(m.gains(cross, *norms), quick, sure=True)
            for every, one in zip((trace, *self._norms, chosen), (again[0], *norms, again[1])):
                if every is not None:
                    every[k] = one
        score_of, missed = self._scoring(least)
        adds = None if chosen is None else self._adds(chosen)
        bias, sampling = self._sampling(trace, adds) if adds is not None and t.unseen > 0 else (0.0, 0.0)
        sampling += missed * trace
        rough = quick or t.x.narrow or t.y.narrow or (chosen is None and not exact and least >= LARGE)
        sampling += _ROUNDED * largest if rough else 0.0
        rest = Pairs(at, score_of, trace - bias)
        found.scores[*at] = scores = score_of(rest.centre)
        below, above = (score_of(rest.centre + sign * sampling) for sign in (-1, 1))
        found.error[*at] = torch.maximum(above - scores, scores - below)
        if self._how.intervals and adds is not None:
            folds, count = adds.sum(1), len(adds)
            spread = folds.square().sum(0) * count / max(1, count - 1)
            rest.width = student_t(CONFIDENCE, max(1, count - 1)) * spread.sqrt()
            rest.rough = self._rough(trace, "folds")
            if halves:
                rest.bias = self._bias(trace, "folds")
                rest.write_intervals(found, rest.bias)
        if len(t.shuffled):
            self._chance(found, rest)
        return rest

    def _counted(self) -> list[Tensor]:
        """Norms of the channels; next to nothing for those that are on somewhere, but nowhere in the sample."""
        if not self._m.scales or not self._t.unseen:
            return self._norms
        return [torch.where(alive & (n == 0), _RARE, n) for alive, n in zip(self._living, self._norms)]

    def _scoring(self, least: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """Map from traces to scores, and the share of a trace that may lie in channels that the sample never sees on.

        If channels are scaled one by one, a rare one counts as much as any other. It is assumed to give half of what
        the others give, and may give anything from nothing to all of it.
        """
        a, b = self._counted()
        pairs = torch.minimum((a > 0).sum(1), (b > 0).sum(1))
        missed = (pairs - least).clamp(min=0) / (2 * least)
        m, ratio = self._m, self._ratio  # pairs that tell about each other keep these until the end, not the table
        return lambda trace: m.score_trace(trace * (1 + missed), a, b, ratio), missed

    def _sampling(self, trace: Tensor, adds: Tensor) -> tuple[Tensor, Tensor]:
        """Bias of best maps for sampled positions, and the bound within which the traces of all positions lie."""
        t = self._t
        blocks = adds.new_zeros(int(t.block_of.max()) + 1, *adds.shape[1:]).index_add_(0, t.block_of, adds)
        spread = (blocks - blocks.mean(1, keepdim=True)).square().sum((0, 1)) * t.parts / max(1, t.parts - 1) * t.unseen
        error = student_t(CONFIDENCE, max(1, len(blocks) * (t.parts - 1))) * spread.sqrt()
        bias, rough = torch.zeros_like(trace), self._rough(trace, "parts") * t.unseen
        slight = _SLIGHT * rough < error
        if not slight.all():
            bias = self._bias(trace, "parts") * t.unseen
            bias[slight | (bias.abs() < _STEP * trace.abs())] = 0.0  # rounding of the halves
        return bias, error + torch.where(slight, rough, bias.abs() / 2)

    def _adds(self, chosen: Tensor) -> Tensor:
        """Influence of each fold and part on the traces, about 0: ``(F, H, k)``."""
        m, t = self._m, self._t
        sizes = [n.clamp(min=1e-150) if m.scales else n.norm(dim=1, keepdim=True) for n in self._norms]
        rows, columns = (m.places(norms)[:, :, None] for norms in self._norms)
        total = t.total[self._pairs]
        maps = torch.zeros_like(total, dtype=chosen.dtype)
        maps[torch.arange(len(maps))[:, None, None], rows, columns.mT] = chosen
        maps /= sizes[0][:, :, None] * sizes[1][:, None, :]
        found = t.gained(self._pairs, maps)
        worth = (maps * total).double()  # what the maps give; they lack small directions
        for squares, size, axis in zip(self._squares, sizes, (2, 1)):
            own = worth.sum(axis) if m.scales else worth.sum((1, 2))[:, None]
            found -= (squares * (own / size.square() / 2)).sum(3)
        return found

    def _rough(self, trace: Tensor, of: str) -> Tensor:
        """Size of the bias of the best maps, from how far two halves are apart."""
        one, two = (self._t.half(of, k)[self._pairs] for k in (0, 1))
        noise = self._m.gains(one - two, *self._norms)
        typical = trace.clamp(min=1e-300) / min(noise.shape[1:])  # of singular values, or of the gains that are chosen
        return torch.linalg.matrix_norm(noise).double().square() / (2 * typical)

    def _traces(self, gains: Tensor, rows: float) -> Tensor:
        """Best traces; not the quick ones with fewer rows than channels, which leave many singular values 0."""
        return self._m.best_traces(gains, rows >= min(gains.shape[-2:]))

    def _bias(self, trace: Tensor, of: str) -> Tensor:
        """Gain of best maps from noise: the mean over two halves, minus the whole; 0 if unknown."""
        if self._t.cross.shape[of == "parts"] < 2:
            return torch.zeros_like(trace)
        bias = -trace
        known = torch.ones_like(trace, dtype=torch.bool)
        for which in (0, 1):
            half = slice(which, None, 2)
            chosen = (slice(None), half) if of == "parts" else (half, slice(None))
            norms = [squares[chosen].sum((0, 1)).sqrt() for squares in self._squares]
            known &= (norms[0] > 0).any(1) & (norms[1] > 0).any(1)
            norms = [torch.where(whole > 0, n.clamp(min=1e-150), 0.0) for n, whole in zip(norms, self._norms)]
            gains = self._m.gains(self._t.half(of, which)[self._pairs], *norms)
            bias = bias + self._traces(gains, self._t.rows / 2) / 2
        return torch.where(known, bias, 0.0)

    def _chance(self, found: Estimates, pairs: Pairs) -> None:
        m, at = self._m, pairs.at
        gains = torch.stack([m.gains(one[self._pairs], *self._norms) for one in self._t.shuffled])
        if self._how.draws:
            traces = [[m.best_trace(one) for one in some] for some in gains]
            found.null[*at] = pairs.score_of(torch.tensor(traces, dtype=torch.float64)).T
            return
        few = _SOLVED if min(gains.shape[2:]) >= WIDE else len(gains)
        solved, sizes = self._traces(gains[:few], self._t.rows), torch.linalg.matrix_norm(gains).double()
        ratio = solved.sum(0) / sizes[:few].sum(0).clamp(min=1e-300)  # nearly the same in every shuffle
        drawn = pairs.score_of(torch.cat([solved, sizes[few:] * ratio]))
        found.chance[*at] = drawn.mean(0)
        if len(drawn) > 1:
            judge(found, at, drawn.std(0) * sqrt(1 + 1 / len(drawn)), len(drawn) - 1)
