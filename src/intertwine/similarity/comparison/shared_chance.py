"""Chance and bias that pairs of layers of equal shapes tell each other: the spread of shuffles, the fit to noise.

Wide layers take most of a comparison's time by their shuffles and halves. Where there are many pairs of them, every
third one has a shuffle of its own and halves, and tells of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch.nn.functional import one_hot

from ..._zoo_intervals import student_t
from .estimates import Estimates

_ENOUGH = 9  # degrees of freedom from which pairs tell of each other
_EVERY = 3  # one pair of so many tells of the others
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


def one_in(rows: int, columns: int) -> int:
    """One pair of how many is to be asked, so that it tells of the others; 0 where every pair must tell of itself."""
    left = lambda every: rows * columns // every - (rows + columns - 1)
    return next((every for every in (_EVERY, 1) if left(every) >= _ENOUGH), 0)


def judge(found: Estimates, at: tuple[int, int], deviation: float, freedom: int) -> None:
    """The 95 % quantile of chance, and the share of shuffles that score as high: Student's, by the spread of one."""
    from scipy.special import stdtr

    mean, score = float(found.chance[at]), float(found.scores[at])
    found.upper[at] = mean + student_t(0.9, freedom) * deviation
    found.p[at] = max(1e-300, float(stdtr(freedom, (mean - score) / max(deviation, _STEP))))


def tell(pairs: Sequence[Pair], found: Estimates) -> None:
    """Fill in what pairs tell of one another.

    The bias of a best map is in proportion to its rough size, by a factor that the pairs with halves tell. Chance is
    what a pair's row and column let expect together (additively). A shuffle differs from that by chance, or because the
    two do not add: both widen the spread of chance, with the degrees of freedom that are left.
    """
    halved = [(p.rough, p.bias) for p in pairs if p.bias is not None and p.width]
    if halved:
        size, bias = torch.tensor(halved, dtype=torch.float64).T
        factor = float((size * bias).sum() / size.square().sum().clamp(min=1e-300))
        off = float((bias - factor * size).square().mean().sqrt())
        for p in pairs:
            if p.bias is None and p.width:
                p.write_interval(found, factor * p.rough, off)
    known = [k for k, p in enumerate(pairs) if not found.chance[p.at].isnan()]
    if not known:
        return
    rows, columns = torch.tensor([p.at for p in pairs]).T
    every = torch.cat([one_hot(rows), one_hot(columns)], 1).double()
    inverse = torch.linalg.pinv(every[known])
    levels = found.chance[rows, columns][known]
    effects, freedom = inverse @ levels, len(known) - int(torch.linalg.matrix_rank(every[known]))
    if freedom > 0:
        deviation = sqrt(float((levels - every[known] @ effects).square().sum()) / freedom)
        for p, design in zip(pairs, every):
            found.chance[p.at] = float(design @ effects)
            judge(found, p.at, deviation * sqrt(1 + float((design @ inverse).square().sum())), freedom)
