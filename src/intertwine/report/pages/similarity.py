"""Pages of similarity: two networks layer by layer, many networks by layer, and distances between many."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..._words import counted, layer_title, sentence
from ...similarity import Comparison, ComparisonSet, Distances
from ...similarity.comparison import verdict
from ...similarity.comparison.result import SMALL_P
from ...similarity.registry import measure_title
from ..blocks import Block, Details, Facts, Figure, Grid, Heading, Paragraph, Table, Tabs, noted
from ..figures import Series, bars, heatmap, lines, scatter, tree
from ..page import Page, provenance

_HOVERED = 40  # most networks for which a page shows the reference of every score
_FEW = 4  # notes shown; more are folded away
_BEST = {
    "measure": "Measure", "layer_a": "Layer of A", "layer_b": "Best match in B", "score": "Score", "low": "from",
    "high": "to", "chance": "Chance", "untrained": "Untrained", "null_p": "p", "calibrated": "Calibrated",
    "floor": "Lowest possible",
}  # fmt: skip


def comparison_page(comparison: Comparison) -> Page:
    """Lay out the page of a comparison; facts of its networks are ``network_a`` and ``network_b`` in its settings."""
    a, b = (tuple(map(layer_title, names)) for names in (comparison.layers_a, comparison.layers_b))
    comparison = replace(comparison, layers_a=a, layers_b=b)
    versions = [Facts(comparison.versions, "Versions")]
    blocks: list[Block] = [
        Paragraph(verdict.headline(comparison), "verdict"),
        _heatmaps(comparison),
        *_notes(comparison),
        Heading("Measure by measure"),
        _measures_table(comparison),
        Heading("Layer by layer"),
        Paragraph(_curves_text(comparison)),
        Grid([_curves(comparison, measure) for measure in _ordered(comparison)]),
        Details("All best matches as a table", [_best_table(comparison)]),
        Heading("Dead channels"),
        *_dead(comparison),
        Heading("Networks and data"),
        *_facts(comparison),
        Heading("What the measures forgive"),
        _groups_table(comparison),
        *provenance(comparison.settings, {"seed": comparison.seed}, ("network_a", "network_b", "data"), versions),
    ]
    sizes = f"{counted(len(comparison.layers_a), 'layer')} of A with {len(comparison.layers_b)} of B"
    whose = [_given(comparison, f"network_{side}").get("name") or f"Network {side.upper()}" for side in "ab"]
    return Page(
        f"{' and '.join(whose)}, layer by layer", blocks, f"{sizes} on {counted(comparison.examples, 'example')}"
    )


def _given(comparison: Comparison, key: str) -> dict[str, Any]:
    """Facts that the command line adds to the settings."""
    facts = comparison.settings.get(key)
    return dict(facts) if isinstance(facts, Mapping) else {}


def _notes(comparison: Comparison) -> list[Block]:
    notes = noted(comparison.notes)
    return notes if len(notes) <= _FEW else [*notes[:_FEW], Details("More notes", notes[_FEW:])]


def _ordered(comparison: Comparison) -> list[str]:
    """The measures, starting with the one used in the verdict."""
    first = verdict.lead(comparison)
    return [first, *[name for name in comparison.measures if name != first]]


def _measures_table(comparison: Comparison) -> Table:
    which = "the same layer" if verdict.paired(comparison) else "the best match"
    columns = ["Measure", f"Mean score of {which}", "Chance", "Untrained", "Calibrated", "Beyond chance"]
    rows = []
    for measure in _ordered(comparison):
        s = verdict.summarise(comparison, measure)
        counts = (None if count is None else f"{count} of {s.layers} layers" for count in (s.beyond, s.matched))
        untrained = fmean(s.untrained) if s.untrained else None
        rows.append([measure_title(measure), s.score, s.chance, untrained, s.calibrated, *counts])
    caption = (
        f"Chance is the mean score after shuffling the examples of B{_untrained_text(comparison)}. Calibrated scores "
        "are 0 at the 95 % point of the shuffled scores and 1 for equal layers."
    )
    if least := verdict.least_p(comparison):
        caption += f" No p is below {least:.2g}, with {comparison.settings['null']} shuffles."
    shuffled = any(chance is not None for chance in comparison.chance.values())
    return Table([*columns, "Own counterpart is the best match"], rows, caption if shuffled else "")


def _untrained_text(comparison: Comparison) -> str:
    """A note on untrained networks: how they are built, how many pairs most measures had, and exceptions to that."""
    pairs = comparison.untrained_pairs
    counts = {measure_title(measure): sum(not one.isnan().all() for one in pairs[measure]) for measure in pairs}
    if not counts:
        return ""
    usual = max(counts.values())
    others = "".join(f", {title} of {count}" for title, count in counts.items() if count != usual)
    mean = f"mean of {counted(usual, 'pair')}{others}"
    return f"; untrained networks are built as A and B and have fresh weights ({mean})"


def _heatmaps(comparison: Comparison) -> Block:
    scores = Grid([_heatmap(comparison, measure, "score") for measure in _ordered(comparison)], width=460)
    known = [measure for measure in _ordered(comparison) if comparison.calibrated[measure] is not None]
    if not known:
        return scores
    calibrated = Grid([_heatmap(comparison, measure, "calibrated") for measure in known], width=460)
    return Tabs({"Scores": [scores], "Above chance (calibrated)": [calibrated]}, "Which number the colours show")


def _heatmap(comparison: Comparison, measure: str, shown: str) -> Figure:
    matrices = {
        "score": comparison.scores[measure],
        "interval from": comparison.low[measure],
        "interval to": comparison.high[measure],
        "chance": comparison.chance[measure],
        "untrained": comparison.untrained.get(measure),
        "p": comparison.null_p[measure],
        "calibrated": comparison.calibrated[measure],
        "lowest possible": comparison.floor[measure],
    }
    plain = {name: matrix.tolist() for name, matrix in matrices.items() if matrix is not None}
    values = plain.pop(shown)
    if shown == "calibrated":
        plain = {name: plain[name] for name in ("score", "chance", "untrained", "p") if name in plain}
    return heatmap(
        values, comparison.layers_a, comparison.layers_b, title=measure_title(measure), row_title="layer of A",
        column_title="layer of B", name=shown, hover=plain,
    )  # fmt: skip


def _curves_text(comparison: Comparison) -> str:
    by_order = ", paired by their order since their names differ" if verdict.paired(comparison) == "order" else ""
    start = (
        f"The same layer of both networks{by_order}, and the best match anywhere in B."
        if verdict.paired(comparison)
        else "The networks have different layers: for each layer of A, the best match anywhere in B."
    )
    confidence = comparison.settings.get("confidence", 0.95)
    drawn = {
        f"bands are {confidence:.0%} confidence intervals": comparison.low,
        "dashed lines are the chance level": comparison.chance,
        "dash-dotted lines untrained networks": comparison.untrained,
        "dotted lines the lowest score that is possible at all": comparison.floor,
    }
    shown = ", ".join(text for text, known in drawn.items() if any(one is not None for one in known.values()))
    biased = "The best of many scores is biased upwards, so read it beside its chance level."
    return " ".join(filter(None, [start, sentence(shown) if shown else "", biased]))


def _curves(comparison: Comparison, measure: str) -> Figure:
    rows, partner = torch.arange(len(comparison.layers_a)), verdict.partners(comparison, measure)

    def along(matrix: Tensor | None, columns: Tensor = partner) -> list[float] | None:
        return None if matrix is None else matrix[rows, columns].tolist()

    scores, low, high = (part[measure] for part in (comparison.scores, comparison.low, comparison.high))
    name = "same layer" if verdict.paired(comparison) else "best match in B"
    series = [Series(name, along(scores) or [], along(low), along(high))]
    if verdict.paired(comparison) and verdict.searched(comparison, measure):
        series.append(Series("best match in B", along(scores, verdict.best_partners(comparison, measure)) or []))
    untrained = verdict.untrained_levels(comparison, measure)
    for name, level, dash in (
        ("chance", along(comparison.chance[measure]), "dash"),
        ("untrained", untrained.nanmean(0).tolist() if len(untrained) else None, "dashdot"),
        ("lowest possible", along(comparison.floor[measure]), "dot"),
    ):
        if level is not None and any(v == v for v in level):
            series.append(Series(name, level, dash=dash))
    return lines(comparison.layers_a, series, title=measure_title(measure), y_title="score")


def _best_table(comparison: Comparison) -> Table:
    import pandas as pd

    names = [name for name in _ordered(comparison) if verdict.searched(comparison, name)] or comparison.measures
    frame = pd.concat([comparison.best(name).assign(measure=measure_title(name)) for name in names])
    frame["null_p"] = [f"<{SMALL_P}" if p < SMALL_P else p for p in frame["null_p"]]  # three digits would say 0.000
    return Table.of(frame[list(_BEST)].rename(columns=_BEST))


def _dead(comparison: Comparison) -> list[Block]:
    text = (
        "A channel is dead where it gives the same value, zero after a rectifier, on every example. Dead channels are "
        "left out of every score: they never count as agreement."
    )
    if not any((*comparison.dead_a, *comparison.dead_b)):
        return [Paragraph(f"No channel of either network is dead on this data. {text}")]
    sides = _sides(comparison)
    shares = {s: [100 * d / max(c, 1) for d, c in zip(one["dead"], one["channels"])] for s, one in sides.items()}
    dead_a, dead_b = (sum(one["dead"]) for one in sides.values())
    found = Paragraph(f"{dead_a:,} channels of A and {dead_b:,} of B are dead on this data. {text}")
    if verdict.paired(comparison):
        return [found, bars(comparison.layers_a, shares, title="Dead channels", y_title="% of the layer")]
    figures = [
        bars(sides[side]["layers"], {side: heights}, title=f"Dead channels of {side}", y_title="% of the layer")
        for side, heights in shares.items()
        if any(heights)
    ]
    return [found, Grid(figures)]


def _sides(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Facts about the layers of each network."""
    keys = ("layers", "channels", "dead", "shapes")
    return {side.upper(): {key: getattr(comparison, f"{key}_{side}") for key in keys} for side in "ab"}


def _facts(comparison: Comparison) -> list[Block]:
    cards, rows = [], []
    for side, one in _sides(comparison).items():
        facts = _given(comparison, f"network_{side.lower()}")
        facts |= {"layers compared": len(one["layers"]), "channels compared": f"{sum(one['channels']):,}"}
        cards.append(Facts(facts, f"Network {side}"))
        shapes = (" x ".join(map(str, shape)) for shape in one["shapes"])
        rows += [[side, *row] for row in zip(one["layers"], shapes, one["channels"], one["dead"])]
    cards.append(Facts({**_given(comparison, "data"), "examples compared": f"{comparison.examples:,}"}, "Data"))
    table = Table(["Network", "Layer", "Shape of one example", "Channels", "Dead"], rows)
    return [Grid(cards, width=320), Details("Layers and their shapes", [table])]


def _groups_table(comparison: Comparison) -> Table:
    groups = {measure: comparison.groups.get(measure, "nothing that is known") for measure in _ordered(comparison)}
    rows = [[measure_title(measure), measure, f"Unchanged under {group}."] for measure, group in groups.items()]
    caption = "The changes of either network's channels that leave a score exactly as it is. Everything else lowers it."
    return Table(["Measure", "Name in Python", "What it does not see"], rows, caption)


def comparison_set_page(found: ComparisonSet) -> Page:
    """Lay out the page of many networks: a matrix per layer in the given order, a map, and a tree of the networks."""
    names, judged = found.names, {m: found.judged(m) for m in found.measures}

    def heat(measure: str, title: str, parts: Mapping[str, Tensor]) -> Figure:
        known = {
            _BEST.get(part, part): x.tolist() for part, x in parts.items() if part == "score" or not x.isnan().all()
        }
        name, *others = known
        more = {other: known[other] for other in others if len(names) <= _HOVERED}
        return heatmap(known[name], names, names, title=f"{measure_title(measure)}: {title}", name=name, hover=more)

    shares = {m: x["agree"].nanmean(0) for m, x in judged.items() if not x["agree"].isnan().all()}
    means = [heat(m, "mean over layers", {"score": found.matrix(m)}) for m in found.measures]
    means += [heat(m, "share of layers that agree", {"agree": share}) for m, share in shares.items()]
    layers: dict[str, list[Block]] = {
        layer_title(x): [
            Grid([heat(m, layer_title(x), {p: y[k] for p, y in judged[m].items()}) for m in found.measures], width=420)
        ]
        for k, x in enumerate(found.layers)
    }
    last, by_layer = found.names[-1], [layer_title(layer) for layer in found.layers]
    growing = Grid(
        [
            heatmap(found.against(measure=m).tolist(), found.names, by_layer, title=measure_title(m),
                    row_title="network", column_title="layer", name="score")
            for m in found.measures
        ],
        width=460,
    )  # fmt: skip
    return Page(
        f"Comparison of {counted(len(names), 'network')}",
        [
            Paragraph(found.summary().partition("\n")[0], "verdict"),
            *noted(found.notes),
            *map(Paragraph, filter(None, [found.agreeing()])),
            Grid([*means, _map(found)], width=420),
            Heading("Layer by layer"),
            Tabs(layers, "Which layer"),
            Heading(f"Every network with {last}"),
            Paragraph(
                "Row by row in the order that was given: of checkpoints of one training, which layers are already what "
                "they are in the end."
            ),
            growing,
            Heading("The tree of the networks"),
            Paragraph("Average linkage: which networks join, and at which distance."),
            tree(found.names, found.dendrogram().tolist()),
            Facts(found.versions, "Versions"),
        ],
        f"{counted(len(found.layers), 'layer')} on {counted(found.examples, 'example')}",
    )


def _map(found: ComparisonSet | Distances) -> Figure:
    points = found.embedding()
    caption = f"Stress {points.stress:.3f}: 0 where the map tells every distance; above 0.2 it misleads."
    return scatter(list(found.names), points.points.tolist(), title="A map of the networks", caption=caption)


def distances_page(found: Distances) -> Page:
    """Lay out the page of distances: a matrix, a map and a table."""
    title = measure_title(found.measure)
    matrix, names = found.distances.tolist(), list(found.names)
    limits, scores = (0.0, max(map(max, matrix)) or 1.0), found.scores.tolist()
    heat = heatmap(matrix, names, names, title=title, name="distance", limits=limits, hover={"score": scores})
    kind = "They obey the triangle inequality" if found.metric else "They order pairs; they obey no triangle inequality"
    return Page(
        f"Distances of {counted(len(names), 'network')}",
        [
            Paragraph(f"Unchanged under {found.group}. {kind}.", "verdict"),
            *noted(found.notes),
            Grid([heat, _map(found)]),
            Heading("The nearest of each"),
            Table(["Network", "Nearest", "Distance"], found.nearest().to_numpy().tolist()),
            Heading("Networks"),
            Table(["Network", "Channels", "Dead"], [list(row) for row in zip(names, found.channels, found.dead)]),
            Facts(found.versions, "Versions"),
        ],
        f"{title} on {counted(found.examples, 'example')}",
    )
