"""The verdict on a comparison, in words and in a few numbers."""

from collections import Counter
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..._zoo_intervals import student_t
from ..inference import excess
from ..registry import CENTRED, joined, measure_title, own_measure

_LEVEL = 0.05
_STILL = ("", "trivial")  # groups of layers that nothing moves, or of which nothing is known
_SAME = 1 - 1e-5
_WORDS = (  # by what is left of the mean score after taking out shuffled examples and untrained networks
    (0.85, "very similar"),
    (0.6, "similar"),
    (0.35, "partly similar"),
    (0.1, "weakly similar"),
)
_OPEN = {  # caveat of a verdict, by the number of pairs of untrained networks
    0: "Untrained networks were not measured, so no word is given for how similar that is.",
    1: "One pair of untrained networks was measured: another one may lead to another word.",
}
_SAME_DISTANCE = 1 - 1e-4  # for a Procrustes measure, which falls like the root of what a kernel loses
_DISTANCES = {"g_relu_cka": "g_relu_procrustes", "linear_cka": "orthogonal_procrustes"}  # 1 only for equal features
_FEWEST = 8  # examples: fewer cannot be halved
_MOST_OPEN = 2  # steps between words that an interval may span
_PART = 0.25  # share of the layers: fewer, judged by a measure of their own, are not in the headline
_KNOWN = ("scores", "low", "high", "chance", "null_p", "calibrated")

Compared: TypeAlias = Any  # a Comparison, whose file imports this one


@dataclass(frozen=True)
class Summary:
    """One measure over layers of A, each with its partner in B: its counterpart if paired, else the most similar."""

    measure: str
    score: float
    lowest: float  # the lowest score
    chance: float | None
    untrained: tuple[float, ...]  # mean scores of pairs of untrained networks
    calibrated: float | None
    # Mean share of the way to 1 from the higher of two levels, 95 % of the shuffles and what a pair of untrained
    # networks reaches: the least and the most over the choice of that pair. Empty without any.
    left: tuple[float, ...]
    interval: tuple[float, float] | None  # mean ends of the intervals
    matched: int | None  # number of layers most similar to their own partner, if layers are paired
    # Number of scores beyond shuffled examples at the 5 % level, each on its own, a best match beyond the best matches
    # of the shuffles; ``None`` without shuffles, or with too few for any score to be beyond.
    beyond: int | None
    layers: int


def paired(comparison: Compared) -> str:
    """The way layers of A correspond to layers of B: by ``"name"``, by ``"order"`` of equal shapes, or not: empty."""
    if comparison.layers_a == comparison.layers_b:
        return "name"
    return "order" if comparison.shapes_a == comparison.shapes_b else ""


def judges(comparison: Compared) -> dict[str, list[int]]:
    """Measures by which layers of A are judged, each with its layers; the one with most layers first.

    A layer is judged by the measure whose group is that of the networks themselves. Layers that nothing moves, such as
    logits, and layers of which nothing is known go with the majority.
    """
    ours, theirs = (side or ("",) * len(comparison.layers_a) for side in (comparison.acting_a, comparison.acting_b))
    found = joined(ours, theirs, bool(paired(comparison)))
    moving = [kind for kind in found if kind not in _STILL]
    usual = Counter(moving).most_common(1)[0][0] if moving else ""
    by: dict[str, list[int]] = {}
    for row, kind in enumerate(found):
        name = own_measure(usual if kind in _STILL else kind, comparison.measures)
        by.setdefault(name, []).append(row)
    return dict(sorted(by.items(), key=lambda item: -len(item[1])))


def lead(comparison: Compared) -> str:
    """The measure that the verdict speaks of: its group is the networks' own at most layers."""
    return next(iter(judges(comparison)), comparison.measures[0])


def too_few_shuffles(comparison: Compared) -> bool:
    """Whether even a score above all shuffles is not beyond chance at the 5 % level: 19 shuffles are the fewest."""
    return least_p(comparison) > _LEVEL


def least_p(comparison: Compared) -> float:
    """Smallest p-value that the number of shuffles allows; 0 if none were drawn, or a fitted tail goes further."""
    shuffles = comparison.settings.get("null")
    return 1 / (shuffles + 1) if isinstance(shuffles, int) and shuffles > 0 else 0.0


def above_chance(comparison: Compared, measure: str) -> Tensor:
    """Excess of scores over chance ``(L_a, L_b)``; the scores themselves where chance is not known."""
    scores, chance = comparison.scores[measure], comparison.chance[measure]
    return scores if chance is None else excess(scores, chance)


def best_partners(comparison: Compared, measure: str) -> Tensor:
    """Layer of B most similar to each layer of A ``(L_a,)``, by the excess over chance; 0 without scores."""
    return above_chance(comparison, measure).nan_to_num(nan=-torch.inf).argmax(dim=1)


def searched(comparison: Compared, measure: str) -> bool:
    """Whether any layer of A was scored with several layers of B, or B has only one."""
    known = ~comparison.scores[measure].isnan()
    return known.shape[1] == 1 or bool((known.sum(1) > 1).any())


def partners(comparison: Compared, measure: str) -> Tensor:
    """Layer of B with which each layer of A is judged: its counterpart, or the most similar one."""
    every = torch.arange(len(comparison.layers_a))
    return every if paired(comparison) else best_partners(comparison, measure)


def _along(comparison: Compared, measure: str, rows: Any = slice(None)) -> list[Tensor | None]:
    """Values for layers of A with their partners, ``(L_a,)`` each; a best match has the p-value of the best."""
    every, at = torch.arange(len(comparison.layers_a)), partners(comparison, measure)
    found = {name: getattr(comparison, name)[measure] for name in _KNOWN}
    found = {name: None if matrix is None else matrix[every, at] for name, matrix in found.items()}
    if not paired(comparison) and comparison.best_p.get(measure) is not None:
        found["null_p"] = comparison.best_p[measure]
    return [None if x is None else x[rows] for x in found.values()]


def agreeing(comparison: Compared) -> tuple[list[str], list[str]]:
    """Layers of A that agree with their partner beyond chance and untrained networks, and those that do not."""
    found = torch.full((len(comparison.layers_a),), torch.nan)
    for name, rows in judges(comparison).items():
        scores, _, _, _, p, _ = _along(comparison, name)
        if scores is not None and p is not None and not too_few_shuffles(comparison):
            reached = reach(untrained_levels(comparison, name), comparison.untrained_networks)
            found[rows] = agreement(scores, p, reached if comparison.untrained_pairs else None)[rows].to(found)
    yes, no = ([name for name, one in zip(comparison.layers_a, found.tolist()) if one == value] for value in (1, 0))
    return yes, no


def reach(levels: Tensor, networks: int = 0) -> Tensor:
    """Level below which another pair of untrained networks stays in 19 of 20 cases, ``(L,)``; NaN if not known."""
    most = max([_SAME, *levels.nan_to_num().flatten().tolist()])  # equal features are beyond all but equal ones
    return (levels.nanmean(0) + spread(levels, networks)).clamp(max=most)


def judged_by(untrained: bool) -> str:
    """The levels that agreement must exceed, in words."""
    return f"chance{' and untrained networks' if untrained else ''}"


def agreement(scores: Tensor, p: Tensor, reached: Tensor | None) -> Tensor:
    """1 where scores are beyond shuffled examples and beyond untrained networks, else 0; NaN if unknown."""
    yes, unknown = p <= _LEVEL, (scores + p).isnan()
    if reached is not None:
        yes, unknown = yes & (scores > reached), unknown | ~reached.isfinite()
    return yes.double().masked_fill(unknown, torch.nan)


def untrained_levels(comparison: Compared, measure: str) -> Tensor:
    """Score of layers of untrained networks with the counterpart, or with the best match: ``(pairs, L_a)``."""
    scores = comparison.untrained_pairs.get(measure)
    if scores is None:
        return torch.empty(0, len(comparison.layers_a), dtype=torch.float64)
    if paired(comparison):
        return scores.diagonal(dim1=1, dim2=2)
    best = scores.nan_to_num(nan=-torch.inf).amax(2)
    return best.where(best > -torch.inf, torch.nan)  # nothing is known of a layer that is dead before training


def spread(levels: Tensor, networks: int = 0, together: bool = False) -> float:
    """Height above the mean of pairs of untrained networks ``(pairs, L)`` below which another stays in 19 of 20 cases.

    Student's bound, ``t s sqrt(f)``, with the spread ``s`` of all layers around their means. For pairs of ``2 pairs``
    networks, ``f = 1 + 1 / n`` with ``n = pairs``. All pairs of ``n`` networks share some: if scores are sums over
    networks, ``s`` is too small, and ``f = (n + 1) (n + 2) / (n (n - 1))`` makes up for it; if pairs vary
    independently, it is more than enough. ``t`` has ``n - 1`` degrees of freedom times the number of independent
    layers, ``tr(C)^2 / tr(C^2)`` of their covariance, both without bias. For the mean over layers (``together``), ``s``
    is the spread of the pairs' means, and no less than if all layers were independent.
    """
    pairs, layers = len(levels), int((~levels.isnan()).any(0).sum())
    if pairs < 2 or not layers:
        return 0.0
    off = (levels - levels.nanmean(0)).nan_to_num()
    products = off @ off.T
    total, apart = float(products.trace()), networks >= 2 * pairs
    n = pairs if apart else networks or ceil((1 + sqrt(1 + 8 * pairs)) / 2)
    factor, freedom = 1 + 1 / n if apart else (n + 1) * (n + 2) / (n * (n - 1)), float(n - 1)
    s = sqrt(total / (layers * (pairs - 1)))
    if together:
        s = max(float(levels.nanmean(1).std()), s / sqrt(layers))
    elif n > 2 and total > 0:
        square = float(products.square().sum()) / total**2 - 1 / freedom
        square = max(1e-9, square * freedom**2 / ((freedom - 1) * (freedom + 2)))
        freedom *= min(max(1.0, (1 - 2 * square / freedom) / square), layers)
    return student_t(0.9, freedom) * s * sqrt(factor)


def summarise(comparison: Compared, measure: str, rows: list[int] | None = None) -> Summary:
    """Average one measure over the layers of A, or over some of them."""
    chosen = torch.tensor(range(len(comparison.layers_a)) if rows is None else rows)
    own, low, high, chance, p, calibrated = _along(comparison, measure, chosen)
    assert own is not None
    known, beyond_level = ~own.isnan(), above_chance(comparison, measure)[chosen]
    levels = untrained_levels(comparison, measure)[:, chosen]
    beyond_chance = own if calibrated is None else calibrated
    wider = spread(levels, comparison.untrained_networks, together=True)
    ends = levels.nanmean(0) + wider * torch.tensor([[1.0], [-1.0]], dtype=levels.dtype)[: 2 * len(levels)]
    ends = ends.clamp(max=_SAME)  # no bound lies beyond equality
    left = torch.minimum(beyond_chance, excess(own, ends).clamp(min=0).where(~ends.isnan(), beyond_chance))
    matched = None
    if paired(comparison) and searched(comparison, measure):
        # a tie with the partner counts as a match: equal layers, such as an identity, have no order
        best = beyond_level.nan_to_num(nan=-torch.inf).amax(1) - 1e-9
        matched = int((beyond_level.gather(1, chosen[:, None])[:, 0] >= best)[known].sum())
    return Summary(
        measure=measure,
        score=_mean(own),
        lowest=float(own[known].min()) if known.any() else float("nan"),
        chance=None if chance is None else _mean(chance),
        untrained=tuple(levels.nanmean(1).tolist()),
        calibrated=None if calibrated is None else _mean(calibrated),
        left=tuple(left.nanmean(1).tolist()),
        interval=None if low is None or high is None or low.isnan().all() else (_mean(low), _mean(high)),
        matched=matched,
        beyond=None if p is None or too_few_shuffles(comparison) else int((p <= _LEVEL)[known].sum()),
        layers=int(known.sum()),
    )


def brief(comparison: Compared) -> str:
    """The verdict in one short line."""
    summary = summarise(comparison, lead(comparison))
    if not summary.layers:
        return "no pair of layers could be compared"
    untrained = sum(summary.untrained) / len(summary.untrained) if summary.untrained else None
    levels = [(summary.chance, "by chance"), (untrained, "untrained")]
    others = [f"{_two(value)} {what}" for value, what in levels if value is not None]
    word = _word(summary, comparison.examples)
    return f"{f'{word}: ' if word else ''}{measure_title(summary.measure)} {', '.join([_two(summary.score), *others])}"


def headline(comparison: Compared) -> str:
    """How similar the networks are, in a few sentences: layers of each kind by the measure that fits them."""
    by = judges(comparison)
    first, *others = [(name, rows) for name, rows in by.items() if len(rows) >= _PART * len(comparison.layers_a)]
    every = len(comparison.layers_a)
    lost = every - sum(summarise(comparison, name, rows).layers for name, rows in by.items())
    left_out = [f"{lost} of {every} layers have no score: the notes say why."] if 0 < lost < every else []
    if not others:
        return " ".join([*left_out, _spoken(comparison, first[0], None)])
    more = [f"{_layers(len(rows))} more: {_spoken(comparison, name, rows)}" for name, rows in others]
    return " ".join([*left_out, f"{_layers(len(first[1]))}: {_spoken(comparison, *first)}", *more])


def _spoken(comparison: Compared, measure: str, rows: list[int] | None) -> str:
    summary = summarise(comparison, measure, rows)
    title = measure_title(measure)
    if summary.layers == 0:
        return f"No pair of layers could be compared by {title}; the notes say why."
    if paired(comparison) and summary.lowest > _SAME:
        return _equal(comparison, summary, rows)
    whose = {"name": "corresponding layers", "order": "layers, paired by their order,"}
    said = f"by {title}, {whose.get(paired(comparison), 'layers and their best matches')} score {_two(summary.score)}"
    levels = [] if summary.chance is None else [f"unrelated features would get {_two(summary.chance)}"]
    if summary.untrained:
        ends = dict.fromkeys(map(_two, (min(summary.untrained), max(summary.untrained))))
        alike = "the same architecture" if paired(comparison) else "these architectures"
        levels.append(f"untrained networks of {alike} get {' to '.join(ends)}")
    where = f", where {' and '.join(levels)}" if levels else ""
    word = _word(summary, comparison.examples)
    about = "How similar the two networks are" if word.startswith("cannot") else "The two networks are"
    found = [(f"{about} {word}: {said}" if word else f"{said[:1].upper()}{said[1:]}") + f" on average{where}."]
    for wider in (summarise(comparison, name, rows) for name in comparison.measures if "procrustes" in name):
        if paired(comparison) and wider.lowest > _SAME_DISTANCE and wider.layers == summary.layers:
            moved = f"up to {comparison.groups[wider.measure]}: {measure_title(wider.measure)} is {wider.score:.3f}"
            found.append(f"Yet they compute the same features in every layer {moved}, as in a rotated copy.")
            break
    every, matched, beyond = summary.layers, summary.matched, summary.beyond
    if matched is not None:
        all_ = "Every layer resembles its" if matched == every else f"{matched} of {every} layers resemble their"
        found.append(f"{all_} own counterpart most.")
    if beyond is not None:
        who = "All scores are" if beyond == every else f"{beyond} of {every} scores are"
        found.append(f"{who} beyond those of shuffled examples at the 5 % level.")
    found += [_OPEN[len(summary.untrained)]] if len(summary.untrained) in _OPEN else []
    if too_few_shuffles(comparison):
        found.append(f"{comparison.settings['null']} shuffles are too few for the 5 % level: take 19 or more.")
    return " ".join(found)


def _equal(comparison: Compared, summary: Summary, rows: list[int] | None) -> str:
    """Sentence on a score of 1 in every layer: for Procrustes it means equal features, else only equal kernels."""
    distance = _DISTANCES.get(summary.measure, summary.measure)
    names = [name for name in (f"{distance}{CENTRED}", distance) if "procrustes" in name]
    exact = next((name for name in names if name in comparison.measures), None)
    title, score = measure_title(summary.measure), f"{summary.score:.3f}"
    all_ = summary.layers == len(comparison.layers_a if rows is None else rows)
    every = "every layer" if all_ else "every layer that could be compared"
    not_told = f"On this data {title} does not tell the two networks apart: {every} scores {score}."
    if exact is None:
        return not_told
    found, group = summarise(comparison, exact, rows).lowest, comparison.groups[exact]
    if found > _SAME_DISTANCE:
        same = f"On this data the two networks compute the same features in {every}, up to {group}."
        return f"{same} Their {title} is {score}."
    lowest = f"{measure_title(exact)} is as low as {_two(found)}"
    return f"{not_told} Their features are not the same up to {group}: {lowest}."


def _word(summary: Summary, examples: int) -> str:
    """Word for how similar; empty without the level of untrained networks, whose scores may be as high.

    If the word depends on which pair of untrained networks is taken, both words are given; if the intervals over
    examples leave more than that open, no word is given.
    """
    level = max(summary.chance or 0.0, *(summary.untrained or (0.0,)))
    low, high = ((end - level) / max(1 - level, 1e-9) for end in summary.interval or (0.0, 0.0))
    words = sum(low < least <= high for least, _ in (*_WORDS, (0.0, "")))  # words that the intervals leave open
    if summary.untrained and (examples < _FEWEST or words > _MOST_OPEN):
        return f"cannot be told from {examples} examples"
    if summary.beyond == 0:
        return "no more similar than unrelated networks would be"
    if not summary.untrained:
        return ""
    if summary.score <= max(summary.untrained):
        return "no more similar than untrained networks"
    otherwise = "hardly more similar than untrained networks"
    least, most = (next((word for need, word in _WORDS if left >= need), otherwise) for left in summary.left)
    return least if least == most else f"between {least} and {most}"


def _layers(count: int) -> str:
    return "One layer" if count == 1 else f"{count} layers"


def _two(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # no "-0.00"


def _mean(values: Tensor) -> float:
    return float(values.nanmean())
