"""Scores of one measure for all pairs of layers, with what judges them, whichever way they were found."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, lgamma
from typing import Any

import torch

from ..base import Measure
from ..inference import CONFIDENCE, Draws, best_p_values, by_cell, calibrate, excess, interval, p_value


@dataclass(frozen=True)
class How:
    """How scores are judged, and in how much memory: by ``draws`` where all examples and positions count."""

    draws: Draws | None = None
    shuffled: bool = True
    intervals: bool = True
    seed: int = 0
    memory: int = 1 << 40
    progress: bool | None = False
    paired: bool = False  # whether wide layers are scored with their counterparts alone, by what takes a map


class Estimates:
    """Scores of all pairs of layers and what judges them, ``(L_a, L_b)`` each; NaN where ``notes`` says why."""

    def __init__(self, rows: int, columns: int, shuffles: int = 0, halves: int = 0) -> None:
        unknown = lambda *more: torch.full((rows, columns, *more), torch.nan, dtype=torch.float64)
        self.scores = unknown()
        self.error = unknown()  # within which the score of all pairs of examples and positions lies, 19 times of 20
        self.low, self.high = unknown(), unknown()  # ends of the intervals over examples
        # of shuffled examples: mean and 95 % quantile of the scores, and the share that is at least as high
        self.chance, self.upper, self.p = unknown(), unknown(), unknown()
        self.least_p = 0.0  # the lowest possible one
        self.floor = unknown()  # the lowest possible score where it is known
        self.null = unknown(shuffles)  # single shuffles, the same for all pairs, where they were taken
        self.halves = unknown(halves)  # scores of halves of the examples, where they were taken
        self.notes: list[str] = []

    def judge(self, measure: Measure[Any], blocks: Sequence[int], folds: int) -> None:
        """Fill in chance from single shuffles, and intervals from halves, where there are any.

        Nothing is known of pairs without a score, and no p-value is below one of all orders within the blocks.
        """
        if self.null.shape[2]:
            self.chance = self.null.nanmean(2)
            self.p = by_cell(p_value, self.scores, self.null)
        self.least_p = exp(-sum(lgamma(n + 1) for n in blocks))
        self.p.clamp_(min=self.least_p)
        if self.halves.shape[2] and measure.has_limit:
            for k, end in enumerate((self.low, self.high)):
                of = lambda score, drawn, k=k: interval(measure, score, drawn, sum(blocks), CONFIDENCE, folds)[k]
                end.copy_(by_cell(of, self.scores, self.halves, fewest=2))
        unknown = self.scores.isnan()
        for known in (self.error, self.low, self.high, self.chance, self.upper, self.p, self.floor, self.null):
            known[unknown] = torch.nan

    def columns(self, measure: Measure[Any], shuffled: bool, intervals: bool, exact: bool) -> dict[str, Any]:
        """Fields of a comparison; ``None`` for what was not asked."""
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
