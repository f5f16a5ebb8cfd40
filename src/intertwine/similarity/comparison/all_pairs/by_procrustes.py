"""All pairs of layers by Procrustes measures: one matrix product of stacked channels serves every kind."""

from collections.abc import Generator, Iterator, Sequence
from itertools import product
from math import sqrt

import torch
from torch import Tensor

from ..._features import double, is_constant, subtract
from ...measures.procrustes import Procrustes
from ..draws import Cells, Draws
from ..layers import Layer, chunks
from ..spatial_sizes import common_space, pool, pooling_note
from .plan import Plan

CROSS_SHARE = 8  # of the memory, for the features of each network
_PRODUCTS = 4  # of the memory, for the products
_BLOCK = 1 << 22  # numbers of a side that are gathered or upcast at a time
_SPECTRUM = 1 << 25  # numbers of the transforms of products at a time: 128 MB
_MARGIN = 3  # ranges of the multiples of a few shuffles: five deviations of three of them
_ROUNDING = 1e-12  # of the largest number, what rounding may leave of zeros


def compare_crosses(
    measures: Sequence[Procrustes], a: Sequence[Layer], b: Sequence[Layer], plan: Plan, memory: int
) -> Generator[None, None, dict[str, Cells]]:
    """Score pairs with Procrustes measures, which all follow from the products of channels ``X^T Y`` (v2 D.2).

    Layers of one spatial size are stacked along channels, so that a pair of sizes is one matrix product, taken fold by
    fold: scores and halves come from one pass in float64. Shuffles take two more, in the features' own type, which is
    enough for scores that are far from 1. Where there are fewer rows than channels, measures that forgive rotations see
    each layer in an orthonormal basis of its rows, which is exact.
    """
    found = {m.name: Cells.empty(len(a), len(b), plan.draws) for m in measures}
    for wanted, draws in ((plan.drawn, plan.draws), (plan.cells & ~plan.drawn, plan.draws.without())):
        for rows, columns in _blocks(a, b, wanted, draws, memory):
            space = common_space(a[rows[0]].space, b[columns[0]].space)
            wide = max(layer.channels for layer in (*(a[i] for i in rows), *(b[j] for j in columns)))
            spans = wide > draws.examples * torch.Size(space).numel()
            for kind in (True, False) if spans else (None,):
                some = [m for m in measures if kind in (None, m.rotates)]
                if some:
                    x, y = (
                        _ChannelStack([side[i] for i in part], space, bool(kind))
                        for side, part in ((a, rows), (b, columns))
                    )
                    _fill(found, some, (rows, columns), (x, y), draws, plan.solved)
            yield from (None for i, j in product(rows, columns) if wanted[i, j])
    for measure in measures:
        found[measure.name].notes += _notes(measure, a, b)
    return found


def _blocks(
    a: Sequence[Layer], b: Sequence[Layer], wanted: Tensor, draws: Draws, memory: int
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Layers of A and of B that are multiplied at once: all that fit, or one of A where not all pairs are wanted."""
    for rows, columns in product(_by_space(a), _by_space(b)):
        space = common_space(a[rows[0]].space, b[columns[0]].space)
        whole = bool(wanted[rows][:, columns].all())
        for some_a in _fitting(rows, a, space, draws, memory) if whole else [[i] for i in rows]:
            some = columns if whole else [j for j in columns if wanted[some_a[0], j]]
            for some_b in _fitting(some, b, space, draws, memory) if some else []:
                yield some_a, some_b


def _by_space(layers: Sequence[Layer]) -> list[list[int]]:
    """Layers that vary between examples, grouped by spatial size."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, layer in enumerate(layers):
        if not layer.constant.all():
            groups.setdefault(layer.space, []).append(i)
    return list(groups.values())


def _fitting(
    chosen: Sequence[int], layers: Sequence[Layer], space: tuple[int, ...], draws: Draws, memory: int
) -> Iterator[Sequence[int]]:
    """Split layers into parts whose stack fits its share of the memory, and whose products fit another."""
    for part in chunks(stack_sizes([layers[i] for i in chosen], space, draws, memory), memory, CROSS_SHARE):
        yield [chosen[k] for k in part]


def stack_sizes(layers: Sequence[Layer], space: tuple[int, ...], draws: Draws, memory: int) -> list[int]:
    """What each layer takes of its stack's share of the memory: its features, or its part of the products.

    The products of all folds and shuffles are a ``(C, C')`` matrix each, so that a side may take the root of what there
    is.
    """
    per_channel = draws.examples * torch.Size(space).numel()
    widest = sqrt(memory / _PRODUCTS / (8 * len(draws.folds) + 4 * len(draws.permutations)))
    return [
        max(layer.channels * per_channel * layer.dtype.itemsize, int(layer.channels / widest * (memory // CROSS_SHARE)))
        for layer in layers
    ]


class _View:
    """One layer in a stack."""

    def __init__(self, layer: Layer, start: int, width: int) -> None:
        self.layer = layer
        self.channels = slice(start, start + width)


class _ChannelStack:
    """Features of some layers at one spatial size, channels of all stacked: ``(C, N, P)``.

    With ``spans``, a layer of more channels than rows is given by its coordinates in the span of its rows. Each layer
    is divided by the power of 2 that is near its largest feature, so that no float32 product overflows; the scores are
    told where sizes count.

    Attributes:
        views: Which channels belong to which layer.
        values: The features.
        means: Means of the channels in float64, ``(C,)``: products are taken about them, so that large means eat no
            digits.
    """

    def __init__(self, layers: Sequence[Layer], space: tuple[int, ...], spans: bool = False) -> None:
        double_needed = any(layer.dtype == torch.float64 for layer in layers)
        self.views: list[_View] = []
        self.values = torch.empty(0)
        rows, start = layers[0].spool.examples * torch.Size(space).numel(), 0
        widths = [min(layer.channels, rows) if spans else layer.channels for layer in layers]
        for layer, width in zip(layers, widths):
            x = pool(layer.load(), space)
            x = x.reshape(*x.shape[:2], -1).movedim(1, 0)
            if not self.views:
                dtype = torch.float64 if double_needed else torch.float32
                self.values = torch.empty(sum(widths), *x.shape[1:], dtype=dtype, device=x.device)
            self.views.append(_View(layer, start, width))
            if width < len(x):
                x = _spanned(x)
            torch.mul(x, layer.scale.to(x), out=self.values[self.views[-1].channels])
            start += width
        self.means = torch.stack([channel.mean(dtype=torch.float64) for channel in self.values])

    @property
    def width(self) -> int:
        """Numbers per example."""
        return self.values.shape[0] * self.values.shape[2]

    def rows(self, examples: Tensor, channels: slice = slice(None)) -> Tensor:
        """Chosen examples with channels as rows, ``(C, n P)``."""
        return self.values[channels].index_select(1, examples.to(self.values.device)).flatten(1)


def _spanned(x: Tensor) -> Tensor:
    """Features ``(C, N, P)`` after an orthogonal map of the channels that leaves all but the first ``N P`` zero."""
    turned = torch.linalg.qr(double(x).flatten(1), mode="r").R
    turned[turned.abs() <= _ROUNDING * turned.abs().max()] = 0  # what rounding leaves of zeros is no living channel
    return turned.to(x.dtype).unflatten(1, x.shape[1:])


class _FoldProducts:
    """Products of all channels of two stacks about their means: per fold in float64, and per shuffle of the second."""

    def __init__(self, x: _ChannelStack, y: _ChannelStack, draws: Draws) -> None:
        parts, device = len(draws.folds), x.values.device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        c, d = len(x.values), len(y.values)
        self.counts = torch.tensor([len(fold) * x.values.shape[2] for fold in draws.folds], device=device)
        self.cross = zeros(parts, c, d)
        self.means = (x.means, y.means)
        self.squares = (zeros(parts, c), zeros(parts, d))
        self.sums = (zeros(parts, c), zeros(parts, d))
        self._low = tuple(s.values.new_full((parts, len(s.values)), torch.inf) for s in (x, y))
        self._high = tuple(-low for low in self._low)
        height = max(1, _BLOCK // max(x.width, y.width))
        for f, fold in enumerate(draws.folds):
            for examples in fold.split(height):
                self._add(f, x.rows(examples), y.rows(examples))
        self.shuffled = x.values.new_zeros(len(draws.permutations), c, d)
        if not len(draws.permutations):
            return
        rest = torch.ones(draws.examples, dtype=torch.bool)
        if len(draws.turns):
            rest[draws.wheel] = False
            for rows in torch.arange(c).split(max(1, _SPECTRUM // (d * len(draws.wheel)))):
                self.shuffled[:, rows] = self._turned(x, y, slice(int(rows[0]), int(rows[-1]) + 1), draws, height)
        self._shuffle(x, y, draws.permutations, rest.nonzero()[:, 0], height)

    def _shuffle(self, x: _ChannelStack, y: _ChannelStack, orders: Tensor, examples: Tensor, height: int) -> None:
        """Add the products of some examples after every shuffle, in the features' own type."""
        for some in examples.split(height):
            left = subtract(x.rows(some), self.means[0][:, None])
            for p, order in enumerate(orders):
                right = subtract(y.rows(order[some]), self.means[1][:, None])
                self.shuffled[p] += left @ right.T.to(left.dtype)

    def _turned(self, x: _ChannelStack, y: _ChannelStack, channels: slice, draws: Draws, height: int) -> Tensor:
        """Products of some channels of the first side after every turn of the wheel, ``(shuffles, c, d)``.

        ``sum over i of X_i^T Y_{i + t}`` for all ``t`` is a correlation over the parts ``i``: the transforms of both
        sides, multiplied frequency by frequency.
        """
        parts = len(draws.wheel)
        c, d = len(self.means[0][channels]), len(self.means[1])
        total = x.values.new_zeros(parts // 2 + 1, c, d, dtype=torch.promote_types(x.values.dtype, torch.complex64))
        for some in draws.wheel.split(max(1, height // parts), 1):
            left, right = (
                torch.fft.rfft(
                    subtract(side.rows(some.flatten(), part), mean[part, None]).unflatten(1, (parts, -1)), dim=1
                ).movedim(1, 0)
                for side, mean, part in zip((x, y), self.means, (channels, slice(None)))
            )
            total.baddbmm_(left.conj().to(total.dtype), right.mT.to(total.dtype))
        return torch.fft.irfft(total, n=parts, dim=0)[draws.turns.to(total.device)]

    def _add(self, fold: int, x: Tensor, y: Tensor) -> None:
        for k, z in enumerate((x, y)):
            self._low[k][fold] = torch.minimum(self._low[k][fold], z.amin(1))
            self._high[k][fold] = torch.maximum(self._high[k][fold], z.amax(1))
        x, y = (double(z) - mean[:, None] for z, mean in zip((x, y), self.means))
        self.cross[fold] += x @ y.T
        for k, z in enumerate((x, y)):
            self.squares[k][fold] += z.square().sum(1)
            self.sums[k][fold] += z.sum(1)

    def norms(self, k: int, channels: slice, folds: Tensor, center: bool) -> Tensor:
        """Norms of some channels of side ``k`` over some folds; exactly 0 for those that are dead there."""
        square, total = (t[k][folds][:, channels].sum(0) for t in (self.squares, self.sums))
        count, mean = self.counts[folds].sum(), self.means[k][channels]
        low, high = self._low[k][folds][:, channels].amin(0), self._high[k][folds][:, channels].amax(0)
        if center:
            square, dead = square - total.square() / count, is_constant(low, high)
        else:
            square, dead = square + 2 * mean * total + count * mean.square(), (low == 0) & (high == 0)
        return torch.where(dead.to(square.device), 0.0, square.clamp(min=0).sqrt())

    def products(self, box: tuple[slice, slice], folds: Tensor, center: bool, shuffle: int | None = None) -> Tensor:
        """Products of some channels of the sides over some folds, centred there or not; or after a shuffle."""
        cross = (
            self.cross[:, *box][folds].sum(0)
            if shuffle is None
            else self.shuffled[shuffle][box].to(torch.float64, copy=True)
        )
        count = self.counts[folds].sum()
        x, y = (total[folds][:, channels].sum(0) for total, channels in zip(self.sums, box))
        if center:
            return cross.sub_(torch.outer(x, y) / count)
        mean_x, mean_y = (mean[channels] for mean, channels in zip(self.means, box))
        return cross.add_(torch.outer(x + count * mean_x, mean_y)).add_(torch.outer(mean_x, y))


def _fill(
    found: dict[str, Cells],
    measures: Sequence[Procrustes],
    at: tuple[Sequence[int], Sequence[int]],
    stacks: tuple[_ChannelStack, _ChannelStack],
    draws: Draws,
    solved: int,
) -> None:
    """Score all pairs of layers of two stacks."""
    tables = _FoldProducts(*stacks, draws)
    for (i, x), (j, y) in product(*(zip(some, stack.views) for some, stack in zip(at, stacks))):
        for measure in measures:
            _fill_cell(found[measure.name], measure, (i, j), _Pair(measure, tables, x, y), draws, solved)


def _fill_cell(
    cells: Cells, measure: Procrustes, at: tuple[int, int], pair: "_Pair", draws: Draws, solved: int
) -> None:
    everything = torch.ones(len(draws.folds), dtype=torch.bool)
    cells.scores[at] = pair.score(everything)
    x, y = pair.layers
    if cells.scores[at].isnan():
        names = f"layer {x.name!r} of A and {y.name!r} of B"
        cells.notes.append(f"{measure.name} has no score for {names}: at their common size all channels are constant.")
        return
    cells.floor[at] = _floor(measure, x, y)
    for s, half in enumerate(draws.halves):
        cells.halves[(*at, s)] = pair.score(half)
    if len(draws.permutations):
        cells.null[at] = pair.null(everything, len(draws.permutations), solved)


class _Pair:
    """Two layers of two stacks and the measure that compares them."""

    def __init__(self, measure: Procrustes, tables: _FoldProducts, x: _View, y: _View) -> None:
        self._measure, self._tables, self._box = measure, tables, (x.channels, y.channels)
        self.layers = (x.layer, y.layer)
        self._ratio = float(x.layer.scale / y.layer.scale)

    def score(self, folds: Tensor) -> float:
        """Score on a union of folds; NaN where none of a side's channels lives there."""
        norms = self._norms(folds)
        if not all((norm > 0).any() for norm in norms):
            return torch.nan
        return self._measure.score_cross(self._cross(folds), *norms, self._ratio)

    def null(self, folds: Tensor, shuffles: int, solved: int) -> Tensor:
        """Scores after shuffles; those of all but the first ``solved`` by the Frobenius norms of the products.

        The best trace over the group is nearly the same multiple of the norm in every shuffle of the same features; a
        multiple some five deviations above the mean is taken, so that no score is beyond chance by an error of it.
        """
        norms = self._norms(folds)
        traces, sizes = torch.zeros(2, shuffles, dtype=torch.float64)
        for p in range(shuffles):
            gains = self._measure.gains(self._cross(folds, p), *norms)
            sizes[p] = gains.norm()
            if p < solved:
                traces[p] = self._measure.best_trace(gains)
        if solved < shuffles:
            ratios = traces[:solved] / sizes[:solved].clamp(min=1e-300)
            traces[solved:] = sizes[solved:] * (ratios.mean() + _MARGIN * (ratios.max() - ratios.min()))
        scores = [self._measure.score_trace(t, *norms, self._ratio) for t in traces.tolist()]
        return torch.tensor(scores, dtype=torch.float64)

    def _norms(self, folds: Tensor) -> tuple[Tensor, Tensor]:
        x, y = (self._tables.norms(k, part, folds, self._measure.center) for k, part in enumerate(self._box))
        return x, y

    def _cross(self, folds: Tensor, shuffle: int | None = None) -> Tensor:
        return self._tables.products(self._box, folds, self._measure.center, shuffle)


def _floor(measure: Procrustes, x: Layer, y: Layer) -> float:
    alive = [int((~(side.constant if measure.center else side.dead)).sum()) for side in (x, y)]
    return measure.lowest(alive[0], alive[1], not (x.negative or y.negative))


def _notes(measure: Procrustes, a: Sequence[Layer], b: Sequence[Layer]) -> list[str]:
    """Layers without a score, and pairs of sizes that were pooled."""
    notes = [layer.nothing(measure.name) for layer in (*a, *b) if layer.constant.all()]
    if note := pooling_note("Procrustes", a, b):
        notes.append(note)
    return notes
