"""Procrustes measures of all pairs of layers from rows of channels at sampled positions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod, sqrt

import torch
from torch import Tensor

from ...._zoo_intervals import student_t
from ...measures.procrustes import Procrustes
from ..spatial_sizes import common_space
from .estimates import Estimates, folds_of, living
from .nuclear import best_map
from .statistics import LayerStatistics

SHUFFLES = 4
_PER_CHANNEL = 128  # rows for each channel
_PARTS = 4  # of the positions, whose differences tell the error of their sampling
_TABLE = 48 << 20  # numbers of the products of all folds and parts at a time: 192 MB
_WIDTH = 768  # channels that are stacked in one product
_FOLDS = 20
_WIDE, _SOLVED = 512, 2  # channels from which on best maps of so many shuffles are searched
_STEP = 1e-6
_NEAR = 0.995  # of the largest possible trace, from which on products are taken in float64


@dataclass(frozen=True)
class Task:
    """What is asked for of all pairs of layers."""

    measures: Sequence[Procrustes]
    blocks: Sequence[int]
    shuffles: int = SHUFFLES
    intervals: bool = True
    confidence: float = 0.95
    seed: int = 0


def estimate_procrustes(
    task: Task, a: Sequence[LayerStatistics], b: Sequence[LayerStatistics], step: Callable[[], None] = lambda: None
) -> dict[str, Estimates]:
    """Estimate Procrustes measures of all pairs of layers, with errors, intervals and chance levels.

    Products of channels are taken by folds of examples and parts of the positions. The best map of a pair is found
    once; by the envelope theorem what a fold or a part adds to the score is what that map gives there, so that the
    infinitesimal jackknife over folds is the interval over examples, and that over parts of the positions the error of
    their sampling. The upward bias of a best map, which is fitted to noise as well, falls like one over the number of
    rows: maps of half of the positions and of half of the folds tell it. Chance comes from a few shuffles within blocks
    and Student's distribution.
    """
    found = {m.name: Estimates.empty(len(a), len(b)) for m in task.measures}
    for center in dict.fromkeys(m.center for m in task.measures):
        some = [m for m in task.measures if m.center == center]
        for space, rows, columns in _stacks(a, b):
            left, right = (_Stack([s[k] for k in ks], space, center) for s, ks in ((a, rows), (b, columns)))
            table = _Table(left, right, task)
            for (i, x), (j, y) in product(enumerate(rows), enumerate(columns)):
                for m in some:
                    _Cell(m, table, i, j, task).fill(found[m.name], (x, y), a[x], b[y])
                step()
    return found


def _stacks(
    a: Sequence[LayerStatistics], b: Sequence[LayerStatistics]
) -> Iterator[tuple[tuple[int, ...], list[int], list[int]]]:
    """Layers of A and of B that meet at one size, as many as are stacked at once."""
    for rows, columns in product(_alike(a), _alike(b)):
        yield common_space(a[rows[0]].space, b[columns[0]].space), rows, columns


def _alike(layers: Sequence[LayerStatistics]) -> list[list[int]]:
    """Layers of one size, in parts of a few hundred channels."""
    groups: list[list[int]] = []
    width: dict[tuple[int, ...], tuple[int, list[int]]] = {}
    for k in living(layers):
        layer = layers[k]
        used, open_ = width.get(layer.space, (_WIDTH, []))
        if used + layer.channels > _WIDTH:
            used, open_ = 0, []
            groups.append(open_)
        open_.append(k)
        width[layer.space] = (used + layer.channels, open_)
    return groups


class _Stack:
    """Rows of some layers at one size, their channels beside each other, about their means."""

    def __init__(self, layers: Sequence[LayerStatistics], space: tuple[int, ...], center: bool) -> None:
        self.space, self.every = space, prod(space)
        self.layers = list(layers)
        edges = [0]
        for layer in layers:
            edges.append(edges[-1] + layer.channels)
        self.channels = [slice(*pair) for pair in pairwise(edges)]
        self._rows = [layer.rows[space] for layer in layers]
        self.positions = min(parts[0].shape[1] for parts in self._rows)
        self.silent = torch.cat([layer.constant if center else layer.dead for layer in layers])
        scales = []
        self._means = []
        for parts in self._rows:
            top = max(float(part.abs().max()) for part in parts) or 1.0
            scales.append(2.0 ** -round(torch.tensor(top).log2().item()))
            total = torch.stack([part.double().sum((0, 1)) for part in parts]).sum(0)
            count = sum(part.shape[0] * part.shape[1] for part in parts)
            mean = total / count
            self._means.append(mean if center else torch.zeros_like(mean))
        self.scales = scales

    def block(self, b: int) -> Tensor:
        """Rows of a block, ``(n, positions, C)``."""
        found = []
        for parts, mean, scale in zip(self._rows, self._means, self.scales):
            rows = parts[b]
            first = mean.to(rows)
            found.append(((rows - first) - (mean - first.double()).to(rows)) * scale)
        joined = torch.cat(found, 2) if len(found) > 1 else found[0]
        if self.silent.any():
            joined[:, :, self.silent.to(joined.device)] = 0
        return joined


class _Table:
    """Products of the channels of two stacks by fold and part of the positions, and after shuffles."""

    def __init__(self, x: _Stack, y: _Stack, task: Task) -> None:
        self.x, self.y = x, y
        c, d = x.channels[-1].stop, y.channels[-1].stop
        common = min(x.positions, y.positions)
        self.unseen = 1 - common / max(1, x.every)
        self._count, self._each = common * sum(task.blocks), common
        self.parts = min(_PARTS, common) if self.unseen > 0 else 1
        most = _FOLDS if task.intervals else 2
        folds = folds_of(task.blocks, max(2, min(most, _TABLE // (self.parts * c * d))))
        self.block_of = torch.tensor([b for b, some in enumerate(folds) for _ in some])
        count = len(self.block_of)
        device = x.block(0).device
        wide = x.block(0).dtype
        self.cross = torch.empty(count, self.parts, c, d, dtype=wide, device=device)
        self.squares = tuple(torch.zeros(count, self.parts, n, dtype=torch.float64) for n in (c, d))
        self.shuffled = torch.zeros(task.shuffles, c, d, dtype=torch.float64)
        at, generator = 0, torch.Generator().manual_seed(task.seed)
        for b, some in enumerate(folds):
            left, right = (side.block(b).to(device) for side in (x, y))
            left, right = _common(left, common), _common(right, common)
            for rows in some:
                for h in range(self.parts):
                    u, v = (side[rows, h :: self.parts].flatten(0, 1) for side in (left, right))
                    torch.mm(u.mT, v.to(u.dtype), out=self.cross[at, h])
                    for k, z in enumerate((u, v)):
                        self.squares[k][at, h] = torch.linalg.vector_norm(z, dim=0).double().square().cpu()
                at += 1
            if task.shuffles and c * d >= _WIDE**2 and device.type == "cpu" and _short_floats():
                left, right = left.bfloat16(), right.bfloat16()  # 0.2 % of each product is nothing beside chance
            for s in range(task.shuffles):
                order = torch.randperm(len(left), generator=generator).to(device)
                v = right[order].flatten(0, 1).to(left.dtype)
                self.shuffled[s] += (left.flatten(0, 1).mT @ v).double().cpu()
        self.cross = self.cross.cpu()
        self.total = self._sum(slice(None), slice(None))
        self._halves: dict[tuple[str, int], Tensor] = {}

    def _sum(self, folds: slice, parts: slice) -> Tensor:
        chosen = self.cross[folds, parts].flatten(0, 1).flatten(1)
        return (chosen.new_ones(1, len(chosen)) @ chosen).view(self.cross.shape[2:]).double()

    def half(self, of: str, which: int) -> Tensor:
        """Products over every other fold, or over every other part of the positions."""
        if (of, which) not in self._halves:
            some = slice(which, None, 2)
            folds, parts = (slice(None), some) if of == "parts" else (some, slice(None))
            self._halves[of, which] = self._sum(folds, parts)
        return self._halves[of, which]

    def precise(self, box: tuple[slice, slice]) -> tuple[Tensor, list[Tensor]]:
        """Products and norms of a pair in float64: near 1 a score is as rough as the root of their rounding."""
        cross: Tensor | float = 0.0
        squares: list[Tensor | float] = [0.0, 0.0]
        for b in range(int(self.block_of.max()) + 1):
            sides = [side.block(b)[:, : self._each, part].double() for side, part in zip((self.x, self.y), box)]
            u, v = (z.flatten(0, 1).cpu() for z in sides)
            cross = cross + u.mT @ v
            squares = [s + z.square().sum(0) for s, z in zip(squares, (u, v))]
        assert isinstance(cross, Tensor)
        return cross, [torch.as_tensor(s).sqrt() for s in squares]

    def few(self, box: tuple[slice, slice]) -> bool:
        """Whether rows are so few beside channels that a best map gains much from the noise of their sampling."""
        width = max(part.stop - part.start for part in box)
        return self.unseen > 0 and self._count < _PER_CHANNEL * width


def _short_floats() -> bool:
    """Whether this processor multiplies numbers of 16 bits in hardware."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _common(rows: Tensor, count: int) -> Tensor:
    """The positions that both sides have, where one side has more of the same ordering."""
    return rows if rows.shape[1] == count else rows[:, :count]


class _Cell:
    """One pair of layers and the measure that compares them."""

    def __init__(self, measure: Procrustes, table: _Table, i: int, j: int, task: Task) -> None:
        self._m, self._t, self._task = measure, table, task
        self._box = table.x.channels[i], table.y.channels[j]
        self._ratio = table.x.scales[i] / table.y.scales[j]
        self._squares = [table.squares[k][:, :, part] for k, part in enumerate(self._box)]
        self._norms = [s.sum((0, 1)).sqrt() for s in self._squares]

    def fill(self, found: Estimates, at: tuple[int, int], x: LayerStatistics, y: LayerStatistics) -> None:
        """Write what is known of this pair."""
        m, t = self._m, self._t
        if not all((norm > 0).any() for norm in self._norms):
            found.notes.append(
                f"{m.name} has no score for layer {x.name!r} of A and {y.name!r} of B: at their common size all "
                "channels are constant."
            )
            return
        alive = [int((norm > 0).sum()) for norm in self._norms]
        found.floor[at] = m.lowest(alive[0], alive[1], not (x.negative or y.negative))
        gains = m.gains(t.total[self._box], *self._norms)
        trace, chosen, rounding = best_map(m, gains)
        if trace > _NEAR * (min(alive) if m.scales else 1):
            cross, self._norms = t.precise(self._box)
            trace, chosen, rounding = best_map(m, m.gains(cross, *self._norms), sure=True)
        adds = self._adds(trace, chosen)
        bias = self._bias(trace, "parts") * t.unseen if t.few(self._box) else 0.0
        centre = trace - bias
        found.scores[at] = score = self._score(centre)
        blocks = torch.zeros(int(t.block_of.max()) + 1, t.parts, dtype=torch.float64).index_add_(0, t.block_of, adds)
        spread = (blocks - blocks.mean(1, keepdim=True)).square().sum() * t.parts / max(1, t.parts - 1) * t.unseen
        freedom = max(1, len(blocks) * (t.parts - 1))
        sampling = student_t(0.95, freedom) * sqrt(float(spread)) + abs(bias) / 2 if t.unseen > 0 else 0.0
        found.error[at] = self._width(centre, sampling + rounding)
        if self._task.intervals:
            folds = adds.sum(1)
            count = len(folds)
            width = student_t(self._task.confidence, max(1, count - 1)) * sqrt(
                float(folds.square().sum()) * count / max(1, count - 1)
            )
            middle = centre - self._bias(trace, "folds")
            found.low[at] = min(score, self._score(middle - width))
            found.high[at] = max(score, self._score(middle + width))
        if self._task.shuffles:
            self._chance(found, at, score)

    def _score(self, trace: float) -> float:
        least, most = self._m.range
        return min(most, max(least, self._m.score_trace(trace, self._norms[0], self._norms[1], self._ratio)))

    def _width(self, trace: float, error: float) -> float:
        middle = self._score(trace)
        return max(self._score(trace + error) - middle, middle - self._score(trace - error))

    def _adds(self, trace: float, chosen: Tensor) -> Tensor:
        """What each fold and part adds to the trace, about 0: ``(folds, parts)``."""
        m = self._m
        alive = [norm > 0 for norm in self._norms]
        cross = self._t.cross[:, :, self._box[0], self._box[1]]
        shares = [s / n.square().clamp(min=1e-300) for s, n in zip(self._squares, self._norms)]
        if m.scales:
            rows, columns = (chosen != 0).nonzero(as_tuple=True)
            own, other = alive[0].nonzero()[:, 0][rows], alive[1].nonzero()[:, 0][columns]
            unit = (chosen[rows, columns] / (self._norms[0][own] * self._norms[1][other])).double()
            picked = cross[:, :, own, other].double() * unit
            worth = picked.sum((0, 1))
            return (picked - worth / 2 * (shares[0][:, :, own] + shares[1][:, :, other])).sum(2)
        placed = chosen
        if m.permutes:
            placed = chosen.new_zeros(len(alive[0]), len(alive[1]))
            placed[alive[0].nonzero(), alive[1].nonzero()[:, 0]] = chosen
        size = [n.norm() for n in self._norms]
        weights = (placed / (size[0] * size[1])).to(cross.dtype)
        gained = torch.einsum("fhcd,cd->fh", cross, weights).double()
        totals = [s.sum(2) / n.square() for s, n in zip(self._squares, size)]
        return gained - trace / 2 * (totals[0] + totals[1])

    def _bias(self, trace: float, of: str) -> float:
        """How much a best map gains from noise: the mean of those of two halves, less that of the whole."""
        axis = 1 if of == "parts" else 0
        count = self._t.cross.shape[axis]
        if count < 2:
            return 0.0
        found = []
        for which in (0, 1):
            half = slice(which, None, 2)
            chosen = (slice(None), half) if axis else (half, slice(None))
            cross = self._t.half(of, which)[self._box]
            norms = [s[chosen].sum((0, 1)).sqrt() for s in self._squares]
            norms = [torch.where(whole > 0, n, 0.0) for n, whole in zip(norms, self._norms)]
            if not all((n > 0).any() for n in norms):
                return 0.0
            found.append(best_map(self._m, self._m.gains(cross, *norms), value_only=True)[0])
        return sum(found) / 2 - trace

    def _chance(self, found: Estimates, at: tuple[int, int], score: float) -> None:
        few = min(part.stop - part.start for part in self._box) >= _WIDE
        traces: list[float] = []
        sizes: list[float] = []
        for cross in self._t.shuffled:
            gains = self._m.gains(cross[self._box], *self._norms)
            sizes.append(float(gains.norm()))
            if not few or len(traces) < _SOLVED:
                traces.append(best_map(self._m, gains, value_only=True)[0])
        ratio = sum(traces) / max(sum(sizes[: len(traces)]), 1e-300)  # nearly the same in every shuffle
        traces += [size * ratio for size in sizes[len(traces) :]]
        scores = [self._score(trace) for trace in traces]
        count = len(scores)
        drawn = torch.tensor(scores, dtype=torch.float64)
        mean, deviation = float(drawn.mean()), float(drawn.std()) * sqrt(1 + 1 / count) if count > 1 else 0.0
        found.chance[at] = mean
        found.upper[at] = mean + student_t(0.9, max(1, count - 1)) * deviation
        found.p[at] = _tail((score - mean) / max(deviation, _STEP), count - 1)


def _tail(z: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(max(1e-300, stdtr(max(1, freedom), -z)))
