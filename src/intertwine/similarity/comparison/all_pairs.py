"""All pairs of layers of two networks by every measure, each in its fastest way; CKA from Gram matrices."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product, repeat
from typing import Any

import torch
from torch import Tensor

from ..._progress import track
from ..._zoo_intervals import student_t
from ...features import Point
from ..base import Measure
from ..inference import CONFIDENCE
from ..measures.cka import CKA
from ..measures.procrustes import Procrustes
from .block_grams import ESTIMATED, NORMALISED
from .chance import Chance, spread_factor, third_moment, third_sums
from .estimates import Estimates, How, folds_of
from .keepers import WholeLayer
from .layers import Layer, Network, channels_first_shape, chunks, common_space, pooling_note
from .procrustes import SHARE, estimate_procrustes, stack_sizes

_SURE = 1.959963984540054  # standard deviations that an error exceeds once in 20 times
_NUMBERS = 1 << 24  # numbers of a side that are upcast to float64 at a time: 128 MB
_ROUNDING = 6e-4  # rounding error of a score from bfloat16 products of channels, and from their sum
_HEAVY = 3.5  # skewness of one block beyond which no Pearson III fits: one Gaussian component has the root of 8
_SHUFFLES = 99  # shuffles drawn in that case


def estimate_cka(measure: CKA, a: Network, b: Network, how: How, found: Estimates, at: tuple[int, int]) -> None:
    r"""Score all pairs of layers by a CKA, from a row and column of ``found`` on, with errors, intervals and chance.

    With U-centred Gram matrices :math:`K_g, L_g` of blocks :math:`g` of examples the estimate is :math:`\sum_g \langle
    K_g, L_g \rangle / \sqrt{\sum_g |K_g|^2 \sum_g |L_g|^2}` (Nguyen, Raghu, Kornblith 2021). It uses pairs of examples
    within a block; with one block it is the unbiased CKA itself. The interval is that of the infinitesimal jackknife
    over examples. The *error*, against the score of all pairs, is that of an incomplete U-statistic: ``2 sum psi_ij^2``
    times the share of pairs left out, where ``psi_ij`` is what a pair adds to the score; if a channel is on in few
    examples, also what omitted pairs of these may add to the norms. Chance is that of shuffles within blocks, whose
    first three moments have closed forms, or of ``how.draws``.
    """
    draws, in_moments = how.draws, how.shuffled and how.draws is None
    rows, columns = a.living, b.living
    stacks: list[tuple[Tensor, Tensor]] = []
    for g, n in enumerate(a.blocks):
        if n >= 4:
            x, rows = _stacked(measure, a.layers, rows, g, found.notes)
            y, columns = (x, rows) if a is b else _stacked(measure, b.layers, columns, g, found.notes)
            stacks.append((x, y.to(x.device)))
    if not rows or not columns:
        return
    index = torch.tensor(rows)[:, None] + at[0], torch.tensor(columns) + at[1]
    least, most = measure.range
    table = _PairSums(len(rows), len(columns), len(a.blocks) > 1)
    for (x, y), folds in zip(stacks, (f for f, n in zip(folds_of(a.blocks), a.blocks) if n >= 4)):
        table.add(x, y, folds, in_moments)
        for p, order in enumerate(() if draws is None else draws.permutations.to(x.device)):
            shuffled = torch.stack([one.index_select(0, order).index_select(1, order) for one in y])
            found.null[(*index, p)] = _products(x, shuffled, x.dtype).clamp(least, most)  # centring commutes with it
    scores, error, width = table.finish(a.blocks)
    found.scores[index] = scores.clamp(least, most)
    rounded = measure.kernel.name != "gates" and any(name in a.layers[rows[0]].grams for name in NORMALISED)
    if measure.kernel.name in NORMALISED:
        unseen = [a.layers[i].unseen for i in rows], [b.layers[j].unseen for j in columns]
        error = error + table.unseen(*unseen, a.blocks, scores)
    found.error[index] = error + (_ROUNDING if rounded else 0.0)
    found.low[index], found.high[index] = (scores - width).clamp(least, most), (scores + width).clamp(least, most)
    if in_moments:
        upper, share = _judged(table.chance(), scores, stacks, table.size, how.seed)
        found.chance[index], found.upper[index], found.p[index] = 0.0, upper, share
    for layers, some, size in ((a.layers, rows, table.aa), (b.layers, columns, table.bb)):
        for k, nothing in zip(some, (size <= 0).tolist()):
            if nothing:
                more = ": exact=True scores those that differ by little" if draws is None else ""
                found.notes.append(_no_score(measure, layers[k], f"features must tell examples apart{more}."))


def _stacked(
    measure: CKA, layers: Sequence[Layer], chosen: list[int], block: int, notes: list[str]
) -> tuple[Tensor, list[int]]:
    """Gram matrices of the layers that have one, ``(L, n, n)``, and which layers these are; a note on each other."""
    found, kept = [], []
    for k in chosen:
        try:
            found.append(layers[k].gram(measure, block))
            kept.append(k)
        except ValueError as error:
            notes.append(_no_score(measure, layers[k], error))
    return torch.stack(found) if found else torch.empty(0), kept


def _no_score(measure: CKA, layer: Layer, why: object) -> str:
    return f"{measure.name} has no score for {layer.title}: {why}"


def _judged(
    chance: Chance, scores: Tensor, stacks: Sequence[tuple[Tensor, Tensor]], size: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """The 95 % quantile of chance and the p-values; from shuffles for pairs whose skewness no Pearson III has."""
    upper, p = chance.quantile(), chance.p_value(scores)
    heavy = chance.skewness > _HEAVY / len(stacks) ** 0.5
    if heavy.any():
        rows, columns = (heavy.any(dim).nonzero()[:, 0] for dim in (1, 0))
        cells, least = (rows[:, None], columns), 1 / (1 + _SHUFFLES)
        null = _shuffles([(x[rows], y[columns]) for x, y in stacks], seed) / size[cells]
        higher = (null >= scores[cells]).double().sum(0)
        drawn = torch.where(higher > 0, (1 + higher) * least, p[cells].clamp(max=least))
        quantile = null.quantile(0.95, 0, interpolation="higher")
        for known, by_shuffles in ((p, drawn), (upper, quantile)):
            known[cells] = torch.where(heavy[cells], by_shuffles, known[cells])
    return upper, p


def _shuffles(stacks: Sequence[tuple[Tensor, Tensor]], seed: int) -> Tensor:
    """Inner products of all pairs after the examples of each block were shuffled, ``(shuffles, L_a, L_b)``."""
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(_SHUFFLES):
        orders = [torch.randperm(x.shape[1], generator=generator).to(x.device) for x, _ in stacks]
        moved = [y.index_select(1, order).index_select(2, order) for (_, y), order in zip(stacks, orders)]
        found.append(sum(_products(x, y, x.dtype) for (x, _), y in zip(stacks, moved)))
    return torch.stack(found)  # type: ignore[arg-type]  # no sum is 0


def _products(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """Inner products of rows of some matrices, ``(L_a, L_b)`` in float64; so many rows at a time in ``dtype``."""
    height = max(1, _NUMBERS // (x.shape[2] * (len(x) + len(y))))
    total = torch.zeros(len(x), len(y), dtype=torch.float64, device=x.device)
    for u, v in zip(x.split(height, 1), y.split(height, 1)):
        total += (u.to(dtype).flatten(1) @ v.to(dtype).flatten(1).mT).double()
    return total.cpu()


class _PairSums:
    """Sums over blocks, in float64."""

    def __init__(self, rows: int, columns: int, incomplete: bool) -> None:
        self._incomplete = incomplete  # whether pairs of examples are left out
        self._folds: list[tuple[Tensor, Tensor, Tensor]] = []  # <K, L>, |K|^2, |L|^2
        self._fourth: list[tuple[Tensor, ...]] = []  # by block: K^2 L^2, K^3 L, K L^3, K^4, L^4
        self._second, self._third = torch.zeros(2, rows, columns, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor, folds: Sequence[slice], moments: bool) -> None:
        """Include the Gram matrices of a block, ``(L_a, n, n)`` and ``(L_b, n, n)``."""
        n = x.shape[1]
        for rows in folds:
            u, v = x[:, rows], y[:, rows]
            own = [torch.stack([z.double().square().sum() for z in side]).cpu() for side in (u, v)]
            self._folds.append((_products(u, v, torch.float64), own[0], own[1]))
        if self._incomplete:
            u, v = x.flatten(1), y.flatten(1)
            size_u, size_v = (z.abs().amax(1, keepdim=True).clamp(min=1e-30) for z in (u, v))
            u, v = u / size_u, v / size_v  # fourth powers stay in the range of float32
            scale = [size_u.double() ** p @ size_v.double().mT ** q for p, q in ((2, 2), (3, 1), (1, 3))]
            powers = (u.square(), v.square()), (u.pow(3), v), (u, v.pow(3))
            crossed = [((p @ q.mT).double() * s).cpu() for (p, q), s in zip(powers, scale)]
            fourth = [(z.pow(4).sum(1).double() * s[:, 0].double() ** 4).cpu() for z, s in ((u, size_u), (v, size_v))]
            self._fourth.append((*crossed, *fourth))
        if moments:
            self._second += spread_factor(n) * torch.outer(*(z.double().square().sum((1, 2)) for z in (x, y))).cpu()
            self._third += third_moment(n, third_sums(x).cpu(), third_sums(y).cpu())

    def finish(self, blocks: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, errors, and half-widths of the intervals."""
        ab, aa, bb = (torch.stack(parts) for parts in zip(*self._folds))
        self.aa, self.bb = aa.sum(0), bb.sum(0)
        size = torch.outer(self.aa, self.bb).sqrt()
        self.size = size = torch.where(size > 0, size, torch.nan)
        scores = ab.sum(0) / size
        share_a, share_b = aa / self.aa.clamp(min=1e-300), bb / self.bb.clamp(min=1e-300)
        pull = ab / size - scores / 2 * (share_a[:, :, None] + share_b[:, None, :])  # what each fold adds, about 0
        count = len(pull)
        width = (4 * pull.square().sum(0) * count / max(1, count - 1)).sqrt() * student_t(CONFIDENCE, max(1, count - 1))
        if not self._incomplete:
            return scores, torch.zeros_like(scores), width
        k22, k31, k13, k40, k04 = (torch.stack(parts) for parts in zip(*self._fourth))
        ends = (k40 / self.aa.square())[:, :, None] + (k04 / self.bb.square())[:, None, :]
        mixed = scores * (k31 / (self.aa[:, None] * size) + k13 / (self.bb * size))
        spread = (k22 * (1 + scores.square() / 2) / size.square() + scores.square() / 4 * ends - mixed).clamp(min=0)
        seen = sum(n * n for n in blocks) / sum(blocks) ** 2
        return scores, _quantiles(spread) * (2 * spread.sum(0) * (1 - seen)).sqrt(), width

    def unseen(self, a: Sequence[float], b: Sequence[float], blocks: Sequence[int], scores: Tensor) -> Tensor:
        """Possible loss of a score by pairs from different blocks, by the fourth powers they may add on each side."""
        seen = sum(n * n for n in blocks) / sum(blocks) ** 2
        x, y = (1 + seen * (2 * torch.tensor(u).double()).sqrt() / size for u, size in ((a, self.aa), (b, self.bb)))
        return scores.abs() * (1 - 1 / torch.outer(x, y).sqrt())

    def chance(self) -> Chance:
        """Distribution of scores over shuffles within blocks."""
        second, third = self._second / self.size.square(), self._third / self.size.pow(3)
        return Chance(second.sqrt(), third / second.pow(1.5))


def _quantiles(spread: Tensor) -> Tensor:
    """Number of deviations an error spans: more if few pairs of examples make most of the spread, ``(L_a, L_b)``.

    A quantile of Student's distribution, by its expansion, with as many degrees of freedom as make the spreads of the
    blocks, ``(blocks, L_a, L_b)``, vary as they do (Satterthwaite), and no more than there are blocks.
    """
    count, z = len(spread), _SURE
    if count < 2:
        return torch.full(spread.shape[1:], z, dtype=torch.float64)
    mean, variance = spread.mean(0), spread.var(0)
    freedom = (2 * count * mean.square() / variance.clamp(min=1e-300)).clamp(min=3, max=max(3, count - 1))
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom.square())


INTERRUPTED = "Interrupted: pairs of layers that were not reached have no score."
_GRAMS = 4  # parts of the memory, one for the Gram matrices of each network


def has_estimator(measure: Measure[Any]) -> bool:
    """Whether a measure follows from what one pass keeps: Procrustes, and unbiased CKA with kernels of channels."""
    return isinstance(measure, Procrustes) or (_by_grams(measure) and measure.kernel.name in ESTIMATED)  # type: ignore[attr-defined]


def score_all(
    measures: Sequence[Measure[Any]], a: Network, b: Network, how: How, what: str = "Comparing layers"
) -> dict[str, Estimates]:
    """Scores of all measures for all pairs of layers of two networks; Control-C leaves what has been scored so far."""
    size, draws = (len(a.layers), len(b.layers)), how.draws
    shuffles, halves, folds = (len(draws.permutations), len(draws.halves), len(draws.folds)) if draws else (0, 0, 0)
    crosses = [m for m in measures if isinstance(m, Procrustes)]
    alone = [m for m in measures if draws and not isinstance(m, Procrustes) and not _by_grams(m)]
    found = {m.name: Estimates(*size, shuffles, halves if m in alone else 0) for m in measures}

    def work() -> Iterator[None]:
        for m in measures:
            if isinstance(m, CKA) and _by_grams(m):
                yield from _by_tiles(m, a, b, how, found[m.name])
        yield from estimate_procrustes(crosses, a, b, how, found)
        for m in alone:
            yield from _one_by_one(m, a, b, how, found[m.name])

    try:
        for _ in track(work(), what, len(measures) * size[0] * size[1], how.progress):
            pass
    except KeyboardInterrupt:
        next(iter(found.values())).notes.append(INTERRUPTED)
    for m in measures:
        found[m.name].judge(m, a.blocks, folds)
    return found


def check_memory(
    measures: Sequence[Measure[Any]], a: Sequence[Point], b: Sequence[Point], examples: int, memory: int
) -> None:
    """Refuse early what would be refused after the networks ran: all that decides it is known before."""
    wide = any(p.dtype == torch.float64 for p in (*a, *b))
    for m in measures:
        if isinstance(m, Procrustes):
            for some, others in ((a, b), (b, a)):
                shapes = [channels_first_shape(p) for p in others]
                for shape in map(channels_first_shape, some):
                    list(chunks(stack_sizes([shape], shapes, examples, memory), memory, SHARE))
        elif m.pairwise:
            size = (12 if not _by_grams(m) else 8 if wide else 4) * examples**2
            list(chunks([size], memory, _GRAMS))


def _by_grams(measure: Measure[Any]) -> bool:
    return isinstance(measure, CKA) and measure.estimator == "unbiased"


def _by_tiles(measure: CKA, a: Network, b: Network, how: How, found: Estimates) -> Iterator[None]:
    """Score with one CKA, as many layers of either network at a time as fit in memory."""
    wide = lambda x: isinstance(x, WholeLayer) and x.stored.dtype == torch.float64
    sizes = [[(8 if wide(x) else 4) * a.examples**2 if how.draws else 0 for x in side.layers] for side in (a, b)]
    for rows, columns in product(*(list(chunks(some, how.memory, _GRAMS)) for some in sizes)):
        left = Network([a.layers[i] for i in rows], a.blocks)
        right = left if a is b and rows == columns else Network([b.layers[j] for j in columns], b.blocks)
        _forget((*a.layers, *b.layers), {id(layer) for layer in (*left.layers, *right.layers)})
        estimate_cka(measure, left, right, how, found, (rows.start, columns.start))
        yield from repeat(None, len(rows) * len(columns))
    _forget((*a.layers, *b.layers), set())


def _forget(layers: Sequence[Layer], but: set[int]) -> None:
    """Free the Gram matrices of layers that are no longer needed."""
    for layer in layers:
        if isinstance(layer, WholeLayer) and id(layer) not in but:
            layer.grams.clear()


def _one_by_one(measure: Measure[Any], a: Network, b: Network, how: How, found: Estimates) -> Iterator[None]:
    """Score with any kind of measure; what depends on one side alone is computed once for layers that fit in memory."""
    assert how.draws is not None
    sizes = [
        [12 * side.examples**2 if measure.pairwise else x.stored.nbytes // 4 for x in side.layers]  # type: ignore[attr-defined]
        for side in (a, b)
    ]
    for rows, columns in product(*(list(chunks(some, how.memory, _GRAMS)) for some in sizes)):
        known: dict[tuple[int, Any], Any] = {}  # by layer and spatial size
        cells: dict[tuple[int, int], list[Any]] = {}
        for i, j in product([i for i in rows if i in a.living], [j for j in columns if j in b.living]):
            both = a.layers[i], b.layers[j]
            # measures over pairs of examples have already summed over space
            space = None if measure.pairwise else common_space(both[0].space, both[1].space)
            with _noted(f"{measure.name} has no score for", both, found.notes):
                for one in both:
                    if (id(one), space) not in known:
                        known[id(one), space] = measure.prepare(one.features(space))  # type: ignore[attr-defined]
                pair = [known[id(one), space] for one in both]
                found.scores[i, j] = measure.score(*pair)
                cells[i, j] = pair
                floor = measure.floor(*pair)
                found.floor[i, j] = torch.nan if floor is None else floor
        for p, order in enumerate(how.draws.permutations):
            moved = {id(y): y.take(order) for _, y in cells.values()}
            for at, (x, y) in cells.items():
                found.null[(*at, p)] = measure.score(x, moved[id(y)])
        for h, half in enumerate(how.draws.subsamples):
            halved: dict[int, Any] = {}
            for (i, j), pair in cells.items():
                both = a.layers[i], b.layers[j]
                with _noted(f"{measure.name} left out halves of the examples for", both, found.notes):
                    for one in pair:
                        if id(one) not in halved:
                            halved[id(one)] = one.take(half)
                    found.halves[i, j, h] = measure.score(*(halved[id(one)] for one in pair))
        yield from repeat(None, len(rows) * len(columns))
    if not measure.pairwise:
        found.notes += pooling_note(measure.name, a.layers, b.layers)


@contextmanager
def _noted(what: str, pair: Sequence[Layer], notes: list[str]) -> Iterator[None]:
    """Turn a refusal into a note about a pair of layers."""
    try:
        yield
    except ValueError as error:
        notes.append(f"{what} {pair[0].title} and {pair[1].title}: {error}")
