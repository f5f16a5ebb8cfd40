"""All pairs of layers by Procrustes measures: one matrix product of stacked channels serves every kind."""

from collections.abc import Generator, Iterator, Sequence
from itertools import product
from math import sqrt

import torch
from torch import Tensor

from .._features import double, is_constant, subtract
from ..measures.procrustes import Procrustes
from .draws import Cells, Draws
from .layers import Layer, chunks
from .space import common_space, pool, pooling_note

CROSS_SHARE = 8  # of the memory, for the features of each network and for the products
_BLOCK = 1 << 22  # numbers of a side that are gathered or upcast at a time


def compare_crosses(
    measures: Sequence[Procrustes], a: Sequence[Layer], b: Sequence[Layer], draws: Draws, memory: int
) -> Generator[None, None, dict[str, Cells]]:
    """Score all pairs with Procrustes measures, which all follow from the products of channels ``X^T Y`` (v2 D.2).

    Layers of one spatial size are stacked along channels, so that a pair of sizes is one matrix product, taken fold by
    fold: scores and halves come from one pass in float64. Every shuffle takes another pass, in float32, which is enough
    for scores that are far from 1.
    """
    found = {m.name: Cells.empty(len(a), len(b), draws) for m in measures}
    for rows, columns in product(_by_space(a), _by_space(b)):
        space = common_space(a[rows[0]].space, b[columns[0]].space)
        for some_a in _fitting(rows, a, space, draws, memory):
            x = _ChannelStack([a[i] for i in some_a], space)
            for some_b in _fitting(columns, b, space, draws, memory):
                y = _ChannelStack([b[j] for j in some_b], space)
                tables = _FoldProducts(x, y, draws)
                for (k, i), (l, j) in product(enumerate(some_a), enumerate(some_b)):
                    for measure in measures:
                        _fill(found[measure.name], measure, (i, j), tables, x.views[k], y.views[l], draws)
                    yield
    for measure in measures:
        found[measure.name].notes += _notes(measure, a, b)
    return found


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
    widest = sqrt(memory / CROSS_SHARE / 8 / (len(draws.folds) + len(draws.permutations)))
    return [
        max(layer.channels * per_channel * layer.dtype.itemsize, int(layer.channels / widest * (memory // CROSS_SHARE)))
        for layer in layers
    ]


class _View:
    """One layer in a stack."""

    def __init__(self, layer: Layer, start: int) -> None:
        self.layer = layer
        self.channels = slice(start, start + layer.channels)


class _ChannelStack:
    """Features of some layers at one spatial size, channels of all stacked: ``(C, N, P)``.

    Each layer is divided by the power of 2 that is near its largest feature, so that no float32 product overflows; the
    scores are told where sizes count.

    Attributes:
        views: Which channels belong to which layer.
        values: The features.
        means: Means of the channels in float64, ``(C,)``: products are taken about them, so that large means eat no
            digits.
    """

    def __init__(self, layers: Sequence[Layer], space: tuple[int, ...]) -> None:
        double_needed = any(layer.dtype == torch.float64 for layer in layers)
        self.views: list[_View] = []
        self.values = torch.empty(0)
        total, start = sum(layer.channels for layer in layers), 0
        for layer in layers:
            x = pool(layer.load(), space)
            x = x.reshape(*x.shape[:2], -1).movedim(1, 0)
            if not self.views:
                dtype = torch.float64 if double_needed else torch.float32
                self.values = torch.empty(total, *x.shape[1:], dtype=dtype, device=x.device)
            self.views.append(_View(layer, start))
            torch.mul(x, layer.scale.to(x), out=self.values[self.views[-1].channels])
            start += layer.channels
        self.means = torch.stack([channel.mean(dtype=torch.float64) for channel in self.values])

    @property
    def width(self) -> int:
        """Numbers per example."""
        return self.values.shape[0] * self.values.shape[2]

    def rows(self, examples: Tensor) -> Tensor:
        """Chosen examples with channels as rows, ``(C, n P)``."""
        return self.values.index_select(1, examples.to(self.values.device)).flatten(1)


class _FoldProducts:
    """Products of all channels of two stacks about their means: per fold in float64, and per shuffle of the second."""

    def __init__(self, x: _ChannelStack, y: _ChannelStack, draws: Draws) -> None:
        parts, device = len(draws.folds), x.values.device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        c, d = len(x.values), len(y.values)
        self.counts = torch.tensor([len(fold) * x.values.shape[2] for fold in draws.folds], device=device)
        self.cross, self.shuffled = zeros(parts, c, d), zeros(len(draws.permutations), c, d)
        self.means = (x.means, y.means)
        self.squares = (zeros(parts, c), zeros(parts, d))
        self.sums = (zeros(parts, c), zeros(parts, d))
        self._low = tuple(s.values.new_full((parts, len(s.values)), torch.inf) for s in (x, y))
        self._high = tuple(-low for low in self._low)
        height = max(1, _BLOCK // max(x.width, y.width))
        for f, fold in enumerate(draws.folds):
            for examples in fold.split(height):
                self._add(f, x.rows(examples), y.rows(examples))
        self._shuffle(x, y, draws, height)

    def _shuffle(self, x: _ChannelStack, y: _ChannelStack, draws: Draws, height: int) -> None:
        """Products after every shuffle, in the features' own type."""
        mean_x, mean_y = (mean[:, None] for mean in self.means)
        for examples in torch.arange(draws.examples).split(height):
            left = subtract(x.rows(examples), mean_x)
            for p, order in enumerate(draws.permutations):
                right = subtract(y.rows(order[examples]), mean_y)
                self.shuffled[p] += double(left @ right.T.to(left.dtype))

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
        cross = self.cross[:, *box][folds].sum(0) if shuffle is None else self.shuffled[shuffle][box].clone()
        count = self.counts[folds].sum()
        x, y = (total[folds][:, channels].sum(0) for total, channels in zip(self.sums, box))
        if center:
            return cross.sub_(torch.outer(x, y) / count)
        mean_x, mean_y = (mean[channels] for mean, channels in zip(self.means, box))
        return cross.add_(torch.outer(x + count * mean_x, mean_y)).add_(torch.outer(mean_x, y))


def _fill(
    cells: Cells, measure: Procrustes, at: tuple[int, int], tables: _FoldProducts, x: _View, y: _View, draws: Draws
) -> None:
    everything = torch.ones(len(draws.folds), dtype=torch.bool)
    cells.scores[at] = _score(measure, tables, x, y, everything)
    if cells.scores[at].isnan():
        pair = f"layer {x.layer.name!r} of A and {y.layer.name!r} of B"
        cells.notes.append(f"{measure.name} has no score for {pair}: at their common size all channels are constant.")
        return
    cells.floor[at] = _floor(measure, x.layer, y.layer)
    for s, half in enumerate(draws.halves):
        cells.halves[(*at, s)] = _score(measure, tables, x, y, half)
    for p in range(len(draws.permutations)):
        cells.null[(*at, p)] = _score(measure, tables, x, y, everything, p)


def _score(
    measure: Procrustes, tables: _FoldProducts, x: _View, y: _View, folds: Tensor, shuffle: int | None = None
) -> float:
    """Score one pair on a union of folds; NaN where none of a side's channels lives there."""
    folds = folds.to(tables.cross.device)
    norm_x, norm_y = (tables.norms(k, view.channels, folds, measure.center) for k, view in enumerate((x, y)))
    if not ((norm_x > 0).any() and (norm_y > 0).any()):
        return torch.nan
    cross = tables.products((x.channels, y.channels), folds, measure.center, shuffle)
    return measure.score_cross(cross, norm_x, norm_y, float(x.layer.scale / y.layer.scale))


def _floor(measure: Procrustes, x: Layer, y: Layer) -> float:
    alive = [int((~(side.constant if measure.center else side.dead)).sum()) for side in (x, y)]
    return measure.lowest(alive[0], alive[1], not (x.negative or y.negative))


def _notes(measure: Procrustes, a: Sequence[Layer], b: Sequence[Layer]) -> list[str]:
    """Layers without a score, and pairs of sizes that were pooled."""
    notes = [layer.nothing(measure.name) for layer in (*a, *b) if layer.constant.all()]
    if note := pooling_note("Procrustes", a, b):
        notes.append(note)
    return notes
