"""The page of an alignment: how well units fit, space by space, and where they went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..._words import counted
from ..blocks import Block, Details, Facts, Figure, Grid, Heading, Listing, Paragraph, Table
from ..figures import Series, bars, label, lines
from ..page import Page

if TYPE_CHECKING:
    from ...matching import Alignment

__all__ = ["alignment_page"]

_PICTURES = 24  # spaces whose permutation is drawn
_DOTS = 2048  # units of one picture
_BLUE = "#3b7dd8"


def alignment_page(alignment: Alignment) -> Page:
    """Lay out an alignment."""
    frame = alignment.to_frame()
    table = frame.to_numpy().tolist()
    names = [str(name) for name in frame["space"]]
    blocks: list[Block] = [
        Paragraph(_verdict(alignment), "verdict"),
        *(Paragraph(f"Note: {note}", "note") for note in alignment.notes),
        Heading("How well units fit"),
        Grid([_cosines(names, frame), _history(alignment)]),
        Table(
            ["space", "units", "group", "moved", "signs flipped", "largest log scale", "mean cosine", "worst cosine",
             "mean by chance"],
            table,
            caption="The cosine of a unit is that between its weights in A and in the moved B: 1 for equal directions. "
            "By chance is what the same kind of search finds in a network whose units are unrelated.",
        ),
        Heading("Unit by unit"),
        Grid([_sorted_cosines(name, alignment.quality[name]) for name in names[:_PICTURES]]),
        Heading("Where the units went"),
        Paragraph(
            "A dot for each unit: its place in A along the x axis, the unit of B that was moved there along the y "
            "axis. Units in place lie on the diagonal."
        ),
        Grid([_permutation(name, alignment) for name in names[:_PICTURES]], width=300),
        *_left_out(names),
        Details("The alignment as text", [Listing(alignment.summary())]),
        Facts(
            {
                "method": alignment.method, "kinds searched": ", ".join(alignment.kinds), "seed": alignment.seed,
                "objective": f"{alignment.objective:.6g}",
                "starts": ", ".join(f"{x:.6g}" for x in alignment.starts) or "one",
            },
            "How this was made",
        ),
    ]  # fmt: skip
    units = sum(e.permutation.numel() for e in alignment.transformation.elements.values())
    sizes = f"{counted(len(names), 'space')}, {counted(units, 'unit')}"
    return Page("Two networks in one basis", blocks, f"{sizes}, by {alignment.method}")


def _verdict(alignment: Alignment) -> str:
    frame = alignment.to_frame()
    moved, units = int(frame["moved"].sum()), int(frame["units"].sum())
    mean, chance = alignment.cosines
    by_chance = f", where unrelated networks would get {chance:.3f}" if chance == chance else ""
    return (
        f"{moved:,} of {units:,} units of B changed places or bases. The distance between the networks, relative to "
        f"A, went from {alignment.before:.3g} to {alignment.after:.3g}; the mean cosine of matched units is "
        f"{mean:.3f}{by_chance}."
    )


def _cosines(names: list[str], frame: Any) -> Figure:
    return bars(
        names,
        {
            "mean cosine": frame["cosine"].tolist(),
            **({"by chance": frame["chance"].tolist()} if frame["chance"].notna().any() else {}),
            "worst cosine": frame["worst"].tolist(),
        },
        title="Match quality of each space",
        caption="Low bars are spaces in which the two networks learned different units.",
        y_title="cosine",
    )


def _history(alignment: Alignment) -> Figure:
    steps = [str(k) for k in range(len(alignment.history))]
    return lines(
        steps,
        [Series("objective", alignment.history)],
        title="The objective along the way",
        caption="After each sweep of the best start; it never falls.",
        y_title="objective",
        limits=None,
    )


def _sorted_cosines(name: str, quality: Tensor) -> Figure:
    cosines = quality.flatten()
    values = cosines[~cosines.isnan()].sort(descending=True).values
    step = max(1, len(values) // 100)  # a hundred points draw the curve
    shown = values[::step].tolist()
    return lines(
        [str(k * step) for k in range(len(shown))],
        [Series("cosine", shown)],
        title=name,
        caption="Units from best to worst match.",
        limits=(0.0, 1.0),
    )


def _permutation(name: str, alignment: Alignment) -> Figure:
    order = alignment.transformation[name].permutation
    flat = order.reshape(-1, order.shape[-1])
    places = [k for row in flat.tolist() for k in range(len(row))][:_DOTS]
    units = [unit for row in flat.tolist() for unit in row][:_DOTS]
    copies = f" ({flat.shape[0]} copies drawn over each other)" if flat.shape[0] > 1 else ""
    trace = {
        "type": "scatter", "mode": "markers", "x": places, "y": units,
        "marker": {"color": _BLUE, "size": 5 if len(places) < 200 else 3},
        "hovertemplate": "place %{x}<br>unit %{y}<extra></extra>", "showlegend": False,
    }  # fmt: skip
    side = {"range": [-0.5, order.shape[-1] - 0.5], "zeroline": False}
    layout = {
        "margin": {"l": 40, "r": 10, "t": 10, "b": 40},
        "xaxis": {**side, "title": {"text": label("place in A")}, "constrain": "domain"},
        "yaxis": {**side, "title": {"text": label("unit of B")}, "scaleanchor": "x", "constrain": "domain"},
    }
    return Figure({"data": [trace], "layout": layout}, name, f"{order.shape[-1]} units{copies}", height=300)


def _left_out(names: list[str]) -> list[Block]:
    rest = len(names) - _PICTURES
    return [Paragraph(f"{counted(rest, 'more space')} in the table only.", "note")] if rest > 0 else []
