"""The page of a barrier: loss and accuracy along the path between networks, before and after alignment."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ..._words import counted
from ...merging import Barrier
from ..blocks import Block, Figure, Grid, Heading, Paragraph, Table
from ..figures import Series, lines
from ..page import Page
from ..provenance import provenance


def barrier_page(barrier: Barrier) -> Page:
    """Lay out a barrier.

    Facts of the networks and the data, and the command line, are shown where ``barrier.settings`` holds them as
    ``networks`` (a list of mappings), ``data`` (a mapping) and ``command`` (text).
    """
    measures = ["loss", *(["accuracy"] if all(c.accuracy is not None for c in barrier.curves) else [])]
    blocks: list[Block] = [
        Paragraph(_verdict(barrier), "verdict"),
        *(Paragraph(f"Note: {note}", "note") for note in barrier.notes),
        Heading("Along the path"),
        Grid([_curves(barrier, measure) for measure in measures]),
        _table(barrier, measures),
    ]
    if len(barrier.pairs) > 1:
        blocks += [Heading("Pair by pair"), _pairs(barrier)]
    made = {"alignment": barrier.alignment or "none", "interpolation": barrier.interpolation}
    blocks += provenance(barrier.settings, made)
    names = list(dict.fromkeys(name for pair in barrier.pairs for name in pair))
    title = " and ".join(names) if len(names) == 2 else f"{len(names)} networks"
    return Page(
        f"The barrier between {title}",
        blocks,
        f"{counted(len(barrier.ratios), 'point')} on each path, {counted(barrier.examples, 'example')}",
    )


def _verdict(barrier: Barrier) -> str:
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
    places = [f"{t:.3g}" for t in barrier.ratios]
    series = []
    for path, recalibrated in barrier.variants:
        chosen = [c for c in barrier.curves if (c.path, c.recalibrated) == (path, recalibrated)]
        values = [list(c.loss if measure == "loss" else c.accuracy or ()) for c in chosen]
        name = _name(path, recalibrated)
        band: dict[str, Any] = {}
        if len(values) > 1:
            band = {"low": [min(v) for v in zip(*values)], "high": [max(v) for v in zip(*values)]}
        series.append(Series(name, [fmean(v) for v in zip(*values)], **band))
    shown = "Means over pairs; bands reach from the lowest to the highest." if len(barrier.pairs) > 1 else ""
    return lines(
        places,
        series,
        title=f"{measure.capitalize()} between the networks",
        caption=f"The x axis is the share of B. {shown}".strip(),
        y_title=measure,
        limits=None if measure == "loss" else (0.0, 1.0),
    )


def _name(path: str, recalibrated: bool) -> str:
    return f"{path}, batch norms recalibrated" if recalibrated else path


def _table(barrier: Barrier, measures: Sequence[str]) -> Table:
    rows = []
    for path, recalibrated in barrier.variants:
        row: list[Any] = [_name(path, recalibrated)]
        for measure in measures:
            heights = barrier.heights(path, recalibrated, measure)
            found = barrier.interval(path, recalibrated, measure)
            most = 1.0 if measure == "accuracy" else float("inf")
            ends = "" if found is None else f"{max(found.low, 0):.3f} to {min(found.high, most):.3f}"
            row += [fmean(heights), ends]
        rows.append(row)
    columns = ["path", *(text for m in measures for text in (f"{m} barrier", "95 % interval"))]
    models = len({name for pair in barrier.pairs for name in pair})
    over = f"Intervals leave out networks, of which there are {models}." if len(barrier.pairs) > 1 else ""
    caption = f"The barrier is the largest distance from the chord between the ends. {over}".strip()
    return Table(columns, rows, caption=caption, digits=4)


def _pairs(barrier: Barrier) -> Table:
    columns = ["A", "B", *(_name(*variant) for variant in barrier.variants)]
    heights = [barrier.heights(*variant) for variant in barrier.variants]
    rows = [[a, b, *(h[k] for h in heights)] for k, (a, b) in enumerate(barrier.pairs)]
    return Table(columns, rows, caption="Loss barriers.", digits=4)
