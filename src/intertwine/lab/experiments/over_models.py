"""Statistics of a zoo, such as rank correlations over pairs of its networks, with intervals that leave out models."""

from collections.abc import Callable, Hashable, Sequence
from math import isfinite, nan, sqrt
from typing import Any

from numpy.typing import NDArray

from .estimates import Estimate

_FEWEST = 3  # models: leaving one of two out leaves no pair


def spearman(first: Sequence[float | None], second: Sequence[float | None]) -> float:
    """Spearman's rank correlation of what is known of both; NaN where one of the two does not vary.

    Examples:
        >>> spearman([1.0, 2.0, 3.0, None], [1.0, 4.0, 9.0, 0.0])
        1.0
    """
    from scipy.stats import rankdata

    return _cosine(*(ranks - (len(ranks) + 1) / 2 for ranks in map(rankdata, _known(first, second))))


def kendall(first: Sequence[float | None], second: Sequence[float | None]) -> float:
    """Kendall's rank correlation (tau-b, which counts ties out) of what is known of both; NaN as above.

    Examples:
        >>> round(kendall([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]), 3)
        0.333
    """
    import numpy as np

    return _cosine(*(np.sign(values[:, None] - values).ravel() for values in _known(first, second)))


def _known(first: Sequence[float | None], second: Sequence[float | None]) -> tuple[NDArray[Any], NDArray[Any]]:
    import numpy as np

    known = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    both = np.array(known, dtype=float).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    size = sqrt(float((a @ a) * (b @ b))) if len(a) else 0.0
    return round(float(a @ b) / size, 12) if size else nan  # 1 is 1


def over_models(
    models: Sequence[Hashable], statistic: Callable[[frozenset[Hashable]], float], level: float = 0.95
) -> Estimate:
    """A statistic of a zoo and its confidence interval, by a delete-one jackknife over models.

    What pairs of networks say is not independent where they share one, and one network is all that many pairs have in
    common. So each model is left out in turn, with all that it is part of: with the statistics ``s_k, k = 1 .. K`` of
    what is left and their mean ``s.``,

        v = (K - 1) / K · Σ_k (s_k - s.)²,    s -+ t √v

    and ``t`` is Student's for ``K - 1`` degrees of freedom. For means over pairs it is ``pair_interval``.

    Args:
        models: All models.
        statistic: Of the models that are kept; NaN where they do not tell.
        level: Nominal coverage.

    Returns:
        The statistic of all models; without an interval with fewer than 3 models, or where it is not known without one.

    Examples:
        >>> heights = {"a": 1.0, "b": 2.0, "c": 3.0}
        >>> mean = lambda kept: sum(heights[m] for m in kept) / len(kept)
        >>> print(over_models(list(heights), mean))
        2 [-0.484, 4.48]
    """
    from scipy.stats import t

    everyone = frozenset(models)
    found, count = statistic(everyone), len(everyone)
    if count < _FEWEST:
        return Estimate(found)
    rest = [statistic(everyone - {model}) for model in models]
    if not all(map(isfinite, [found, *rest])):
        return Estimate(found)
    centre = sum(rest) / count
    half = float(t.ppf((1 + level) / 2, count - 1)) * sqrt((count - 1) / count * sum((s - centre) ** 2 for s in rest))
    return Estimate(found, found - half, found + half, count)
