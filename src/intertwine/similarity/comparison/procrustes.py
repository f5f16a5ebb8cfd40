"""Procrustes measures of all pairs of layers from rows of channels, at all positions or at sampled ones."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product, repeat
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor

from ..._zoo_intervals import student_t
from .._sides import placed
from ..inference import CONFIDENCE
from ..measures.procrustes import Procrustes, polar
from .estimates import Estimates, How, folds_of
from .layers import Layer, Network, chunks
from .positions import common_space, pooling_note
from .shared_chance import Pair, judge, one_in, tell

SHUFFLES = 4
_PARTS = 4  # of the positions, whose differences tell the error of their sampling
_TABLE = 48 << 20  # numbers of the products of all folds and parts at a time: 192 MB
_WIDTH = 768  # channels that are stacked in one product
_FOLDS = 20
_ROWS = 1024  # of 16 bits in one product
_ROUNDED = 2e-4  # of the largest possible trace, that their rounding may move one: twice what was seen
SHARE = 8  # of the memory, for the features of each network
_NUMBERS = 1 << 22  # of a side that are upcast to float64 at a time
_WIDE, _SOLVED = 512, 2  # channels from which on best maps of so many shuffles are searched
_STEP = 1e-6
_NEAR = 0.995  # of the largest possible trace, from which on products are taken in float64
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
    layers of equal shapes tell each other's: see ``shared_chance``.
    """
    sizes = [Counter(n.layers[k].shape for k in n.living) for n in (a, b)]
    for center in dict.fromkeys(m.center for m in measures):
        some = [m for m in measures if m.center == center]
        told: dict[tuple[Any, ...], list[Pair]] = {}  # of layers of one shape on either side, by measure
        stacks: dict[tuple[Any, ...], _Stack] = {}  # what was sampled of all layers is in memory already
        room: dict[Any, Tensor] = {}  # for products of one table after the other
        for rows, columns in product(_alike(a, b, how), _alike(b, a, how)):
            if how.paired and not set(rows) & set(columns):
                yield from repeat(None, len(rows) * len(columns) * len(some))
                continue
            space = common_space(a.layers[rows[0]].space, b.layers[columns[0]].space)
            if how.draws:
                stacks.clear()
            for n, ks in ((a, rows), (b, columns)):
                if (id(n), *ks, space) not in stacks:
                    stacks[id(n), *ks, space] = _Stack([n.layers[k] for k in ks], space, center, bool(how.draws))
            left, right = (stacks[id(n), *ks, space] for n, ks in ((a, rows), (b, columns)))
            shapes = a.layers[rows[0]].shape, b.layers[columns[0]].shape
            wide = len(rows) == len(columns) == 1 and min(shape[0] for shape in shapes) >= _WIDE and not how.draws
            each = one_in(*(of[shape] for of, shape in zip(sizes, shapes))) if wide else 0
            at = divmod(len(told.setdefault((some[0].name, *shapes), [])), sizes[1][shapes[1]])
            asked = not each or sum(at) % each == 0
            # Pairs that have one shuffle each have each their own: what they share would not show.
            own = how.seed + (1 + rows[0]) * len(b.layers) + columns[0] if each else how.seed
            table = _Table(left, right, how, a.blocks, (1 if each else SHUFFLES, own) if asked else (0, 0), room)
            for (i, x), (j, y) in product(enumerate(rows), enumerate(columns)):
                for m in some:
                    pair = _Cell(m, table, i, j, how).fill(found[m.name], (x, y), a.layers[x], b.layers[y], asked)
                    if each and pair is not None:
                        told.setdefault((m.name, *shapes), []).append(pair)
                yield from (None for _ in some)
        for (name, *_), pairs in told.items():
            tell(pairs, found[name])
    if measures:
        found[measures[0].name].notes += pooling_note("Procrustes", a.layers, b.layers)


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


class _Stack:
    """Rows of some layers at one size, their channels beside each other, about their means.

    Each layer is multiplied by the power of 2 that brings its largest value near 1, so that no product overflows; the
    scores are told where sizes count. Many centred channels are rounded to 16 bits where the processor multiplies
    them: their norms are rounded with them, and 0.2 % of each number, at random, is in the error of a score.
    """

    def __init__(self, layers: Sequence[Layer], space: tuple[int, ...], center: bool, exact: bool) -> None:
        self.every, self.centred = prod(space), center
        self.channels = [slice(*pair) for pair in pairwise(accumulate((x.shape[0] for x in layers), initial=0))]
        self._rows = [layer.rows(space) for layer in layers]
        self.positions = min(parts[0].shape[1] for parts in self._rows)
        self._silent = torch.cat([layer.constant if center else layer.dead for layer in layers])
        tops = [float(torch.stack([part.abs().max() for part in parts]).max()) or 1.0 for parts in self._rows]
        self.scales = [2.0 ** -round(torch.tensor(top).log2().item()) for top in tops]
        self._means: list[Tensor] = []
        offsets = []
        for parts, scale in zip(self._rows, self.scales):
            total = sum(part.flatten(0, 1).sum(0, dtype=torch.float64) for part in parts)
            mean = torch.as_tensor(total) / sum(part.shape[0] * part.shape[1] for part in parts)
            self._means.append(mean if center else torch.zeros_like(mean))
            offsets.append(mean * scale - self._means[-1] * scale)
        self.offset = torch.where(self._silent.to(mean.device), 0.0, torch.cat(offsets))  # means that rows still have
        self.squares: dict[tuple[int, ...], Tensor] = {}  # of the channels, by fold and part, for tables of a kind
        self.device, self.dtype = (getattr(self._rows[0][0], of) for of in ("device", "dtype"))
        self.narrow = center and not exact and len(self.offset) >= _WIDE and multiplies_16_bits(self.device)
        self._rounded: dict[int, Tensor] = {}

    def block(self, b: int) -> Tensor:
        """Rows of a block, ``(n, positions, C)``, rounded to 16 bits where that costs nothing."""
        if not self.narrow:
            return self.precise_block(b)
        if b not in self._rounded:
            self._rounded[b] = self.precise_block(b).bfloat16()
        return self._rounded[b]

    def precise_block(self, b: int) -> Tensor:
        """Rows of a block in the precision of the features."""
        found = []
        for parts, mean, scale in zip(self._rows, self._means, self.scales):
            first = mean.to(parts[b])
            found.append(((parts[b] - first) - (mean - first.double()).to(first)) * scale)
        joined = torch.cat(found, 2) if len(found) > 1 else found[0]
        if self._silent.any():
            joined[:, :, self._silent.to(joined.device)] = 0
        return joined


def multiplies_16_bits(device: torch.device) -> bool:
    """Whether a processor multiplies bfloat16 in hardware, twice as fast as float32; other devices stay precise."""
    return device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the products of channels of two sides."""
    if left.dtype == torch.bfloat16:  # and so are products: many of them, so that what is lost averages out
        for u, v in zip(left.split(_ROWS), right.split(_ROWS)):
            total += u.mT @ v
    elif left.dtype == total.dtype:
        total.addmm_(left.mT, right)
    else:
        total += left.mT @ right


class _Table:
    """Products of the channels of two stacks by fold and part of the positions, and after shuffles."""

    def __init__(
        self, x: _Stack, y: _Stack, how: How, blocks: Sequence[int], shuffles: tuple[int, int], room: dict[Any, Tensor]
    ) -> None:
        self.x, self.y, exact = x, y, how.draws is not None
        self.rounded = x.narrow and y.narrow
        c, d = x.channels[-1].stop, y.channels[-1].stop
        self._each = min(x.positions, y.positions)
        self.unseen = 0.0 if exact else 1 - self._each / max(1, x.every)
        self.parts = min(_PARTS, self._each) if self.unseen > 0 else 1
        folds = folds_of(blocks, max(2, min(_FOLDS if how.intervals else 2, _TABLE // (self.parts * c * d))))
        self.block_of = torch.tensor([b for b, some in enumerate(folds) for _ in some])
        wide, device = torch.float64 if exact else x.dtype, x.device
        shape = len(self.block_of), self.parts, c, d
        if shape not in room:  # new memory costs more than what is written to it
            room.clear()
            room[shape] = torch.empty(shape, dtype=wide, device=device)
        self.cross = room[shape].zero_()
        kind = (*self.cross.shape[:2], self._each)
        new = [side for side in dict.fromkeys((x, y)) if kind not in side.squares]
        for side in new:
            size = side.channels[-1].stop
            side.squares[kind] = torch.zeros(*kind[:2], size, dtype=torch.float64, device=device)
        drawn = torch.empty(0) if how.draws is None else how.draws.permutations
        count = len(drawn) if exact else shuffles[0] if how.shuffled else 0
        shuffled = torch.zeros(count, c, d, dtype=wide, device=device)
        at, generator = 0, torch.Generator().manual_seed(shuffles[1])
        height = max(1, _NUMBERS // (self._each * max(c, d))) if exact else 1 << 40
        for b, some in enumerate(folds):
            left, right = (side.block(b).to(device)[:, : self._each] for side in (x, y))
            if x.narrow != y.narrow:
                left, right = left.to(wide), right.to(wide)
            for fold in some:
                for start, h in product(range(fold.start, fold.stop, height), range(self.parts)):
                    rows = slice(start, min(fold.stop, start + height))
                    u, v = (side[rows, h :: self.parts].flatten(0, 1) for side in (left, right))
                    u, v = (u, v) if self.rounded else (u.to(wide), v.to(wide))
                    _add_product(self.cross[at, h], u, v)
                    for side in new:
                        norms = torch.linalg.vector_norm(u if side is x else v, dim=0, dtype=wide)
                        side.squares[kind][at, h] += norms.double().square()
                at += 1
            if not count:
                continue
            if not x.centred:  # shuffle rows about their means, so that large ones take no digits
                left, right = (z - side.offset.to(z) for z, side in ((left, x), (right, y)))
                if not exact and min(c, d) >= _WIDE and multiplies_16_bits(device):
                    left, right = left.bfloat16(), right.bfloat16()  # 0.2 % of each product is nothing beside chance
            for s in range(count):
                order = drawn[s] if exact else torch.randperm(len(left), generator=generator)
                _add_product(shuffled[s], left.flatten(0, 1), right[order.to(device)].flatten(0, 1))
        shuffled = shuffled if self.rounded else shuffled.double()
        shuffled += sum(blocks) * self._each * torch.outer(x.offset, y.offset.to(x.offset.device))
        self.cross, self.shuffled = self.cross.cpu(), shuffled.cpu()
        self.squares = [side.squares[kind].cpu() for side in (x, y)]
        self.total = self._sum(slice(None), slice(None))
        self._halves: dict[tuple[str, int], Tensor] = {}

    def _sum(self, folds: slice, parts: slice) -> Tensor:
        chosen = self.cross[folds, parts].flatten(0, 1).flatten(1)
        total = (chosen.new_ones(1, len(chosen)) @ chosen).view(self.cross.shape[2:])
        return total if self.rounded else total.double()

    def half(self, of: str, which: int) -> Tensor:
        """Products over every other fold, or over every other part of the positions."""
        if (of, which) not in self._halves:
            some = slice(which, None, 2)
            self._halves[of, which] = self._sum(*((slice(None), some) if of == "parts" else (some, slice(None))))
        return self._halves[of, which]

    def precise(self, box: tuple[slice, slice]) -> tuple[Tensor, list[Tensor]]:
        """Products and norms of a pair in float64: near 1 a score is as rough as the root of their rounding."""
        cross, squares = torch.zeros((), dtype=torch.float64), [torch.zeros((), dtype=torch.float64)] * 2
        for b in range(int(self.block_of.max()) + 1):
            sides = [side.precise_block(b)[:, : self._each, part].double() for side, part in zip((self.x, self.y), box)]
            u, v = (z.flatten(0, 1).cpu() for z in sides)
            cross, squares = cross + u.mT @ v, [s + z.square().sum(0) for s, z in zip(squares, (u, v))]
        return cross, [s.sqrt() for s in squares]


class _Cell:
    """One pair of layers and the measure that compares them."""

    def __init__(self, measure: Procrustes, table: _Table, i: int, j: int, how: How) -> None:
        self._m, self._t, self._how = measure, table, how
        self._box = table.x.channels[i], table.y.channels[j]
        self._ratio = table.x.scales[i] / table.y.scales[j]
        self._squares = [table.squares[k][:, :, part] for k, part in enumerate(self._box)]
        self._norms = [s.sum((0, 1)).sqrt() for s in self._squares]

    def fill(self, found: Estimates, at: tuple[int, int], x: Layer, y: Layer, asked: bool) -> Pair | None:
        """Write what is known of this pair, the interval where it is ``asked`` for, and give what others may tell."""
        m, t = self._m, self._t
        if not all((norm > 0).any() for norm in self._norms):
            found.notes.append(
                f"{m.name} has no score for layer {x.name!r} of A and {y.name!r} of B: at their common size all "
                "channels are constant."
            )
            return None
        alive = [int((norm > 0).sum()) for norm in self._norms]
        found.floor[at] = m.lowest(alive[0], alive[1], bool((x.low >= 0).all() and (y.low >= 0).all()))
        gains = m.gains(t.total[self._box], *self._norms)
        if self._how.draws:
            trace, chosen = m.best_trace(gains), m.best_map(gains) if self._how.intervals else None
        else:
            needed = self._how.intervals or t.unseen > 0
            trace, chosen = _best(m, gains) if needed else (m.best_trace(gains, quick=True), None)
            if trace > _NEAR * (min(alive) if m.scales else 1):
                cross, self._norms = t.precise(self._box)
                trace, chosen = _best(m, m.gains(cross, *self._norms), sure=True)
        adds = None if chosen is None else self._adds(chosen)
        bias, sampling = self._sampling(trace, adds) if adds is not None and t.unseen > 0 else (0.0, 0.0)
        sampling += _ROUNDED * (min(alive) if m.scales else 1) if t.rounded else 0.0
        centre = trace - bias
        found.scores[at] = score = self._score(centre)
        found.error[at] = max(self._score(centre + sampling) - score, score - self._score(centre - sampling))
        rest = Pair(at, partial(score_of, m, self._norms, self._ratio), centre)
        if self._how.intervals and adds is not None:
            folds, count = adds.sum(1), len(adds)
            spread = float(folds.square().sum()) * count / max(1, count - 1)
            rest.width = student_t(CONFIDENCE, max(1, count - 1)) * sqrt(spread)
            rest.rough = self._rough(trace, "folds")
            if asked:
                rest.bias = self._bias(trace, "folds")
                rest.write_interval(found, rest.bias)
        if len(t.shuffled):
            self._chance(found, at)
        return rest

    def _score(self, trace: float) -> float:
        return score_of(self._m, self._norms, self._ratio, trace)

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
        return float(noise.square().sum()) / (2 * typical)

    def _bias(self, trace: float, of: str) -> float:
        """How much a best map gains from noise: the mean of those of two halves, less that of the whole."""
        if self._t.cross.shape[of == "parts"] < 2:
            return 0.0
        found = []
        for which in (0, 1):
            half = slice(which, None, 2)
            chosen = (slice(None), half) if of == "parts" else (half, slice(None))
            norms = [s[chosen].sum((0, 1)).sqrt() for s in self._squares]
            norms = [torch.where(whole > 0, n, 0.0) for n, whole in zip(norms, self._norms)]
            if not all((n > 0).any() for n in norms):
                return 0.0
            found.append(self._m.best_trace(self._m.gains(self._t.half(of, which)[self._box], *norms), quick=True))
        return sum(found) / 2 - trace

    def _chance(self, found: Estimates, at: tuple[int, int]) -> None:
        exact = self._how.draws is not None
        few = not exact and min(part.stop - part.start for part in self._box) >= _WIDE
        traces: list[float] = []
        sizes: list[float] = []
        for cross in self._t.shuffled:
            gains = self._m.gains(cross[self._box], *self._norms)
            sizes.append(float(gains.norm()))
            if not few or len(traces) < _SOLVED:
                traces.append(self._m.best_trace(gains, quick=not exact))
        ratio = sum(traces) / max(sum(sizes[: len(traces)]), 1e-300)  # nearly the same in every shuffle
        traces += [size * ratio for size in sizes[len(traces) :]]
        drawn = torch.tensor([self._score(trace) for trace in traces], dtype=torch.float64)
        if exact:
            found.null[at] = drawn
            return
        found.chance[at] = float(drawn.mean())
        if len(drawn) > 1:
            judge(found, at, float(drawn.std()) * sqrt(1 + 1 / len(drawn)), len(drawn) - 1)


def score_of(m: Procrustes, norms: Sequence[Tensor], ratio: float, trace: float) -> float:
    """The score of a trace, in the measure's range."""
    least, most = m.range
    return min(most, max(least, m.score_trace(trace, norms[0], norms[1], ratio)))


def _best(m: Procrustes, gains: Tensor, sure: bool = False) -> tuple[float, Tensor]:
    """The best trace and its map, of wide matrices in float32 where that is precise enough."""
    if m.rotates and m.permutes and not sure and min(gains.shape) >= _WIDE:
        return polar(gains, quick=True)
    chosen = m.best_map(gains, sure)
    return float((chosen * gains).sum()), chosen
