"""Chance and bias that pairs of layers of equal shapes tell each other: the spread of shuffles, the fit to noise.

Wide layers take most of a comparison's time by their shuffles and halves. Where there are many pairs of them, each has
one shuffle of its own, and every third one halves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch.nn.functional import one_hot

from ..._zoo_intervals import student_t
from .estimates import Estimates

ENOUGH = 9  # degrees of freedom from which pairs tell of each other
_STEP = 1e-6  # a smaller spread of scores is rounding


@dataclass
class Pair:
    """What is known of a pair of layers before the others are asked."""

    at: tuple[int, int]
    score_of: Callable[[float], float]  # a trace
    centre: float  # the trace
    width: float = 0.0  # of half its interval; 0 where none is asked for
    rough: float = 0.0  # size of the bias of the best map, by the distance of two halves
    bias: float | None = None  # where best maps of the halves were searched

    def write_interval(self, found: Estimates, bias: float, more: float = 0.0) -> None:
        """The ends of the interval over examples, wider by ``more``."""
        middle, width, score = self.centre - bias, self.width + more, float(found.scores[self.at])
        found.low[self.at] = min(score, self.score_of(middle - width))
        found.high[self.at] = max(score, self.score_of(middle + width))


def judge(found: Estimates, at: tuple[int, int], deviation: float, freedom: int) -> None:
    """The 95 % quantile of chance, and the share of shuffles that score as high: Student's, by the spread of one."""
    from scipy.special import stdtr

    mean, score = float(found.chance[at]), float(found.scores[at])
    found.upper[at] = mean + student_t(0.9, freedom) * deviation
    found.p[at] = max(1e-300, float(stdtr(freedom, (mean - score) / max(deviation, _STEP))))


def tell(pairs: Sequence[Pair], found: Estimates) -> None:
    """Fill in what pairs tell of one another.

    The bias of a best map is in proportion to its rough size, by a factor that the pairs with halves tell. A shuffle of
    a pair differs from what its row and column let expect together (additively) by chance, or because the two do not
    add: both widen the spread of chance, with the degrees of freedom that are left.
    """
    halved = [(p.rough, p.bias) for p in pairs if p.bias is not None and p.width]
    if halved:
        size, bias = torch.tensor(halved, dtype=torch.float64).T
        factor = float((size * bias).sum() / size.square().sum().clamp(min=1e-300))
        off = float((bias - factor * size).square().mean().sqrt())
        for p in pairs:
            if p.bias is None and p.width:
                p.write_interval(found, factor * p.rough, off)
    if not pairs or found.chance[pairs[0].at].isnan():
        return
    rows, columns = torch.tensor([p.at for p in pairs]).T
    design, levels = torch.cat([one_hot(rows), one_hot(columns)], 1).double(), found.chance[rows, columns][:, None]
    freedom = len(pairs) - int(torch.linalg.matrix_rank(design))
    left = levels - design @ torch.linalg.lstsq(design, levels, driver="gelsd").solution
    if freedom > 0:
        deviation = sqrt(2 * float(left.square().sum()) / freedom)  # of one shuffle from another
        for p in pairs:
            judge(found, p.at, deviation, freedom)
