"""Inference for a similarity: chance level, p-value, calibrated score and confidence interval of any measure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, nan, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import check_module
from .._words import check_share, check_whole
from .._zoo_intervals import student_t
from ._features import check_same_examples
from .base import Measure
from .registry import measure as find

CONFIDENCE = 0.95
_TIE = 1e-6  # rounding changes scores of float32 features by less
_FOLDS, _FEWEST = 20, 8  # folds, and examples: half of them must be enough for the unbiased estimators
Untrained = int | tuple[nn.Module | Sequence[nn.Module], nn.Module | Sequence[nn.Module]]


@dataclass(frozen=True)
class Resampling:
    """Random draws that judge a score: shuffles, halves of the examples, fresh weights.

    Attributes:
        null: Shuffles of the examples for chance levels, p-values and calibrated scores; 0 for none.
        bootstrap: Random halves of the examples, drawn without replacement, for the intervals; 0 for none.
        untrained: Number of copies of each network that get fresh weights from the model's own code, each with its own
            seed; each copy of A is compared with one of B. If A and B share an architecture, the copies stand for both
            and every two are compared. 0 skips this, and so does ``null=0``. Or networks built like A and B, in pairs:
            ``(a0, b0)`` or ``([a0, a1], [b0, b1])``; with ``(nets, nets)`` every two are compared.
        seed: Seed of all these draws: the same seed gives the same numbers.

    Raises:
        TypeError: If ``untrained`` is anything but a number or modules.
        ValueError: If a number is negative, ``bootstrap`` is 1, or networks are not given for both sides.
    """

    null: int = 20
    bootstrap: int = 20
    untrained: Untrained = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "untrained" and isinstance(value, tuple | list):
                given(value)
                continue
            check_whole(name, value)
            if name != "seed" and value < 0:
                raise ValueError(f"{name} must be 0 or more. Got {value}.")
        if self.bootstrap == 1:
            raise ValueError("bootstrap must be 0 or at least 2: one half has no spread. Got 1.")


RESAMPLING = Resampling()
NO_RESAMPLING = Resampling(0, 0, 0)


def given(untrained: Any) -> tuple[list[nn.Module], list[nn.Module]]:
    """Untrained networks that the caller built."""
    if len(untrained) != 2:
        raise ValueError(f"untrained must be (a0, b0): one built as A and one as B. Got {len(untrained)}.")
    a, b = ([one] if isinstance(one, nn.Module) else list(one) for one in untrained)
    for model in (*a, *b):
        check_module(model, "untrained")
    if not len(a) == len(b) > 0:
        raise ValueError(f"untrained must hold equally many networks built as A and as B. Got {len(a)} and {len(b)}.")
    return a, b


@dataclass(frozen=True)
class Draws:
    """Shuffles and halves of the examples, drawn once and used for all pairs of layers.

    Halves are unions of random folds, without repeated examples: repeats would lift the unbiased CKA of independent
    features from 0 to 0.97. Shuffles are rotations of one random wheel, drawn without replacement from that group, so
    p-values are exact (Hemerik and Goeman, "Exact testing with random permutations", TEST 2018). The ``N mod parts``
    examples that fit no part, as few as possible, keep their partners.
    """

    permutations: Tensor  # ``(shuffles, N)``
    folds: tuple[Tensor, ...]  # random, disjoint parts of the examples; one, in order, where there are no halves
    halves: Tensor  # ``(halves, folds)`` bool: the folds of each half

    @classmethod
    def make(cls, examples: int, null: int, bootstrap: int, seed: int) -> "Draws":
        """Draw ``null`` shuffles and ``bootstrap`` halves of ``examples``; below 8 examples there are no halves."""
        g = torch.Generator().manual_seed(seed)
        permutations = _shuffles(examples, null, g)
        if bootstrap == 0 or examples < _FEWEST:
            return cls(permutations, (torch.arange(examples),), torch.ones(0, 1, dtype=torch.bool))
        order, parts = torch.randperm(examples, generator=g), min(_FOLDS, examples // 2) // 2 * 2
        halves = torch.zeros(bootstrap, parts, dtype=torch.bool)
        for half in halves:
            half[torch.randperm(parts, generator=g)[: parts // 2]] = True
        return cls(permutations, order.tensor_split(parts), halves)

    @cached_property
    def subsamples(self) -> tuple[Tensor, ...]:
        """The examples of each half, fold by fold."""
        return tuple(torch.cat([f for f, chosen in zip(self.folds, half) if chosen]) for half in self.halves)


def _shuffles(examples: int, count: int, generator: torch.Generator) -> Tensor:
    """Rotations of one wheel; independent permutations if there are too few examples for a wheel."""
    most = min(examples, 3 * count + 3)
    permutations = torch.arange(examples).repeat(count, 1)
    if not 0 < count < most:
        for order in permutations:
            order.copy_(torch.randperm(examples, generator=generator))
        return permutations
    parts = min(range(count + 1, most + 1), key=lambda n: (examples % n, n))
    wheel = torch.randperm(examples, generator=generator)[: examples // parts * parts].view(parts, -1)
    turns = torch.randperm(parts - 1, generator=generator)[:count] + 1
    for order, turn in zip(permutations, turns.tolist()):
        order[wheel] = wheel.roll(-turn, 0)
    return permutations


@dataclass(frozen=True)
class Inference:
    """A score with everything needed to judge it."""

    measure: str  # Name of the measure
    score: float  # The similarity
    chance: float  # Mean score after the examples of one side were shuffled
    p_value: float  # Share of shuffles that score at least as high, counting the true order as one
    calibrated: float  # 0 at or below the upper 5 % of chance, 1 for equal sides (see :func:`calibrate`)
    low: float  # Lower end of the confidence interval; NaN for measures without one
    high: float  # Upper end
    confidence: float  # Nominal coverage of the interval
    floor: float | None  # Lowest possible score, where it is known
    n: int  # Number of examples
    dead: tuple[int, int]  # Dead channels of the two sides, left out of the score


def infer(
    x: Tensor,
    y: Tensor,
    measure: str | Measure[Any] = "linear_cka",
    *,
    null: int = 99,
    bootstrap: int = 99,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    channel_dim: int = 1,
) -> Inference:
    """Score two sets of features ``(N, C, *S)``, with chance level, p-value and confidence interval.

    With ``null`` shuffles, the smallest possible p-value is ``1 / (null + 1)``; the interval comes from ``bootstrap``
    halves (:class:`Draws`).

    Raises:
        ValueError: If the measure refuses the features, there are fewer than 8 examples, or too few shuffles or draws.

    Examples:
        >>> import torch
        >>> from intertwine.similarity.inference import infer
        >>> g = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(64, 10, generator=g).relu(), torch.randn(64, 10, generator=g).relu()
        >>> chance = infer(x, y, "g_relu_procrustes")  # unrelated, yet far from 0
        >>> chance.score > 0.4 and chance.p_value > 0.05, chance.calibrated
        (True, 0.0)
        >>> same = infer(x, x + 0.01 * y, "g_relu_procrustes")
        >>> same.p_value, same.calibrated > 0.98
        (0.01, True)
    """
    m = find(measure)
    a, b = m.prepare(x, channel_dim), m.prepare(y, channel_dim)
    check_same_examples(a.n, b.n)
    for name, value, least in (("null", null, 1), ("bootstrap", bootstrap, 2), ("examples", a.n, _FEWEST)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}. Got {value}.")
    score, draws = m.score(a, b), Draws.make(a.n, null, bootstrap if m.has_limit else 0, seed)
    shuffled = torch.tensor([m.score(a, b.take(order)) for order in draws.permutations], dtype=torch.float64)
    halves = torch.tensor([m.score(a.take(half), b.take(half)) for half in draws.subsamples], dtype=torch.float64)
    low, high = interval(m, score, halves, a.n, confidence, len(draws.folds)) if len(halves) else (nan, nan)
    chance, p, calibrated = float(shuffled.mean()), p_value(score, shuffled), calibrate(score, shuffled)
    return Inference(m.name, score, chance, p, calibrated, low, high, confidence, m.floor(a, b), a.n, (a.dead, b.dead))


def p_value(score: float, null: Tensor) -> float:
    """Share of null scores at least as high as ``score``, up to rounding of 1e-6, counting itself (so never 0)."""
    return (1 + int((null >= score - _TIE).sum())) / (1 + len(null))


def best_p_values(scores: Tensor, null: Tensor) -> Tensor:
    """P-value of every row's highest score, ``(L_a,)``, against the best of each shuffle rather than one column.

    ``scores`` are ``(L_a, L_b)``, NaN where there is none; ``null`` holds the shuffles: ``(L_a, L_b, shuffles)``.
    """
    known = lambda x: torch.where(x > -torch.inf, x, torch.nan)
    left_out = null.isnan() | scores.isnan()[:, :, None]
    best, chance = scores.nan_to_num(nan=-torch.inf).amax(1), null.masked_fill(left_out, -torch.inf).amax(1)
    return by_cell(p_value, known(best), known(chance), fewest=0)


def excess(scores: Tensor, level: Tensor) -> Tensor:
    """Height of scores above a level, as a share of the way to 1."""
    return (scores - level) / (1 - level).clamp(min=1e-9)


def calibrate(score: float, null: Tensor, quantile: float = 0.95) -> float:
    """Score on a scale where chance is 0: ``max(0, (score - c) / (1 - c))``, with ``c`` the ``quantile`` of the null.

    Scores of different measures, widths and layers can be compared on this scale; it is 0 where even chance reaches 1.
    """
    c = float(null.sort().values[ceil(quantile * (len(null) - 1))])  # the higher one of two neighbours
    return (score - c) / (1 - c) if c < min(score, 1.0) - _TIE else 0.0


def by_cell(summarise: Callable[[float, Tensor], float], scores: Tensor, samples: Tensor, fewest: int = 1) -> Tensor:
    """Apply a summary to the samples of every cell that has a score and enough samples; NaN samples are left out."""
    out = torch.full_like(scores, torch.nan)
    for at in map(tuple, (~scores.isnan()).nonzero().tolist()):
        valid = samples[at][~samples[at].isnan()]
        if len(valid) >= fewest:
            out[at] = summarise(float(scores[at]), valid)
    return out


def interval(
    m: Measure[Any], score: float, halves: Tensor, n: int, confidence: float = CONFIDENCE, parts: int | None = None
) -> tuple[float, float]:
    """Confidence interval for the score that infinitely many examples would give.

    With half-samples of ``h = floor(N/2)`` examples, ``e = (s_h - s) sqrt(h / (N - h))`` is distributed, given the
    data, as ``s - s_infinity`` is (half-sampling, a delete-d jackknife with ``d = N - h``). From ``K`` draws the
    interval is

        s - mean(e) -+ t sd(e) sqrt(1 + 1/K)

    with Student's ``t`` for the few draws and the few ``parts`` that the halves are made of (by default the examples),
    ``1 / df = 1 / (K - 1) + 1 / (parts - 1)``. Subtracting ``mean(e)`` removes a bias that falls like 1/N. If that
    moves the interval past the score, which too few examples inflate, the interval is extended to the score. The
    interval covers the sampling of examples, not the training of the networks: for that, resample networks.

    Raises:
        ValueError: If ``confidence`` is not inside 0 to 1, or there are fewer than 2 half-samples.
    """
    check_share("confidence", confidence)
    draws = len(halves)
    if draws < 2:
        raise ValueError(f"halves must hold at least 2 scores: one has no spread. Got {draws}.")
    h = n // 2
    errors = (halves - score) * sqrt(h / (n - h))
    freedom = 1 / (1 / (draws - 1) + 1 / ((n if parts is None else parts) - 1))
    width = student_t(confidence, freedom) * float(errors.std()) * sqrt(1 + 1 / draws)
    centre = score - float(errors.mean())
    least, most = m.range
    return min(score, max(least, centre - width)), max(score, min(most, centre + width))
