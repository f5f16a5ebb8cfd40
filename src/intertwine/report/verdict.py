"""The verdict on a comparison, in words and in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..similarity import Comparison

__all__ = ["Summary", "headline", "lead", "measure_title", "paired", "summarise"]

_LEADS = ("g_relu_cka", "linear_cka", "g_relu_procrustes")
_LEVEL = 0.05
_SAME = 1 - 1e-5
_WORDS = (  # by what is left of the mean score when chance is taken out
    (0.85, "very similar"),
    (0.6, "similar"),
    (0.35, "partly similar"),
    (0.1, "weakly similar"),
)
_TITLES = {  # words of measure names that people write otherwise
    "cka": "CKA",
    "rbf": "RBF",
    "svcca": "SVCCA",
    "pwcca": "PWCCA",
    "knn": "k-NN",
    "rsa": "RSA",
    "r2": "R2",
    "cca": "CCA",
    "cknna": "CKNNA",
    "jaccard": "Jaccard",
    "procrustes": "Procrustes",
}


@dataclass(frozen=True)
class Summary:
    """One measure over the layers of A, each with its partner in B.

    The partner is the layer of the same name where both networks have the same layers, else the most similar one;
    ``matched`` counts layers that are most similar to the former. ``beyond`` counts scores beyond chance at the 5 %
    level, each on its own: ``None`` without a null, or with so few shuffles that no score could be.
    """

    measure: str
    score: float
    chance: float | None
    calibrated: float | None
    matched: int | None
    beyond: int | None
    layers: int


def paired(comparison: Comparison) -> bool:
    """Whether both networks have the same layers, so that each has its own counterpart."""
    return comparison.layers_a == comparison.layers_b


def lead(comparison: Comparison) -> str:
    """The measure that the verdict speaks of: the G_ReLU CKA where there is one."""
    return next((name for name in _LEADS if name in comparison.measures), comparison.measures[0])


def measure_title(name: str) -> str:
    """A measure's name for people.

    Examples:
        >>> measure_title("g_relu_cka"), measure_title("orthogonal_procrustes")
        ('G-ReLU CKA', 'Orthogonal Procrustes')
    """
    words = name.replace("g_relu", "G-ReLU").split("_")
    title = " ".join(_TITLES.get(word, word) for word in words)
    return title[:1].upper() + title[1:]


def too_few_shuffles(comparison: Comparison) -> bool:
    """Whether even a score above all shuffles is not beyond chance at the 5 % level: 19 shuffles are the fewest."""
    shuffles = comparison.settings.get("null")
    return isinstance(shuffles, int) and shuffles > 0 and 1 / (shuffles + 1) > _LEVEL


def best_partners(scores: Tensor) -> Tensor:
    """The column with the highest score in each row ``(R,)``; 0 in rows without any."""
    return scores.nan_to_num(nan=-torch.inf).argmax(dim=1)


def summarise(comparison: Comparison, measure: str) -> Summary:
    """Average one measure over the layers of A."""
    scores = comparison.scores[measure]
    best = best_partners(scores)
    partner = torch.arange(len(scores)) if paired(comparison) else best
    rows = torch.arange(len(scores))
    own = scores[rows, partner]
    known = ~own.isnan()

    def mean(matrix: Tensor | None) -> float | None:
        return None if matrix is None else _mean(matrix[rows, partner])

    p = comparison.null_p[measure]
    return Summary(
        measure=measure,
        score=_mean(own),
        chance=mean(comparison.chance[measure]),
        calibrated=mean(comparison.calibrated[measure]),
        # a tie with the partner counts as a match: equal layers, such as an identity, have no order
        matched=int((own >= scores[rows, best] - 1e-9)[known].sum()) if paired(comparison) else None,
        beyond=None if p is None or too_few_shuffles(comparison) else int((p[rows, partner] <= _LEVEL)[known].sum()),
        layers=int(known.sum()),
    )


def headline(comparison: Comparison) -> str:
    """How similar the networks are, in one or two sentences."""
    measure = lead(comparison)
    summary = summarise(comparison, measure)
    title = measure_title(measure)
    if summary.layers == 0:
        return f"No pair of layers could be compared by {title}; the notes say why."
    if paired(comparison) and summary.score > _SAME:
        return (
            "On this data the two networks compute the same features in every layer, up to "
            f"{comparison.groups[measure]}. Their {title} is {summary.score:.3f}."
        )
    left = summary.score if summary.calibrated is None else summary.calibrated
    word = next((word for least, word in _WORDS if left >= least), "barely similar")
    if summary.beyond == 0:
        word = "no more similar than unrelated networks would be"
    whose = "corresponding layers" if paired(comparison) else "layers and their best matches"
    sentence = f"The two networks are {word}: by {title}, {whose} score {_two(summary.score)} on average"
    if summary.chance is not None:
        sentence += f", where unrelated features would get {_two(summary.chance)}"
    few = too_few_shuffles(comparison)
    caveat = [f"{comparison.settings['null']} shuffles are too few for the 5 % level: take 19 or more."] if few else []
    return " ".join([sentence + ".", *_counts(summary), *caveat])


def _counts(summary: Summary) -> list[str]:
    every = summary.layers
    found = []
    if summary.matched is not None:
        who = "Every layer resembles" if summary.matched == every else f"{summary.matched} of {every} layers resemble"
        found.append(
            f"{who} its own counterpart most." if summary.matched == every else f"{who} their own counterpart most."
        )
    if summary.beyond is not None:
        who = "All scores are" if summary.beyond == every else f"{summary.beyond} of {every} scores are"
        found.append(f"{who} beyond chance at the 5 % level.")
    return found


def _two(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # no "-0.00"


def _mean(values: Tensor) -> float:
    return float(values.nanmean())
