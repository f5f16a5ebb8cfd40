"""Scores of one measure for all pairs of layers, with what judges them, whichever way they were found."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..base import Measure
from ..inference import CONFIDENCE, best_p_values, by_cell, calibrate, interval, p_value

PARTS = ("scores", "error", "low", "high", "chance", "upper", "p", "floor")


@dataclass
class Estimates:
    """Scores of all pairs of layers, ``(L_a, L_b)`` each; NaN where ``notes`` says why.

    Attributes:
        scores: The scores.
        error: Within which the score of all pairs of examples and all positions lies, 19 times of 20.
        low: Lower ends of the intervals over examples.
        high: Upper ends.
        chance: Mean score of shuffled examples.
        upper: The 95 % quantile of the scores of shuffled examples.
        p: Share of shuffles that score at least as high.
        floor: The lowest possible score where it is known.
        null: Scores of single shuffles, the same for all pairs, ``(L_a, L_b, shuffles)``, where they were taken.
        halves: Scores of halves of the examples, ``(L_a, L_b, halves)``, where they were taken.
        notes: What a reader must know.
    """

    scores: Tensor
    error: Tensor
    low: Tensor
    high: Tensor
    chance: Tensor
    upper: Tensor
    p: Tensor
    floor: Tensor
    null: Tensor
    halves: Tensor
    notes: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, rows: int, columns: int, shuffles: int = 0, halves: int = 0) -> "Estimates":
        """Nothing known."""
        shapes = [()] * len(PARTS) + [(shuffles,), (halves,)]
        parts: list[Any] = [torch.full((rows, columns, *s), torch.nan, dtype=torch.float64) for s in shapes]
        return cls(*parts)

    def put(self, box: tuple[slice, slice], part: "Estimates") -> None:
        """Take over what was found for some rows and columns."""
        for name in (*PARTS, "null", "halves"):
            getattr(self, name)[box] = getattr(part, name)
        self.notes += part.notes

    def judge(self, measure: Measure[Any], examples: int, folds: int) -> None:
        """Fill in chance from single shuffles, and intervals from halves, where there are any."""
        if self.null.shape[2]:
            self.chance = self.null.nanmean(2)
            self.p = by_cell(p_value, self.scores, self.null)
        if self.halves.shape[2] and measure.has_limit:
            for k, end in enumerate((self.low, self.high)):
                of = lambda score, drawn, k=k: interval(measure, score, drawn, examples, CONFIDENCE, folds)[k]
                end.copy_(by_cell(of, self.scores, self.halves, fewest=2))

    def columns(self, measure: Measure[Any], shuffled: bool, intervals: bool, exact: bool) -> dict[str, Any]:
        """Fields of a comparison; ``None`` for what was not asked."""
        found: dict[str, Any] = dict.fromkeys(("low", "high", "chance", "null_p", "best_p", "calibrated", "floor"))
        found |= {"scores": self.scores, "error": None if exact else self.error}
        if not self.floor.isnan().all():
            found["floor"] = self.floor
        if shuffled:
            found |= {"chance": self.chance, "null_p": self.p}
            excess = (self.scores - self.chance) / (1 - self.chance).clamp(min=1e-9)
            if self.null.shape[2]:
                chance = self.chance[:, :, None]
                found["best_p"] = best_p_values(excess, (self.null - chance) / (1 - chance).clamp(min=1e-9))
                found["calibrated"] = by_cell(calibrate, self.scores, self.null)
            else:
                p = self.p.gather(1, excess.nan_to_num(nan=-torch.inf).argmax(1)[:, None])[:, 0]
                columns = (~self.scores.isnan()).sum(1)
                found["best_p"] = (p * columns).clamp(max=1)  # Bonferroni: the best of many scores is high more often
                found["calibrated"] = ((self.scores - self.upper) / (1 - self.upper).clamp(min=1e-9)).clamp(min=0)
        if intervals and measure.has_limit and not self.low.isnan().all():
            found |= {"low": self.low, "high": self.high}
        return found


def folds_of(blocks: Sequence[int], wanted: int = 20) -> list[list[slice]]:
    """Parts of the examples of each block, about ``wanted`` in all, for intervals."""
    found = []
    for n in blocks:
        count = max(1, min(n // 2, round(wanted * n / sum(blocks))))
        edges = [round(k * n / count) for k in range(count + 1)]
        found.append([slice(a, b) for a, b in pairwise(edges)])
    return found
