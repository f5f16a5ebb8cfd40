"""Kernel alignment of all pairs of layers from Gram matrices of blocks of examples."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...._zoo_intervals import student_t
from ...measures.cka import CKA
from .estimates import SURE, Estimates, folds_of, living
from .permutations import Chance, spread_factor, third_moment, third_sums
from .statistics import LayerStatistics

_LEAST = 1e-12  # of the sum of squares of a kernel, below which nothing but rounding is left


def estimate_cka(
    measure: CKA,
    a: Sequence[LayerStatistics],
    b: Sequence[LayerStatistics],
    blocks: Sequence[int],
    confidence: float = 0.95,
) -> Estimates:
    r"""Estimate a CKA of all pairs of layers, with its error, its interval, and its exact chance level.

    With U-centred Gram matrices :math:`K_g, L_g` of blocks :math:`g` of examples the estimate is :math:`\sum_g
    \langle K_g, L_g \rangle / \sqrt{\sum_g |K_g|^2 \sum_g |L_g|^2}` (Nguyen, Raghu, Kornblith 2021): all examples are
    seen, and of their pairs those within a block. The interval is that of the infinitesimal jackknife over examples.
    The *error*, against the score of all pairs, is that of an incomplete U-statistic: with ``psi_ij`` what a pair of
    examples adds to the score, its variance is ``2 sum psi_ij^2`` times the share of pairs that were left out.
    Chance is that of shuffles within blocks, whose first three moments are closed forms.
    """
    found = Estimates.empty(len(a), len(b))
    rows, columns = living(a), living(b)
    if not rows or not columns:
        return found
    kernel = measure.kernel.name
    table = _PairSums(len(rows), len(columns))
    parts = folds_of(blocks)
    for g, (n, folds) in enumerate(zip(blocks, parts)):
        if n < 4:
            continue
        x, y = (torch.stack([side[k].grams[kernel][g] for k in some]) for side, some in ((a, rows), (b, columns)))
        table.add(x, y.to(x.device), n, folds)
    scores, error, low, high, chance = table.finish(blocks, confidence)
    least, most = measure.range
    index = torch.tensor(rows)[:, None], torch.tensor(columns)
    found.scores[index] = scores.clamp(least, most)
    found.error[index] = error
    found.low[index] = torch.minimum(scores, low).clamp(least, most)
    found.high[index] = torch.maximum(scores, high).clamp(least, most)
    found.chance[index], found.upper[index], found.p[index] = chance.mean, chance.quantile(), chance.p_value(scores)
    for side, some, silent in ((a, rows, table.silent[0]), (b, columns, table.silent[1])):
        found.notes += [
            f"{measure.name} has no score for layer {side[k].name!r} of {side[k].side}: features must tell examples "
            "apart."
            for k, nothing in zip(some, silent.tolist())
            if nothing
        ]
    return found


class _PairSums:
    """Sums over blocks, in float64."""

    def __init__(self, rows: int, columns: int) -> None:
        self._ab: list[Tensor] = []  # by fold
        self._aa: list[Tensor] = []
        self._bb: list[Tensor] = []
        self._fourth: list[tuple[Tensor, ...]] = []  # by block: K^2 L^2, K^3 L, K L^3, K^4, L^4
        self._second = torch.zeros(rows, columns, dtype=torch.float64)
        self._third = torch.zeros(rows, columns, dtype=torch.float64)
        self.silent = torch.zeros(rows, dtype=torch.bool), torch.zeros(columns, dtype=torch.bool)

    def add(self, x: Tensor, y: Tensor, n: int, folds: Sequence[slice]) -> None:
        """Take the Gram matrices of a block in, ``(L_a, n, n)`` and ``(L_b, n, n)``."""
        for rows in folds:
            u, v = x[:, rows].flatten(1).double(), y[:, rows].flatten(1).double()
            self._ab.append((u @ v.mT).cpu())
            self._aa.append(u.square().sum(1).cpu())
            self._bb.append(v.square().sum(1).cpu())
        u, v = x.flatten(1), y.flatten(1)
        size_u, size_v = (z.abs().amax(1, keepdim=True).clamp(min=1e-30) for z in (u, v))
        u, v = u / size_u, v / size_v  # fourth powers stay in the range of float32
        scale = [size_u.double() ** p @ size_v.double().mT ** q for p, q in ((2, 2), (3, 1), (1, 3))]
        powers = (u.square(), v.square()), (u.pow(3), v), (u, v.pow(3))
        crossed = [((p @ q.mT).double() * s).cpu() for (p, q), s in zip(powers, scale)]
        own = [(z.pow(4).sum(1).double() * s[:, 0].double() ** 4).cpu() for z, s in ((u, size_u), (v, size_v))]
        self._fourth.append((*crossed, *own))
        squares = (z.double().square().sum((1, 2)) for z in (x, y))
        self._second += spread_factor(n) * torch.outer(*squares).cpu()
        self._third += third_moment(n, third_sums(x), third_sums(y)).cpu()

    def finish(self, blocks: Sequence[int], confidence: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Chance]:
        """Scores, errors, ends of the intervals, and chance."""
        ab, aa, bb = (torch.stack(parts) for parts in (self._ab, self._aa, self._bb))
        total_a, total_b = aa.sum(0), bb.sum(0)
        self.silent = total_a <= 0, total_b <= 0
        size = torch.outer(total_a, total_b).sqrt()
        size = torch.where(size > 0, size, torch.nan)
        scores = ab.sum(0) / size
        share_a, share_b = aa / total_a.clamp(min=1e-300), bb / total_b.clamp(min=1e-300)
        pull = ab / size - scores / 2 * (share_a[:, :, None] + share_b[:, None, :])  # what each fold adds, about 0
        count = len(pull)
        deviation = (4 * pull.square().sum(0) * count / max(1, count - 1)).sqrt()
        width = student_t(confidence, max(1, count - 1)) * deviation
        seen = sum(n * n for n in blocks) / sum(blocks) ** 2
        k22, k31, k13, k40, k04 = (torch.stack(parts) for parts in zip(*self._fourth))
        spread = k22 * (1 + scores.square() / 2) / size.square()
        spread = spread + scores.square() / 4 * (
            (k40 / total_a.square())[:, :, None] + (k04 / total_b.square())[:, None, :]
        )
        spread = (spread - scores * (k31 / (total_a[:, None] * size) + k13 / (total_b * size))).clamp(min=0)
        error = _quantiles(spread) * (2 * spread.sum(0) * (1 - seen)).sqrt()
        second = self._second / size.square()
        third = self._third / size.pow(3)
        chance = Chance(torch.zeros_like(second), second.sqrt(), third / second.pow(1.5))
        return scores, error, scores - width, scores + width, chance


def _quantiles(spread: Tensor) -> Tensor:
    """How many deviations an error takes: more where few pairs of examples make most of the spread, ``(L_a, L_b)``.

    As many degrees of freedom as make the spreads of the blocks, ``(blocks, L_a, L_b)``, vary as they do
    (Satterthwaite), and no more than blocks, in Student's distribution, by the expansion of its quantile.
    """
    count = len(spread)
    if count < 2:
        return torch.full(spread.shape[1:], SURE, dtype=torch.float64)
    mean, variance = spread.mean(0), spread.var(0)
    freedom = (2 * count * mean.square() / variance.clamp(min=1e-300)).clamp(min=3, max=max(3, count - 1))
    z = SURE
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom.square())
