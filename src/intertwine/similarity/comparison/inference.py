"""Inference on a similarity: chance level, p-value, calibrated score and confidence interval of any measure."""

from dataclasses import dataclass
from math import ceil, nan, sqrt
from typing import Any

import torch
from torch import Tensor

from ..._zoo_intervals import student_t
from .._features import check_same_examples
from ..base import Measure, Prepared
from ..registry import measure as find

_TIE = 1e-6  # scores of float32 features differ by less in rounding
_MIN_HALVED = 8  # half of them is 4, the least that any measure takes


@dataclass(frozen=True)
class Inference:
    """A score with everything needed to judge it."""

    measure: str  # Name of the measure
    score: float  # The similarity
    chance: float  # Mean score after the examples of one side were shuffled
    p_value: float  # Share of shuffles, the true order counted as one, that score at least as high
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
    confidence: float = 0.95,
    seed: int = 0,
    channel_dim: int = 1,
) -> Inference:
    """Score two sets of features ``(N, C, *S)``, with chance level, p-value and confidence interval.

    The smallest possible p-value is ``1 / (null + 1)`` from ``null`` shuffles; the interval comes from ``bootstrap``
    half-samples.

    Raises:
        ValueError: If the features are refused by the measure, fewer than 8, or there are too few shuffles or draws.

    Examples:
        >>> import torch
        >>> from intertwine.similarity.comparison.inference import infer
        >>> g = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(64, 10, generator=g).relu(), torch.randn(64, 10, generator=g).relu()
        >>> chance = infer(x, y, "g_relu_procrustes")  # unrelated, yet far from 0
        >>> chance.score > 0.4 and chance.p_value > 0.05, chance.calibrated
        (True, 0.0)
        >>> same = infer(x, x + 0.01 * y, "g_relu_procrustes")
        >>> same.p_value, same.calibrated > 0.98
        (0.01, True)
    """  # noqa: DOC502 - raised by what it calls
    m = find(measure)
    a, b = m.prepare(x, channel_dim), m.prepare(y, channel_dim)
    score = m.score(a, b)
    shuffled = permutation_scores(m, a, b, null, seed)
    halves = half_sample_scores(m, a, b, bootstrap, seed) if m.has_limit else None
    low, high = (nan, nan) if halves is None else interval(m, score, halves, a.n, confidence)
    return Inference(
        measure=m.name,
        score=score,
        chance=float(shuffled.mean()),
        p_value=p_value(score, shuffled),
        calibrated=calibrate(score, shuffled),
        low=low,
        high=high,
        confidence=confidence,
        floor=m.floor(a, b),
        n=a.n,
        dead=(a.dead, b.dead),
    )


def permutation_scores(m: Measure[Any], a: Prepared, b: Prepared, null: int = 99, seed: int = 0) -> Tensor:
    """Score ``a`` against ``b`` with its examples shuffled: what features of these very distributions get by chance."""
    check_same_examples(a.n, b.n)
    if null < 1:
        raise ValueError(f"null must be at least 1. Got {null}.")
    generator = torch.Generator().manual_seed(seed)
    orders = (torch.randperm(b.n, generator=generator) for _ in range(null))
    return torch.tensor([m.score(a, b.take(order)) for order in orders], dtype=torch.float64)


def half_sample_scores(m: Measure[Any], a: Prepared, b: Prepared, bootstrap: int = 99, seed: int = 0) -> Tensor:
    """Score random halves of the examples, drawn *without* replacement.

    Resampling with replacement, the usual bootstrap, is wrong here: repeated examples put an example's similarity to
    itself off the diagonal of a Gram matrix, and the unbiased CKA of independent features goes from 0 to 0.97.

    Raises:
        ValueError: If ``bootstrap`` is less than 2, there are fewer than 8 examples, or the sides do not hold the same
            examples.
    """
    check_same_examples(a.n, b.n)
    if bootstrap < 2:
        raise ValueError(f"bootstrap must be at least 2: one half has no spread. Got {bootstrap}.")
    if a.n < _MIN_HALVED:
        raise ValueError(f"examples must be at least {_MIN_HALVED} for a confidence interval. Got {a.n}.")
    generator = torch.Generator().manual_seed(seed)
    halves = (torch.randperm(a.n, generator=generator)[: a.n // 2] for _ in range(bootstrap))
    return torch.tensor([m.score(a.take(half), b.take(half)) for half in halves], dtype=torch.float64)


def p_value(score: float, null: Tensor) -> float:
    """Share of null scores at least as high as ``score``, the score itself counted as one of them (so never 0).

    A score within 1e-6 counts as as high: where few examples respond, shuffles give the very same score, and engines
    round it differently.
    """
    return (1 + int((null >= score - _TIE).sum())) / (1 + len(null))


def best_p_values(scores: Tensor, null: Tensor) -> Tensor:
    """For every row the p-value of its highest score ``(L_a,)``: that of the best of each shuffle, not of one column.

    The best of many scores is high by chance more often than any of them.

    Args:
        scores: ``(L_a, L_b)``, NaN where there is none.
        null: Scores of the shuffles, the same for all pairs, ``(L_a, L_b, shuffles)``.
    """
    left_out = null.isnan() | scores.isnan()[:, :, None]
    best, chance = scores.nan_to_num(nan=-torch.inf).amax(1), null.masked_fill(left_out, -torch.inf).amax(1)
    found = [p_value(float(s), n[n > -torch.inf]) if s > -torch.inf else torch.nan for s, n in zip(best, chance)]
    return torch.tensor(found, dtype=torch.float64)


def calibrate(score: float, null: Tensor, quantile: float = 0.95) -> float:
    """Score on a scale where chance is 0: ``max(0, (score - c) / (1 - c))``, ``c`` the ``quantile`` of the null.

    Scores of different measures, widths and layers can be compared on it: raw ones cannot, since chance is 0.3 to 0.65
    for G_ReLU-Procrustes and 0 for unbiased CKA. It is 0 where even chance reaches 1, which tells nothing.
    """
    c = float(null.sort().values[ceil(quantile * (len(null) - 1))])  # between two values the higher one
    return (score - c) / (1 - c) if c < min(score, 1.0) - _TIE else 0.0


def interval(
    m: Measure[Any], score: float, halves: Tensor, n: int, confidence: float = 0.95, parts: int | None = None
) -> tuple[float, float]:
    """Confidence interval for the score that infinitely many examples would give.

    With half-samples of ``h = floor(N/2)`` examples, ``e = (s_h - s) sqrt(h / (N - h))`` is distributed, given the
    data, as ``s - s_infinity`` is (half-sampling, a delete-d jackknife with ``d = N - h``). From ``K`` draws the
    interval is

        s - mean(e) -+ t sd(e) sqrt(1 + 1/K)

    with Student's ``t`` for the few draws and the few parts that the halves are made of, ``1 / df = 1 / (K - 1) + 1 /
    (parts - 1)``. Taking ``mean(e)`` off removes a bias that falls like 1/N. Where that moves the interval past the
    score, the interval is extended to the score: a score at the very end of its interval is inflated by too few
    examples. The interval covers examples as the source of chance, not the training of the networks: for that, resample
    networks. ``parts`` is the number of folds that the halves are made of; the examples themselves unless given.

    Raises:
        ValueError: If ``confidence`` is not inside 0 to 1, or there are fewer than 2 half-samples.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1. Got {confidence}.")
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
