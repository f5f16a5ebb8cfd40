"""Scores of one measure for all pairs of layers, with what judges them, however they were found.

Shuffles and halves of wide layers take most of a comparison's time. Where many pairs of them have equal shapes, every
third pair has a shuffle of its own, and every third of these has halves. These pairs tell about the others: the spread
of shuffles, and how much a best map gains from noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, lgamma
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..._zoo_intervals import student_t
from ..base import Measure
from ..inference import CONFIDENCE, Draws, best_p_values, by_cell, calibrate, excess, interval, p_value

_ENOUGH = 9  # degrees of freedom from which pairs can tell about each other
_EVERY = 3  # one pair in so many tells about the others
_LEAST = 1e-6  # smallest p-value: a fitted tail knows nothing of chance further out
_STEP = 1e-6  # a smaller spread of scores is rounding


@dataclass(frozen=True)
class How:
    """How scores are judged, and in how much memory; with ``draws``, all examples and positions count."""

    draws: Draws | None = None
    shuffled: bool = True
    intervals: bool = True
    seed: int = 0
    memory: int = 1 << 40
    progress: bool | None = False
    paired: bool = False  # whether measures that take a map score wide layers with their counterparts only


class Estimates:
    """Scores of all pairs of layers and what judges them, ``(L_a, L_b)`` each; NaN where ``notes`` says why."""

    def __init__(self, rows: int, columns: int, shuffles: int = 0, halves: int = 0) -> None:
        unknown = lambda *more: torch.full((rows, columns, *more), torch.nan, dtype=torch.float64)
        self.scores = unknown()
        self.error = unknown()  # bound for the score of all pairs of examples and positions, 19 times out of 20
        self.low, self.high = unknown(), unknown()  # ends of the intervals over examples
        # for shuffled examples: mean and 95 % quantile of the scores, and the share that is at least as high
        self.chance, self.upper, self.p = unknown(), unknown(), unknown()
        self.least_p = 0.0  # the lowest possible p-value
        self.floor = unknown()  # the lowest possible score where it is known
        self.null = unknown(shuffles)  # scores of single shuffles, the same for all pairs, where taken
        self.halves = unknown(halves)  # scores of halves of the examples, where they were taken
        self.notes: list[str] = []

    def judge(self, measure: Measure[Any], blocks: Sequence[int], folds: int) -> None:
        """Fill in chance from single shuffles, and intervals from halves, where there are any, for known scores."""
        if self.null.shape[2]:
            self.chance = self.null.nanmean(2)
            self.p = by_cell(p_value, self.scores, self.null)
        self.least_p = max(_LEAST, exp(-sum(lgamma(n + 1) for n in blocks)))
        self.p.clamp_(min=self.least_p)
        if self.halves.shape[2] and measure.has_limit:
            for k, end in enumerate((self.low, self.high)):
                of = lambda score, drawn, k=k: interval(measure, score, drawn, sum(blocks), CONFIDENCE, folds)[k]
                end.copy_(by_cell(of, self.scores, self.halves, fewest=2))
        unknown = self.scores.isnan()
        for known in (self.error, self.low, self.high, self.chance, self.upper, self.p, self.floor, self.null):
            known[unknown] = torch.nan

    def columns(self, measure: Measure[Any], shuffled: bool, intervals: bool, exact: bool) -> dict[str, Any]:
        """Fields of a comparison; ``None`` for what was not asked for."""
        found: dict[str, Any] = dict.fromkeys(("low", "high", "chance", "null_p", "best_p", "calibrated"))
        found |= {"scores": self.scores, "error": None if exact else self.error}
        found["floor"] = None if self.floor.isnan().all() else self.floor
        if shuffled:
            above = excess(self.scores, self.chance)
            found |= {"chance": self.chance, "null_p": self.p}
            if self.null.shape[2]:
                best = best_p_values(above, excess(self.null, self.chance[:, :, None]))
                found["best_p"] = best.clamp(min=self.least_p)
                found["calibrated"] = by_cell(calibrate, self.scores, self.null)
            else:
                p = self.p.gather(1, above.nan_to_num(nan=-torch.inf).argmax(1)[:, None])[:, 0]
                columns = (~self.scores.isnan()).sum(1)
                found["best_p"] = (p * columns).clamp(max=1)  # Bonferroni: the best of many scores is high more often
                found["calibrated"] = excess(self.scores, self.upper).clamp(min=0)
        if intervals and measure.has_limit and not self.low.isnan().all():
            found |= {"low": self.low, "high": self.high}
        return found


def parts_of(examples: int, count: int) -> list[slice]:
    """Near-equal parts of some examples, in order."""
    edges = [round(k * examples / count) for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def folds_of(blocks: Sequence[int], wanted: int = 20) -> list[list[slice]]:
    """Parts of the examples of each block, about ``wanted`` in all, for intervals."""
    return [parts_of(n, max(1, min(n // 2, round(wanted * n / sum(blocks))))) for n in blocks]


@dataclass
class Pairs:
    """What is known of some pairs of layers before the others are consulted, ``(k,)`` each."""

    at: Tensor  # rows and columns, ``(2, k)``
    score_of: Callable[[Tensor], Tensor]  # from traces to scores
    centre: Tensor  # the traces
    width: Tensor | None = None  # half-widths of their intervals, if these are asked for
    rough: Tensor | None = None  # rough sizes of the biases of the best maps, from the distance of two halves
    bias: Tensor | None = None  # the biases, where best maps of the halves were searched

    def write_intervals(self, found: Estimates, bias: Tensor, more: float = 0.0) -> None:
        """Write the ends of the intervals over examples, widened by ``more``."""
        assert self.width is not None
        middle, width, scores = self.centre - bias, self.width + more, found.scores[*self.at]
        found.low[*self.at] = torch.minimum(scores, self.score_of(middle - width))
        found.high[*self.at] = torch.maximum(scores, self.score_of(middle + width))


def one_in(rows: int, columns: int) -> int:
    """One pair in how many to ask, so that it tells about the others; 0 if every pair must tell about itself."""
    left = lambda every: rows * columns // every - (rows + columns - 1)
    return next((every for every in (_EVERY, 1) if left(every) >= _ENOUGH), 0)


def is_asked(row: int, column: int, every: int) -> bool:
    """Whether a pair is one in so many; rows share only some columns, so that the levels of both can be told apart."""
    return not every or (row + column + row // every * (column // every)) % every == 0


def judge(found: Estimates, at: Tensor, deviation: Tensor, freedom: int) -> None:
    """Fill in the 95 % quantile of chance and the p-value, by Student's distribution with one shuffle's spread."""
    from scipy.special import stdtr

    mean = found.chance[*at]
    found.upper[*at] = mean + student_t(0.9, freedom) * deviation
    below = (mean - found.scores[*at]) / deviation.clamp(min=_STEP)
    found.p[*at] = torch.as_tensor(stdtr(freedom, below.numpy())).clamp(min=1e-300)


def tell(several: Sequence[Pairs], found: Estimates) -> None:
    """Fill in what pairs tell about one another.

    The bias of a best map is proportional to its rough size, by a factor that the pairs with halves give. Chance is
    what a pair's row and column together let one expect (additively). A shuffle differs from that by chance, or because
    the two do not add: both widen the spread of chance, with the degrees of freedom that are left.
    """
    halved = [(p.rough, p.bias) for p in several if p.rough is not None and p.bias is not None]
    if halved:
        size, bias = map(torch.cat, zip(*halved))
        factor = (size * bias).sum() / size.square().sum().clamp(min=1e-300)
        off = float((bias - factor * size).square().mean().sqrt())
        for p in several:
            if p.bias is None and p.rough is not None:
                p.write_intervals(found, factor * p.rough, off)
    at = torch.cat([p.at for p in several], 1)
    levels = found.chance[*at]
    known = ~levels.isnan()
    every = torch.cat([one_hot(of) for of in at], 1).double()
    freedom = int(known.sum()) - int(torch.linalg.matrix_rank(every[known])) if known.any() else 0
    if freedom > 0:
        inverse = torch.linalg.pinv(every[known])
        found.chance[*at] = expected = every @ (inverse @ levels[known])
        deviation = ((levels - expected)[known].square().sum() / freedom).sqrt()
        judge(found, at, deviation * (1 + (every @ inverse).square().sum(1)).sqrt(), freedom)
