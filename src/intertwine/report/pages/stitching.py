"""The page of stitched networks: penalties over layers and families, the maps that were learned."""

from collections.abc import Mapping, Sequence
from math import log10
from statistics import fmean
from typing import Any

from ..._words import counted
from ...stitching import Stitching, StitchingStudy
from ..blocks import Block, Details, Facts, Figure, Grid, Heading, Paragraph, Table, Tabs
from ..figures import Series, bars, lines
from ..page import Page
from ..provenance import provenance

_MOST_DRAWN = 12  # maps
_METHODS = {"task_loss": "trained on the task", "direct": "matched in closed form"}


def stitching_page(result: StitchingStudy | Stitching) -> Page:
    """Lay out a study, or one stitched network.

    Facts of the networks and the data, and the command line, are shown where ``settings`` holds them as ``networks`` (a
    list of mappings), ``data`` (a mapping), ``notes`` (a list) and ``command`` (text).
    """
    from ...stitching import StitchingStudy

    study = result if isinstance(result, StitchingStudy) else StitchingStudy((result,), result.settings)
    blocks: list[Block] = [
        Paragraph(headline(study), "verdict"),
        _by_method(study),
        Paragraph(_curves_text(study)),
        *_notes(study),
        Heading("Families of maps"),
        _families(study),
        *_ordering(study),
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
    """The one sentence to take away."""
    shown = _shown_methods(study)[0]
    means = {f: _mean([s for s in study.stitchings if s.family == f and s.method == shown]) for f in study.families}
    known = {family: mean for family, mean in means.items() if mean is not None}
    first, mean = next(iter(known.items()))
    best = min(known, key=lambda family: known[family])
    where = f"over {len(study.layers)} layers" if len(study.layers) > 1 else f"at {study.layers[0]}"
    text = f"Read through {first} maps, A's features cost B {_points(mean)} of accuracy on average {where}"
    others = {family: _points(m) for family, m in known.items() if family != first}
    if others and _points(known[best]) != _points(mean):
        text += f"; through {best} maps, the least, {others[best]}"
    elif others:
        text += ", " + ("as" if _points(mean) in others.values() else "less than") + " through any other family here"
    return f"{text} ({_METHODS[shown]})."


def _shown_methods(study: StitchingStudy) -> list[str]:
    return [m for m in _METHODS if m in study.methods]


def _mean(found: Sequence[Stitching]) -> float | None:
    return fmean(s.penalty for s in found) if found else None


def _points(penalty: float) -> str:
    return f"{100 * penalty:.2f} points"


def _families(study: StitchingStudy) -> Table:
    starred = any(s.inside_block for s in study.stitchings)
    both = len(study.methods) > 1
    rows = []
    for family in study.families:
        for method in _shown_methods(study):
            found = [s for s in study.stitchings if s.family == family and s.method == method]
            if not found:
                continue
            row: list[Any] = [family, *([_METHODS[method]] if both else [])]
            parts = (False, True) if starred else (False,)
            for inside in parts:
                mean = _mean([s for s in found if s.inside_block == inside])
                row.append(None if mean is None else 100 * mean)
            counts = [s.log_count(2**-10, 1.0) / 2.302585092994046 for s in found]
            row += [_range([s.dim for s in found]), _range([round(c) for c in counts])]
            rows.append(row)
    columns = ["Family of maps", *(["Method"] if both else [])]
    columns += ["Mean penalty outside blocks", "inside blocks *"] if starred else ["Mean penalty"]
    caption = (
        "Penalties in points of accuracy: the mean of A's and B's, less that of the stitched network (eq. 4.3). "
        "Dimension: free numbers of one map. Size: how many maps the family holds on a grid of 2,048 values for each "
        "free number, as a power of ten (v2 E.7): rank-1 maps outnumber G_ReLU."
    )
    return Table([*columns, "Dimension", "Size, power of ten"], rows, caption, digits=2)


def _range(values: Sequence[int]) -> int | str:
    low, high = min(values), max(values)
    return low if low == high else f"{low:,} to {high:,}"


def _notes(study: StitchingStudy) -> list[Block]:
    given = study.settings.get("notes", ())
    notes = list(dict.fromkeys([*given, *study.notes, *(note for s in study.stitchings for note in s.notes)]))
    return [Paragraph(f"Note: {note}", "note") for note in notes]


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
    table = study.select(method=method).table()
    series = []
    for family in study.families:
        rows = {row.layer: row for row in table[table["family"] == family].itertuples()}
        mean, low, high = (
            [100 * getattr(rows[name], key) if name in rows else None for name in study.layers]
            for key in ("penalty", "low", "high")
        )
        series.append(Series(family, mean, low, high))
    title = f"Stitching penalty, {_METHODS[method]}"
    return lines(study.layers, series, title=title, y_title="penalty, points of accuracy", limits=None, bars=True)


def _ordering(study: StitchingStudy) -> list[Block]:
    """The paper's ordering at every layer, as measured, also where it does not hold."""
    claims = [
        (first, second)
        for first, second in (("full", "rank-4"), ("rank-4", "rank-1"), ("full", "g_relu"), ("g_relu", "rank-1"))
        if first in study.families and second in study.families
    ]
    method = _shown_methods(study)[0]
    table = study.select(method=method).table()
    means = {(row.layer, row.family): row.penalty for row in table.itertuples()}
    if not claims:
        return []
    rows = []
    for layer in study.layers:
        pairs = [(means.get((layer, first)), means.get((layer, second))) for first, second in claims]
        rows.append([layer, *("" if x is None or y is None else "yes" if x <= y else "no" for x, y in pairs)])
    columns = ["Layer", *(f"{first} loses no more than {second}" for first, second in claims)]
    caption = (
        "The paper finds this ordering outside residual blocks (section 4, D.3); inside, G_ReLU falls behind rank 1. "
        "Means are compared; intervals may overlap."
    )
    return [Details("The paper's ordering of families, layer by layer", [Table(columns, rows, caption)])]


def _maps(study: StitchingStudy) -> list[Block]:
    """Permutations and scales, as learned and as matched in closed form."""
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
    return [
        Heading("Who reads whom"),
        Paragraph(text),
        Table(columns, rows, digits=1),
        *more,
        Grid([_permutation(s) for s in chosen], width=360),
        *_scales(chosen),
    ]


def _permutation(s: Stitching) -> Figure:
    assert s.pairing is not None
    closed, index, live = s.pairing["closed_form"], s.pairing["index"], s.pairing["live"]
    place = {channel: i for i, channel in enumerate(closed) if channel >= 0}
    place |= {c: len(place) + k for k, c in enumerate(c for c in range(s.c_in) if c not in place)}
    scales = [log10(abs(x)) if x else None for x in s.pairing["scale"]]
    traces = []
    for alive in (False, True):
        rows = [i for i in range(s.c_out) if bool(live[i]) == alive and index[i] >= 0]
        known = [scales[i] for i in rows]
        marker: dict[str, Any] = {"size": 6 if s.c_out <= 64 else 4, "color": "#b9bec7"}
        if alive:
            reach = max([0.3, *(abs(x) for x in known if x is not None and x > -4)])
            marker |= {
                "color": [None if x is None else round(x, 3) for x in known], "colorscale": "RdBu", "cmin": -reach,
                "cmax": reach, "line": {"width": 0.5, "color": "#6b7280"},
                "colorbar": {"thickness": 8, "outlinewidth": 0, "title": {"text": "log10 scale", "side": "right"}},
            }  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "live" if alive else "dead", "showlegend": False,
                "x": [place[index[i]] for i in rows], "y": rows, "marker": marker,
                "customdata": [[index[i], round(s.pairing["scale"][i], 4)] for i in rows],
                "hovertemplate": "channel %{y} of B reads %{customdata[0]} of A, times %{customdata[1]}<extra></extra>",
            }
        )  # fmt: skip
    axis = {"showgrid": False, "zeroline": False}
    layout = {
        "margin": {"l": 45, "r": 5, "t": 10, "b": 40},
        "xaxis": {**axis, "title": {"text": "channel of A, sorted by the match"}, "range": [-1, s.c_in]},
        "yaxis": {**axis, "title": {"text": "channel of B"}, "range": [s.c_out, -1]},
    }
    share = "" if s.agreement is None else f", {s.agreement:.0%} as in closed form"
    return Figure({"data": traces, "layout": layout}, f"{s.layer_name}, {s.family}{share}", "", height=340)


def _scales(chosen: Sequence[Stitching]) -> list[Block]:
    scaled = [s for s in chosen if s.pairing is not None and any(x not in (0.0, 1.0) for x in s.pairing["scale"])]
    if not scaled:
        return []
    figures = []
    for s in scaled:
        assert s.pairing is not None
        heights = sorted(x for x, alive in zip(s.pairing["scale"], s.pairing["live"]) if alive)
        names = [str(i) for i in range(len(heights))]
        figures.append(bars(names, {"scale": heights}, title=f"{s.layer_name}, {s.family}", y_title="scale"))
    return [Details("Scales of live channels, sorted", [Grid(figures, width=360)])]


def _training(study: StitchingStudy) -> list[Block]:
    """Loss and distance from the polytope, epoch by epoch, for the first run of each family and layer."""
    trained: dict[tuple[str, str], Stitching] = {}
    for s in study.stitchings:
        if s.history:
            trained.setdefault((s.layer_name, s.family), s)
    if not trained:
        return []
    figures: list[Block] = []
    for layer in study.layers:
        here = {family: s for (name, family), s in trained.items() if name == layer}
        longest = max((len(s.history) for s in here.values()), default=0)
        if not longest:
            continue
        epochs = [str(i + 1) for i in range(longest)]
        series = [Series(f, _padded([e["loss"] for e in s.history], longest)) for f, s in here.items()]
        figures.append(lines(epochs, series, title=f"{layer}: loss of maps in training", y_title="loss", limits=None))
        judged = {f: s for f, s in here.items() if s.start_loss is not None}
        if judged:
            figures.append(_judged(layer, judged, longest))
        errors = {f: [e["doubly_stochastic_error"] for e in s.history] for f, s in here.items()}
        known = [Series(f, _padded(e, longest)) for f, e in errors.items() if any(v is not None for v in e)]
        if known:
            figures.append(lines(epochs, known, title=f"{layer}: distance from doubly stochastic", limits=None))
    return [Details("Training, epoch by epoch", [Grid(figures, width=420)])]


def _judged(layer: str, judged: Mapping[str, Stitching], longest: int) -> Figure:
    """Training loss of the maps as they would be evaluated, from the start on: what the kept epoch is chosen by."""
    series = [
        Series(f, _padded([s.start_loss, *(e["evaluated_loss"] for e in s.history)], longest + 1))
        for f, s in judged.items()
    ]
    kept = ", ".join(f"{f} {s.kept or 'the start'}" for f, s in judged.items() if s.kept is not None)
    title = f"{layer}: training loss as evaluated; kept: {kept}"
    return lines([str(i) for i in range(longest + 1)], series, title=title, y_title="loss", limits=None)


def _padded(values: Sequence[float | None], n: int) -> list[float | None]:
    return [*values, *[None] * (n - len(values))]


def _drift(study: StitchingStudy) -> list[Block]:
    """Means by family and method, and every stitched network where there are more."""
    known = [s for s in study.stitchings if s.drift is not None]
    groups: dict[tuple[str, str], list[Stitching]] = {}
    for s in known:
        groups.setdefault((s.family, s.method), []).append(s)
    rows = [[f, m.replace("_", " "), *_means(found)] for (f, m), found in groups.items()]
    blocks: list[Block] = [Table(["Family", "Method", "Penalty", *_DISTANCES], rows, "Means over layers.")]
    if len(known) > len(groups):
        each = [[" -> ".join(s.names), s.layer_name, s.family, s.method.replace("_", " "), *_means([s])] for s in known]
        columns = ["Networks", "Layer", "Family", "Method", "Penalty", *_DISTANCES]
        blocks.append(Details("Every stitched network", [Table(columns, each)]))
    return blocks


_DISTANCES = ("Residual", "Fréchet", "Mahalanobis")


def _means(found: Sequence[Stitching]) -> list[float]:
    drifts = [s.drift for s in found if s.drift is not None]
    distances = [[d.residual, d.frechet, d.mahalanobis] for d in drifts]
    return [100 * fmean(s.penalty for s in found), *(fmean(values) for values in zip(*distances))]


def _accuracies(study: StitchingStudy) -> dict[str, str]:
    both = [pair for s in study.stitchings for pair in zip(s.names, (s.accuracy_a, s.accuracy_b))]
    return {name: f"{value:.2%}" for name, value in both}
