"""Pages of two networks in one basis: an alignment, the verdict of ``same``, and the barrier between them."""

from dataclasses import replace
from math import isfinite
from statistics import fmean

from torch import Tensor

from ..._words import counted, sentence
from ...matching import Alignment, Match
from ...merging import Barrier
from ..blocks import Block, Details, Facts, Figure, Grid, Heading, Listing, Paragraph, Table, noted
from ..figures import Series, bars, heatmap, lines, plot, strip
from ..page import Page, provenance

_PICTURES = 24  # most spaces whose permutation is drawn
_DOTS = 2048  # most units in one picture
_RANKS = 11  # ranks shown for the units of a space, from best to worst
_BLUE = "#3b7dd8"
_DOTS_ARE = (
    "A dot for each unit: its place in A along the x axis, the unit of B that was moved there along the y axis. "
    "Units in place lie on the diagonal."
)
_TITLES = {
    "flipped": "signs flipped", "scale": "largest log scale", "cosine": "mean cosine", "worst": "worst cosine",
    "chance": "mean by chance",
}  # fmt: skip


def alignment_page(alignment: Alignment) -> Page:
    """Lay out the page of an alignment."""
    frame, rows = alignment.to_frame(), alignment._rows()
    names, titles, chance = ([row[column] for row in rows] for column in ("name", "space", "chance"))
    pictures = [_permutation(name, title, alignment) for name, title in zip(names[:_PICTURES], titles)]
    made = {
        "method": alignment.method, "kinds searched": ", ".join(alignment.kinds), "seed": alignment.seed,
        "objective": f"{alignment.objective:.6g}", "starts": ", ".join(f"{x:.6g}" for x in alignment.starts) or "one",
    }  # fmt: skip
    rest = f" (the first {_PICTURES} of {len(names)} spaces)" if len(names) > _PICTURES else ""
    blocks: list[Block] = [
        Paragraph(sentence(alignment.summary().partition("\n")[0]), "verdict"),
        *([_cosines(titles, [alignment.quality[name] for name in names], chance)] if names else []),
        *noted(alignment.notes),
        Heading("Space by space"),
        Table.of(
            frame.rename(columns=_TITLES),
            "The cosine of a unit is that between its weights in A and in the moved B: 1 for equal directions. "
            "By chance is what the same kind of search finds in a network whose units are unrelated.",
        ),
        Details(f"Where the units went{rest}", [Paragraph(_DOTS_ARE), Grid(pictures, width=300)]),
        Details("The objective along the way", [_history(alignment)]),
        Details("The alignment as text", [Listing(alignment.summary())]),
        Facts(made, "How this was made"),
    ]
    units = sum(e.permutation.numel() for e in alignment.transformation.elements.values())
    sizes = f"{counted(len(names), 'space')}, {counted(units, 'unit')}"
    return Page("Two networks in one basis", blocks, f"{sizes}, by {alignment.method}")


def _cosines(titles: list[str], qualities: list[Tensor], chance: list[float]) -> Figure:
    """Cosines of the units of each space, from best to worst, as colours."""
    columns = []
    for quality in qualities:
        known = quality.flatten()[~quality.flatten().isnan()].sort(descending=True).values.tolist()
        places = [round(k * (len(known) - 1) / (_RANKS - 1)) for k in range(_RANKS)]
        columns.append([known[i] if known else None for i in places])
    ranks = ["best", *(f"{k / (_RANKS - 1):.0%}" for k in range(1, _RANKS - 1)), "worst"]
    if any(x == x for x in chance):
        ranks, columns = [*ranks, "mean by chance"], [[*column, x] for column, x in zip(columns, chance)]
    low = min((v for column in columns for v in column if v is not None and v == v), default=0.0)
    figure = heatmap(
        list(zip(*columns)), ranks, titles, title="How well units fit, space by space",
        caption="Each column is a space, its units from the best match to the worst. Dark columns are spaces in which "
        "the two networks learned different units.",
        row_title="units", column_title="space", name="cosine", limits=(min(0.0, low), 1.0),
    )  # fmt: skip
    return replace(figure, height=420)


def _history(alignment: Alignment) -> Figure:
    title, caption = "The objective along the way", "After each sweep of the best start; it never falls."
    series, steps = [Series("objective", alignment.history)], [str(k) for k in range(len(alignment.history))]
    return lines(steps, series, title=title, caption=caption, y_title="objective", limits=None)


def _permutation(name: str, title: str, alignment: Alignment) -> Figure:
    order = alignment.transformation[name].permutation
    flat = order.reshape(-1, order.shape[-1])
    places = [k for row in flat.tolist() for k in range(len(row))][:_DOTS]
    copies = f" ({flat.shape[0]} copies drawn over each other)" if flat.shape[0] > 1 else ""
    trace = {
        "type": "scatter", "mode": "markers", "x": places, "y": flat.flatten()[:_DOTS].tolist(), "showlegend": False,
        "marker": {"color": _BLUE, "size": 5 if len(places) < 200 else 3},
        "hovertemplate": "place %{x}<br>unit %{y}<extra></extra>",
    }  # fmt: skip
    side = {"range": [-0.5, order.shape[-1] - 0.5], "zeroline": False, "constrain": "domain"}
    x, y = ({**side, "title": {"text": text}} for text in ("place in A", "unit of B"))
    margin = {"l": 40, "r": 10, "t": 10, "b": 40}
    caption = f"{order.shape[-1]} units{copies}"
    return plot([trace], x, {**y, "scaleanchor": "x"}, title, caption, height=300, margin=margin)


def match_page(found: Match) -> Page:
    """Lay out the page of a verdict on two networks."""
    rows = [[name, d if isfinite(d) else "only in one, or reshaped"] for name, d in found.differing.items()]
    blocks: list[Block] = [Paragraph(sentence(found.summary().splitlines()[0]), "verdict"), *_picture(found)]
    if rows:
        caption = "What is left of each tensor once the first network is moved, relative to its size there."
        blocks += [Heading("What differs"), Table(["tensor", "difference"], rows, caption, digits=4)]
    facts = {
        "residual": f"{found.residual:.3g}", "deviation of single weights": f"{found.deviation:.3g}",
        "coarsest precision that explains it": found.precision or "none",
        "residual by chance": "not needed" if found.chance is None else f"{found.chance:.3g}",
    }  # fmt: skip
    return Page("Are two networks one?", [*blocks, Facts(facts, "In numbers")])


def _picture(found: Match) -> list[Figure]:
    known = {name: d for name, d in found.differing.items() if isfinite(d)}
    if known:
        title, row = "Where the networks differ", "difference"
        return [strip(list(known.values()), list(known), row=row, title=title, places="tensor")]
    if not isfinite(found.residual):
        return []
    levels = {"these two": found.residual, "unrelated networks": 1.0 if found.chance is None else found.chance}
    caption = "The share of the weights that is not explained after matching: 0 for one network."
    return [bars(list(levels), {"residual": list(levels.values())}, title="What is left", caption=caption)]


def barrier_page(barrier: Barrier) -> Page:
    """Lay out the page of a barrier."""
    measures = ["loss", *(["accuracy"] if all(c.accuracy is not None for c in barrier.curves) else [])]
    names = list(dict.fromkeys(name for pair in barrier.pairs for name in pair))
    over = f" In brackets 95 % intervals, which leave out networks, of which there are {len(names)}."
    over = over if len(barrier.pairs) > 1 else ""
    blocks: list[Block] = [
        Paragraph(_verdict_of_barrier(barrier), "verdict"),
        *noted(barrier.notes),
        Heading("Along the path"),
        Grid([_curves(barrier, measure) for measure in measures]),
        Table.of(barrier.table(), f"The barrier is the largest distance from the chord between the ends.{over}"),
    ]
    if len(barrier.pairs) > 1:
        blocks += [Heading("Pair by pair"), _pairs(barrier)]
    made = {"alignment": barrier.alignment or "none", "interpolation": barrier.interpolation}
    blocks += provenance(barrier.settings, made)
    title = " and ".join(names) if len(names) == 2 else f"{len(names)} networks"
    return Page(
        f"The barrier between {title}",
        blocks,
        f"{counted(len(barrier.ratios), 'point')} on each path, {counted(barrier.examples, 'example')}",
    )


def _verdict_of_barrier(barrier: Barrier) -> str:
    again = any(recalibrated for _, recalibrated in barrier.variants)
    direct, aligned = (barrier.heights(path, again) for path in ("direct", "aligned"))
    head = "With batch norms recalibrated, the loss" if again else "The loss"
    if not aligned or not direct:
        when, heights = ("without", direct) if direct else ("after", aligned)
        return f"{head} between the networks rises {fmean(heights):.3g} above its chord {when} alignment."
    before, after = fmean(direct), fmean(aligned)
    share = f", {after / before:.0%} of it" if before > 0 else ""
    return (
        f"{head} between the networks rises {before:.3g} above the straight line between their own losses; "
        f"after alignment it rises {after:.3g}{share}."
    )


def _curves(barrier: Barrier, measure: str) -> Figure:
    series = []
    for path, recalibrated in barrier.variants:
        chosen = [c for c in barrier.curves if (c.path, c.recalibrated) == (path, recalibrated)]
        points = list(zip(*(getattr(c, measure) or () for c in chosen)))
        ends = (list(map(min, points)), list(map(max, points))) if len(chosen) > 1 else (None, None)
        series.append(Series(_name(path, recalibrated), [fmean(v) for v in points], *ends))
    shown = " Means over pairs; bands reach from the lowest to the highest." if len(barrier.pairs) > 1 else ""
    return lines(
        [f"{t:.3g}" for t in barrier.ratios], series, title=f"{measure.capitalize()} between the networks",
        caption=f"The x axis is the share of B.{shown}", y_title=measure,
        limits=None if measure == "loss" else (0.0, 1.0),
    )  # fmt: skip


def _name(path: str, recalibrated: bool) -> str:
    return f"{path}, batch norms recalibrated" if recalibrated else path


def _pairs(barrier: Barrier) -> Table:
    columns = ["A", "B", *(_name(*variant) for variant in barrier.variants)]
    heights = [barrier.heights(*variant) for variant in barrier.variants]
    rows = [[a, b, *(h[k] for h in heights)] for k, (a, b) in enumerate(barrier.pairs)]
    return Table(columns, rows, caption="Loss barriers.", digits=4)
