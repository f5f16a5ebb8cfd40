"""The page of stitched networks: penalties over layers and families, and the learned maps."""

from collections.abc import Mapping, Sequence
from math import log, log10, nan
from statistics import fmean
from typing import Any

from ..._nested import by_key
from ..._words import counted
from ...stitching import Stitching, StitchingStudy
from ..blocks import Block, Details, Facts, Figure, Grid, Heading, Paragraph, Table, Tabs, noted
from ..figures import Series, lines, plot
from ..page import Page, provenance

_MOST_DRAWN = 12  # most maps drawn
_METHODS = {"task_loss": "trained on the task", "direct": "matched in closed form"}


def stitching_page(result: StitchingStudy | Stitching) -> Page:
    """Lay out the page of a study, or of one stitched network."""
    study = result if isinstance(result, StitchingStudy) else StitchingStudy((result,), result.settings)
    blocks: list[Block] = [
        Paragraph(headline(study), "verdict"),
        _by_method(study),
        Paragraph(_curves_text(study)),
        *noted(dict.fromkeys([*study.notes, *(note for s in study.stitchings for note in s.notes)])),
        Heading("Families of maps"),
        _families(study),
        *_maps(study),
        *_training(study),
        Heading("Do stitched features look like B's own?"),
        Paragraph(
            "A map that was trained on the task may reach a good accuracy with features that B never makes; a small "
            "penalty does not show that. Residual: what the map misses of B's features on the same inputs, as a share. "
            "Fréchet: distance of the two distributions over their size, 0 where equal. Mahalanobis: 1 in "
            "distribution, larger outside."
        ),
        *_drift(study),
        *provenance(study.settings, {}, extra=[Facts(_accuracies(study), "Accuracies")]),
    ]
    pairs = " and ".join(study.pairs[0]) if len(study.pairs) == 1 else f"{len(study.pairs)} pairs of networks"
    return Page(
        f"Stitching {pairs}",
        blocks,
        f"{counted(len(study.stitchings), 'stitched network')} at {counted(len(study.layers), 'layer')}, by "
        f"{counted(len(study.families), 'family')} of maps, on {counted(study.stitchings[0].examples, 'example')}",
    )


def headline(study: StitchingStudy) -> str:
    """The main conclusion in one sentence."""
    shown = _shown_methods(study)[0]
    found = by_key((s.family, s.penalty) for s in study.select(method=shown).stitchings)
    points = {family: f"{100 * fmean(found[family]):.2f} points" for family in study.families if family in found}
    (first, lost), *others = points.items()
    best = min(points, key=lambda family: float(points[family].split()[0]))
    where = f"over {len(study.layers)} layers" if len(study.layers) > 1 else f"at {study.layers[0]}"
    text = f"Read through {first} maps, A's features cost B {lost} of accuracy on average {where}"
    if others and points[best] != lost:
        text += f"; through {best} maps, the least, {points[best]}"
    elif others:
        text += ", " + ("as" if lost in dict(others).values() else "less than") + " through any other family here"
    return f"{text} ({_METHODS[shown]})."


def _shown_methods(study: StitchingStudy) -> list[str]:
    return [m for m in _METHODS if m in study.methods]


def _families(study: StitchingStudy) -> Table:
    parts: dict[str, tuple[bool, ...]] = {"Mean penalty": (False, True)}
    if any(s.inside_block for s in study.stitchings):
        parts = {"Mean penalty outside blocks": (False,), "inside blocks *": (True,)}
    methods = _shown_methods(study)
    rows = []
    for family in study.families:
        for method in methods:
            found = study.select(family=family, method=method).stitchings
            if found:
                kept = [[s.penalty for s in found if s.inside_block in inside] for inside in parts.values()]
                counts = [round(s.log_count(2**-10, 1.0) / log(10)) for s in found]
                said = _METHODS[method] if len(methods) > 1 else None
                percent = [100 * fmean(some) if some else None for some in kept]
                rows.append([family, said, *percent, _range([s.dim for s in found]), _range(counts)])
    caption = (
        "Penalties in points of accuracy: the mean of A's and B's, less that of the stitched network (eq. 4.3). "
        "Dimension: free numbers of one map. Size: how many maps the family holds on a grid of 2,048 values for each "
        "free number, as a power of ten (v2 E.7): rank-1 maps outnumber G_ReLU."
    )
    return Table(["Family of maps", "Method", *parts, "Dimension", "Size, power of ten"], rows, caption, digits=2)


def _range(values: Sequence[int]) -> int | str:
    low, high = min(values), max(values)
    return low if low == high else f"{low:,} to {high:,}"


def _curves_text(study: StitchingStudy) -> str:
    over = set(study.table()["over"])
    bars_are = {
        "models": "95 % confidence intervals that resample models, not pairs, since pairs share models",
        "examples": "95 % confidence intervals over examples: other test images, the same two networks",
        "runs (range)": "the range of repeated runs",
    }
    words = "; ".join(text for key, text in bars_are.items() if key in over)
    star = (
        " Layers marked * lie inside residual blocks: a skip connection crosses the cut too, "
        f"{_SKIPS[study.stitchings[0].skip]}."
        if any(s.inside_block for s in study.stitchings)
        else ""
    )
    return f"Lower is better; 0 means that nothing is lost. Intervals: {words}.{star}"


_SKIPS = {
    "a": "where A's is used as it is (the paper's way)",
    "mapped": "where A's is mapped by a map of its own",
    "b": "where B's own is used",
}


def _by_method(study: StitchingStudy) -> Block:
    figures: dict[str, list[Block]] = {_METHODS[m].capitalize(): [_curves(study, m)] for m in _shown_methods(study)}
    return Tabs(figures, "How maps were found") if len(figures) > 1 else next(iter(figures.values()))[0]


def _curves(study: StitchingStudy, method: str) -> Figure:
    """Penalty over layers, one curve for each family, with error bars."""
    known = {(row.family, row.layer): row for row in study.select(method=method).table().itertuples()}
    series = []
    for family in study.families:
        rows = [known.get((family, layer)) for layer in study.layers]  # None leaves a gap
        mean, low, high = ([100 * getattr(row, part, nan) for row in rows] for part in ("penalty", "low", "high"))
        series.append(Series(family, mean, low, high))
    title = f"Stitching penalty, {_METHODS[method]}"
    return lines(study.layers, series, title=title, y_title="penalty, points of accuracy", limits=None, bars=True)


def _maps(study: StitchingStudy) -> list[Block]:
    """Permutations and scales, both learned and matched in closed form."""
    drawn: dict[tuple[str, str], Stitching] = {}
    for s in sorted(study.stitchings, key=lambda s: s.method != _shown_methods(study)[0]):
        if s.pairing is not None and "closed_form" in s.pairing:
            drawn.setdefault((s.layer_name, s.family), s)
    if not drawn:
        return []
    order = {name: i for i, name in enumerate(study.layers)}
    chosen = sorted(drawn.values(), key=lambda s: order[s.layer_name])[:_MOST_DRAWN]
    text = (
        "Each dot is a channel of B and the channel of A that it reads; channels of A are sorted so that the match in "
        "closed form, found by comparing activations, is the diagonal. Colours are scales, on a logarithmic axis; grey "
        "channels of B never respond, and their match means nothing."
    )
    rows = [
        [s.layer_name, s.family, s.method.replace("_", " "), 100 * s.agreement, sum(s.pairing["live"]), s.c_out]
        for s in chosen
        if s.agreement is not None and s.pairing is not None
    ]
    columns = ["Layer", "Family", "Method", "Agreement with the closed form, %", "Live channels", "Channels"]
    more = [Paragraph(f"The first {len(chosen)} of {len(drawn)} maps are drawn.")] if len(drawn) > len(chosen) else []
    pictures = Grid([_permutation(s) for s in chosen], width=360)
    return [Heading("Who reads whom"), Paragraph(text), Table(columns, rows, digits=1), *more, pictures]


def _permutation(s: Stitching) -> Figure:
    assert s.pairing is not None
    closed, index, live = s.pairing["closed_form"], s.pairing["index"], s.pairing["live"]
    place = {channel: i for i, channel in enumerate(closed) if channel >= 0}
    place |= {c: len(place) + k for k, c in enumerate(c for c in range(s.c_in) if c not in place)}
    scales = [round(log10(abs(x)), 3) if x else None for x in s.pairing["scale"]]
    traces = []
    for alive in (False, True):
        rows = [i for i in range(s.c_out) if bool(live[i]) == alive and index[i] >= 0]
        marker: dict[str, Any] = {"size": 6 if s.c_out <= 64 else 4, "color": "#b9bec7"}
        if alive:
            known = [scales[i] for i in rows]
            reach = max([0.3, *(abs(x) for x in known if x is not None and x > -4)])
            bar = {"thickness": 8, "outlinewidth": 0, "title": {"text": "log10 scale", "side": "right"}}
            marker |= {"color": known, "colorscale": "RdBu", "cmin": -reach, "cmax": reach, "colorbar": bar}
            marker["line"] = {"width": 0.5, "color": "#6b7280"}
        hover = "channel %{y} of B reads %{customdata[0]} of A, times %{customdata[1]}<extra></extra>"
        trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": "live" if alive else "dead"}
        trace |= {"showlegend": False, "marker": marker, "hovertemplate": hover, "y": rows}
        trace |= {"customdata": [[index[i], round(s.pairing["scale"][i], 4)] for i in rows]}
        traces.append({**trace, "x": [place[index[i]] for i in rows]})
    axis = {"showgrid": False, "zeroline": False}
    x = {**axis, "title": {"text": "channel of A, sorted by the match"}, "range": [-1, s.c_in]}
    y = {**axis, "title": {"text": "channel of B"}, "range": [s.c_out, -1]}
    share = "" if s.agreement is None else f", {s.agreement:.0%} as in closed form"
    margin = {"l": 45, "r": 5, "t": 10, "b": 40}
    return plot(traces, x, y, f"{s.layer_name}, {s.family}{share}", height=340, margin=margin)


def _training(study: StitchingStudy) -> list[Block]:
    """Loss and distance from the polytope by epoch, for the first run of each family and layer."""
    trained: dict[str, dict[str, Stitching]] = {}
    for s in study.stitchings:
        if s.history:
            trained.setdefault(s.layer_name, {}).setdefault(s.family, s)
    figures = []
    for layer in filter(trained.__contains__, study.layers):
        here = trained[layer]
        loss = {family: [e["loss"] for e in s.history] for family, s in here.items()}
        figures.append(_by_epoch(loss, f"{layer}: loss of maps in training", "loss"))
        # training loss of the maps as evaluated, including the start: the criterion for the kept epoch
        judged = {family: s for family, s in here.items() if s.start_loss is not None}
        evaluated = {f: [s.start_loss, *(e["evaluated_loss"] for e in s.history)] for f, s in judged.items()}
        kept = ", ".join(f"{f} {s.kept or 'the start'}" for f, s in judged.items() if s.kept is not None)
        if judged:
            title = f"{layer}: training loss as evaluated; kept: {kept}"
            figures.append(_by_epoch(evaluated, title, "loss", first=0))
        errors = {family: [e["doubly_stochastic_error"] for e in s.history] for family, s in here.items()}
        known = {family: values for family, values in errors.items() if any(v is not None for v in values)}
        if known:
            figures.append(_by_epoch(known, f"{layer}: distance from doubly stochastic"))
    return [Details("Training, epoch by epoch", [Grid(figures, width=420)])] if figures else []


def _by_epoch(curves: Mapping[str, Sequence[float | None]], title: str, y_title: str = "", first: int = 1) -> Figure:
    longest = max(map(len, curves.values()))
    series = [Series(name, [*values, *[None] * (longest - len(values))]) for name, values in curves.items()]
    epochs = [str(first + i) for i in range(longest)]
    return lines(epochs, series, title=title, y_title=y_title, limits=None)


def _drift(study: StitchingStudy) -> list[Block]:
    """Means by family and method, and every stitched network if there are more."""
    frame = study.to_frame().reindex(columns=[*_NETWORK, "penalty", *_DISTANCES])
    frame = frame[frame["drift_residual"].notna()].assign(method=lambda f: f["method"].str.replace("_", " "))
    frame["penalty"] *= 100
    frame = frame.rename(columns=lambda name: name.removeprefix("drift_").replace("frechet", "Fréchet").capitalize())
    means = frame.groupby(["Family", "Method"], sort=False)[["Penalty", "Residual", "Fréchet", "Mahalanobis"]].mean()
    blocks: list[Block] = [Table.of(means.reset_index(), "Means over layers.")]
    if len(frame) > len(means):
        blocks.append(Details("Every stitched network", [Table.of(frame)]))
    return blocks


_NETWORK = ("a", "b", "layer_a", "layer_b", "family", "method")
_DISTANCES = ("drift_residual", "drift_frechet", "drift_mahalanobis")


def _accuracies(study: StitchingStudy) -> dict[str, str]:
    both = [pair for s in study.stitchings for pair in zip(s.names, (s.accuracy_a, s.accuracy_b))]
    return {name: f"{value:.2%}" for name, value in both}
