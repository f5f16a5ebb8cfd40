"""Estimates of one measure for all pairs of layers, with their errors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .statistics import LayerStatistics

SURE = 1.959963984540054  # standard deviations of an error that is exceeded once in 20 times


@dataclass
class Estimates:
    """Scores of all pairs of layers, ``(L_a, L_b)`` each; NaN where ``notes`` says why.

    Attributes:
        scores: The estimates.
        error: Within which the score of all pairs of examples and all positions lies, 19 times of 20.
        low: Lower ends of the intervals over examples.
        high: Upper ends.
        chance: Mean score of shuffled examples.
        upper: The 95 % quantile of the scores of shuffled examples.
        p: Share of shuffles that score at least as high.
        floor: The lowest possible score where it is known.
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
    notes: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, rows: int, columns: int) -> "Estimates":
        """Nothing known."""

        def unknown() -> Tensor:
            return torch.full((rows, columns), torch.nan, dtype=torch.float64)

        return cls(*(unknown(), unknown(), unknown(), unknown()), *(unknown(), unknown(), unknown(), unknown()))

    def summary(self, resampled: bool, intervals: bool, limit: bool) -> dict[str, Any]:
        """Fields of a comparison; ``None`` for what was not asked."""
        found: dict[str, Any] = dict.fromkeys(("low", "high", "chance", "null_p", "best_p", "calibrated", "floor"))
        found |= {"scores": self.scores, "error": self.error}
        if not self.floor.isnan().all():
            found["floor"] = self.floor
        if resampled:
            found |= {"chance": self.chance, "null_p": self.p}
            columns = (~self.scores.isnan()).sum(1)
            best = self.scores.nan_to_num(nan=-torch.inf).argmax(1)
            p = self.p.gather(1, best[:, None])[:, 0]
            found["best_p"] = (p * columns).clamp(max=1)  # Bonferroni: the best of many scores is high more often
            beyond = (self.scores - self.upper) / (1 - self.upper).clamp(min=1e-9)
            found["calibrated"] = beyond.clamp(min=0)
        if intervals and limit:
            found |= {"low": self.low, "high": self.high}
        return found


def living(layers: Sequence[LayerStatistics]) -> list[int]:
    """The layers that can have a score."""
    return [k for k, layer in enumerate(layers) if not layer.silent]


def folds_of(blocks: Sequence[int], wanted: int = 20) -> list[list[slice]]:
    """Parts of the examples of each block, about ``wanted`` in all, for intervals."""
    total = sum(blocks)
    found = []
    for n in blocks:
        count = max(1, min(n // 2, round(wanted * n / total)))
        edges = [round(k * n / count) for k in range(count + 1)]
        found.append([slice(a, b) for a, b in pairwise(edges)])
    return found
