"""The page of an alignment: how well units fit, space by space, and where they went."""

from dataclasses import replace

from torch import Tensor

from ..._words import counted
from ...matching import Alignment
from ..blocks import Block, Details, Facts, Figure, Grid, Heading, Listing, Paragraph, Table
from ..figures import Series, heatmap, label, lines
from ..page import Page

_PICTURES = 24  # spaces whose permutation is drawn
_DOTS = 2048  # units of one picture
_RANKS = 11  # of the units of a space, from best to worst
_BLUE = "#3b7dd8"


def alignment_page(alignment: Alignment) -> Page:
    """Lay out an alignment."""
    frame = alignment.to_frame()
    table = frame.to_numpy().tolist()
    names, titles = ([str(name) for name in frame[column]] for column in ("name", "space"))
    pictures = [_permutation(name, title, alignment) for name, title in zip(names[:_PICTURES], titles)]
    rest = f" (the first {_PICTURES} of {len(names)} spaces)" if len(names) > _PICTURES else ""
    blocks: list[Block] = [
        Paragraph(_verdict(alignment), "verdict"),
        _cosines(titles, [alignment.quality[name] for name in names], frame["chance"].tolist()),
        *(Paragraph(f"Note: {note}", "note") for note in alignment.notes),
        Heading("Space by space"),
        Table(
            ["space", "name", "units", "group", "moved", "signs flipped", "largest log scale", "mean cosine",
             "worst cosine", "mean by chance"],
            table,
            caption="The cosine of a unit is that between its weights in A and in the moved B: 1 for equal directions. "
            "By chance is what the same kind of search finds in a network whose units are unrelated.",
        ),
        Details(
            f"Where the units went{rest}",
            [
                Paragraph(
                    "A dot for each unit: its place in A along the x axis, the unit of B that was moved there along "
                    "the y axis. Units in place lie on the diagonal."
                ),
                Grid(pictures, width=300),
            ],
        ),
        Details("The objective along the way", [_history(alignment)]),
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


def _cosines(titles: list[str], qualities: list[Tensor], chance: list[float]) -> Figure:
    """Cosines of the units of each space from best to worst, as colours."""
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
    steps = [str(k) for k in range(len(alignment.history))]
    return lines(
        steps,
        [Series("objective", alignment.history)],
        title="The objective along the way",
        caption="After each sweep of the best start; it never falls.",
        y_title="objective",
        limits=None,
    )


def _permutation(name: str, title: str, alignment: Alignment) -> Figure:
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
    return Figure({"data": [trace], "layout": layout}, title, f"{order.shape[-1]} units{copies}", height=300)
