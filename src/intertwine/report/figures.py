"""Plots as plain data: heat maps, lines with bands, bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import isfinite
from typing import Any

from .._words import beginning
from .blocks import Figure

_LONGEST = 20  # longest name on an axis; hovering shows the full name
_DIGITS = 5  # significant digits
_WRITTEN = 9  # heat maps up to this size show numbers in the cells
_DARK = 0.435  # share of the colours, from the low end, on which white text is easier to read than black
_BESIDE = 16  # most points with names beside them
_NAMED = 40  # most places with dots and error bars on curves
_STAGES = 16  # most groups of names on one axis
_SHARE = 0.6  # largest share of all names in one group before it is divided
_FINE = 0.2  # largest colour span for which numbers in cells get as many digits as needed
_GAPS = 24  # most rows or columns of a heat map with gaps between cells
_COLORS = ("#3b7dd8", "#e07b39", "#2f9e75", "#a05fc0", "#c9a227", "#d1495b", "#4b9aa8", "#7d6b5d")
_GREY = "#8b919c"
_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}

Matrix = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Series:
    """One curve with a band around it; ``None`` or NaN leaves a gap; dashed and dotted curves are thin and grey."""

    name: str
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    dash: str = "solid"


def label(text: str, longest: int | None = None) -> str:
    """Text made safe for a plot, which would interpret ``<b>`` as markup; long text is cut in the middle.

    Examples:
        >>> label("<b>conv</b>")
        '&lt;b&gt;conv&lt;/b&gt;'
        >>> label("features.12.attention.output", 15)
        'feature….output'
    """
    text = " ".join(str(text).split())
    text = text if longest is None else cut(text, longest)
    # a pair of dollar signs would be read as a formula
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")


def cut(text: str, longest: int) -> str:
    """Long text cut in the middle."""
    head = longest // 2
    return text if len(text) <= longest else f"{text[:head]}…{text[head + 1 - longest :]}"


def heatmap(
    values: Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    caption: str = "",
    row_title: str = "",
    column_title: str = "",
    name: str = "value",
    hover: Mapping[str, Matrix] | None = None,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Figure:
    """Plot a matrix ``(R, C)`` as colours between ``limits``, first row on top; ``None`` and NaN stay blank.

    Hovering shows the value under ``name``, and the matrices in ``hover`` under their names.

    Raises:
        ValueError: If a matrix is not R x C.
    """
    hover = dict(hover or {})
    if limits[0] >= limits[1]:
        limits = (limits[1] - 1, limits[1])  # of equal values
    for key, matrix in ((name, values), *hover.items()):
        if len(matrix) != len(rows) or any(len(row) != len(columns) for row in matrix):
            raise ValueError(f"{key} must have {len(rows)} rows of {len(columns)}. Got another shape.")
    details = [[list(cell) for cell in zip(*[_rounded(m[i]) for m in hover.values()])] for i in range(len(rows))]
    shown = "".join(f"<br>{label(key)}: %{{customdata[{k}]}}" for k, key in enumerate(hover))
    gap = int(max(len(rows), len(columns)) <= _GAPS)
    trace: dict[str, Any] = {
        "type": "heatmap", "z": [_rounded(row) for row in values], "zmin": limits[0], "zmax": limits[1],
        "colorscale": "Viridis", "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 1, "xpad": 6},
        "xgap": gap, "ygap": gap, "hoverongaps": False,
        "hovertemplate": f"%{{text}}<br><b>{label(name)}: %{{z}}</b>{shown}<extra></extra>",  # the page adds texts
        **({"customdata": details} if hover else {}),
    }  # fmt: skip
    layout: Any = {
        "annotations": _cell_numbers(trace["z"], limits) if max(len(rows), len(columns)) <= _WRITTEN else [],
        "shapes": [*_borders(rows, "y"), *_borders(columns, "x")],
        "meta": {
            "xaxis": {**_tick_names(columns), "title": label(column_title or "column")},
            "yaxis": {**_tick_names(rows), "title": label(row_title or "row")},
        },
    }
    x, y = _titled(columns, column_title), _titled(rows, row_title)
    y["range"] = [len(rows) - 0.5, -0.5]  # the first row on top
    return plot([trace], {**x, "tickangle": -45}, y, title, caption, left=10, **layout)


def strip(
    values: Sequence[float | None], names: Sequence[str], *, row: str, title: str, caption: str = "", places: str = "",
    limits: tuple[float, float] | None = None,
) -> Figure:  # fmt: skip
    """Plot a value for each named place as a row of colours, from 0 to the largest value or between ``limits``."""
    known = [v for v in values if v is not None and v == v]
    limits = limits or (0.0, max([*known, 1e-12]))
    figure = heatmap([values], [row], names, title=title, caption=caption, column_title=places, name=row, limits=limits)
    figure.spec["data"][0]["colorbar"]["nticks"] = 3
    figure.spec["layout"]["meta"]["yaxis"]["names"] = [""]  # the title describes the single row
    return replace(figure, height=200)


def lines(
    names: Sequence[str],
    series: Sequence[Series],
    *,
    title: str = "",
    caption: str = "",
    y_title: str = "",
    limits: tuple[float, float] | None = (0.0, 1.0),
    joined: bool = True,
    bars: bool = False,
) -> Figure:
    """Plot curves over named places, each with a band if it has one.

    The y axis spans the ``limits``, extended if values exceed them; ``None`` fits it to the values. Places without an
    order, unlike layers, are not ``joined``. Then, and with ``bars`` at up to 40 places, values stand side by side with
    error bars.

    Raises:
        ValueError: If a curve has not one value per name.
    """
    traces: list[dict[str, Any]] = [_places(names, series)] if series else []
    solid = 0
    for k, one in enumerate(series):
        if any(len(part) != len(names) for part in (one.y, one.low or names, one.high or names)):
            raise ValueError(f"series {one.name} must have {len(names)} values, one for each name. Got another number.")
        color = _COLORS[solid % len(_COLORS)] if one.dash == "solid" else _GREY
        solid += one.dash == "solid"
        shift = (k - (len(series) - 1) / 2) * min(0.12, 0.7 / len(series))  # put values of one place side by side
        barred = not joined or (bars and len(names) <= _NAMED)
        traces += [_points(one, color, shift, joined)] if barred else _curve(one, color)
    x = {**_names_axis(names), "tickangle": -45, "unifiedhovertitle": {"text": " "}}
    y = {"title": {"text": label(y_title)}, **_y_range(series, limits)}
    layout: Any = {"meta": {"xaxis": _tick_names(names)}, "legend": _LEGEND, "hovermode": "x unified"}
    return plot(traces, x, y, title, caption, height=360, **layout)


def bars(
    names: Sequence[str],
    groups: Mapping[str, Sequence[float | None]],
    *,
    title: str = "",
    caption: str = "",
    y_title: str = "",
) -> Figure:
    """Plot bars over named places, with groups side by side.

    Raises:
        ValueError: If a group has not one value per name.
    """
    traces = []
    for k, (name, heights) in enumerate(groups.items()):
        if len(heights) != len(names):
            raise ValueError(f"group {name} must have {len(names)} values, one for each name. Got {len(heights)}.")
        template = f"%{{hovertext}}<br>{label(name)}: %{{y}}<extra></extra>"
        trace = {"type": "bar", "name": label(name), "x": list(range(len(names))), "y": _rounded(heights)}
        marker = {"color": _COLORS[k % len(_COLORS)]}
        traces.append({**trace, "marker": marker, "hovertemplate": template, "hovertext": [label(n) for n in names]})
    x = {**_names_axis(names), "tickangle": -45}
    y = {"title": {"text": label(y_title)}, "rangemode": "tozero"}
    layout: Any = {"barmode": "group", "meta": {"xaxis": _tick_names(names)}, "legend": _LEGEND}
    return plot(traces, x, y, title, caption, height=300, **layout)


def scatter(names: Sequence[str], points: Matrix, *, title: str = "", caption: str = "") -> Figure:
    """Plot named points in the plane, with equal units on both axes.

    Raises:
        ValueError: If there is not one point per name, or a point has not two coordinates.
    """
    if len(points) != len(names) or any(len(point) != 2 for point in points):
        raise ValueError(f"points must be {len(names)} pairs, one for each name. Got another shape.")
    trace = {
        "type": "scatter", "x": _rounded([point[0] for point in points]), "y": _rounded([point[1] for point in points]),
        "text": [label(name, _LONGEST) for name in names], "textposition": "top center", "cliponaxis": False,
        "mode": "markers+text" if len(names) <= _BESIDE else "markers", "marker": {"color": _COLORS[0], "size": 9},
        "hovertemplate": "%{text}<br>%{x}, %{y}<extra></extra>",
    }  # fmt: skip
    axis = {"zeroline": False, "automargin": True}
    margin = {"l": 70, "r": 70, "t": 30, "b": 10}  # half of the longest name
    return plot([trace], axis, {**axis, "scaleanchor": "x"}, title, caption, showlegend=False, margin=margin)


def tree(names: Sequence[str], linkage: Matrix) -> Figure:
    """Plot a dendrogram of names, from the rows of ``scipy.cluster.hierarchy.linkage``."""
    from scipy.cluster.hierarchy import dendrogram

    known = dendrogram(linkage, no_plot=True)
    x, y = ([v for one in known[key] for v in (*one, None)] for key in ("dcoord", "icoord"))
    trace = {
        "type": "scatter", "mode": "lines", "x": _rounded(x), "y": _rounded(y), "line": {"color": _COLORS[0]},
        "hovertemplate": "%{x}<extra></extra>",
    }  # fmt: skip
    leaves = [names[k] for k in known["leaves"]]
    ticks = {"tickvals": [5 + 10 * k for k in range(len(leaves))], "ticktext": [label(n, _LONGEST) for n in leaves]}
    named = {**ticks, "automargin": True, "zeroline": False, "showgrid": False}
    distance = {"title": "distance", "rangemode": "tozero", "automargin": True}
    return plot([trace], distance, named, height=max(260, 60 + 18 * len(leaves)), showlegend=False)


def plot(
    traces: Sequence[Mapping[str, Any]], x: Mapping[str, Any], y: Mapping[str, Any], title: str = "", caption: str = "",
    height: int = 440, left: int = 50, **layout: Any,
) -> Figure:  # fmt: skip
    """A figure from plotly's traces and axes, whose texts have gone through ``label``."""
    margin = {"l": left, "r": 10, "t": 10, "b": 10}
    return Figure(
        {"data": traces, "layout": {"margin": margin, **layout, "xaxis": x, "yaxis": y}}, title, caption, height
    )


def _cell_numbers(values: Matrix, limits: tuple[float, float]) -> list[dict[str, Any]]:
    # As annotations, because a heat map's own text is grey on the green middle of the colours, and hard to read.
    low, high = limits
    return [
        {
            "x": j, "y": i, "text": f"{round(value, 2) + 0.0:.2f}" if high - low > _FINE else f"{value:.2g}",
            "font": {"size": 12, "color": "#ffffff" if (value - low) / (high - low) < _DARK else "#000000"},
            "showarrow": False,
        }
        for i, row in enumerate(values)
        for j, value in enumerate(row)
        if value is not None
    ]  # fmt: skip


def _curve(one: Series, color: str) -> list[dict[str, Any]]:
    places, thin = list(range(len(one.y))), one.dash != "solid"
    curve = {
        "type": "scatter", "name": label(one.name), "x": places, "y": _rounded(one.y),
        "mode": "lines" if thin or len(places) > _NAMED else "lines+markers",
        "line": {"color": color, "width": 1.5 if thin else 2, "dash": one.dash},
    }  # fmt: skip
    if one.low is None or one.high is None:
        return [curve]
    edge = {"type": "scatter", "x": places, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    low, high = ({**edge, "y": _rounded(end), "showlegend": False} for end in (one.low, one.high))
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    faint = f"rgba({red},{green},{blue},0.2)"  # older plotly does not support #rrggbbaa
    return [low, {**high, "fill": "tonexty", "fillcolor": faint}, curve]


def _places(names: Sequence[str], series: Sequence[Series]) -> dict[str, Any]:
    """Invisible points that show the name of a place on hovering; the axis shows only names that fit."""
    values = zip(*(_rounded(one.y) for one in series))
    return {
        "type": "scatter", "mode": "markers", "marker": {"opacity": 0}, "showlegend": False,
        "x": list(range(len(names))), "y": [next((v for v in here if v is not None), None) for here in values],
        "hovertext": [label(name) for name in names], "hovertemplate": "<b>%{hovertext}</b><extra></extra>",
    }  # fmt: skip


def _points(one: Series, color: str, shift: float, joined: bool) -> dict[str, Any]:
    """Values with their intervals as bars."""
    trace: dict[str, Any] = {
        "type": "scatter", "name": label(one.name), "x": [k + shift for k in range(len(one.y))], "y": _rounded(one.y),
        "mode": "lines+markers" if joined else "markers",
        "marker": {"color": color, "size": 7, "symbol": "circle" if one.dash == "solid" else "line-ew-open"},
    }  # fmt: skip
    if one.low is not None and one.high is not None:
        ends = [(one.high, one.y), (one.y, one.low)]
        up, down = (_rounded([None if None in (a, b) else a - b for a, b in zip(*pair)]) for pair in ends)  # type: ignore[operator]
        trace["error_y"] = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1}
    return trace


def _names_axis(names: Sequence[str]) -> dict[str, Any]:
    # A linear axis with names as ticks: a layer called "0" is no number there, and equal names stay separate. Every
    # place has its full name, for hovering; the page writes as many of ``_tick_names`` as fit.
    return {
        "tickmode": "array", "tickvals": list(range(len(names))), "ticktext": [label(name) for name in names],
        "range": [-0.5, len(names) - 0.5], "zeroline": False, "automargin": True,
    }  # fmt: skip


def _titled(names: Sequence[str], title: str) -> dict[str, Any]:
    """The axis of a heat map."""
    return {**_names_axis(names), "title": {"text": label(title), "standoff": 14}, "showgrid": False}


def _tick_names(names: Sequence[str]) -> dict[str, Any]:
    """Short names, and names of stages with the first place of each, for an axis without room for all names."""
    return {
        "names": [label(name, _LONGEST) for name in _without_shared_path(names)],
        "stages": [[start, label(name, _LONGEST)] for start, name in stages(names)],
    }


def stages(names: Sequence[str]) -> list[tuple[int, str]]:
    """Stages of a network, derived from its layer names: the first place and the name of each, at most 16.

    Examples:
        >>> stages(["conv", "layer1.0", "layer1.1", "layer2.0"])
        [(0, 'conv'), (1, 'layer1'), (3, 'layer2')]
        >>> stages([f"h.{i}.mlp" for i in range(100)])[:2]
        [(0, 'h.0–9'), (10, 'h.10–19')]
    """
    paths = [[name] if set(name) & set("-/") else name.split(".") for name in names]  # a file name is no path
    runs: list[tuple[int, str]] = []
    for depth in range(1, max(map(len, paths), default=0) + 1):
        heads = [".".join(path[:depth]) for path in paths]
        starts = [i for i, head in enumerate(heads) if i == 0 or heads[i - 1] != head]
        runs = [(i, heads[i]) for i in starts] if len(starts) > 1 or not runs else runs
        if len(starts) > 1 and max(b - a for a, b in pairwise([*starts, len(names)])) <= _SHARE * len(names):
            break
    alike = [list(group) for _, group in groupby(runs, key=lambda run: run[1].rstrip("0123456789"))]
    step = next((k for k in (1, 2, 5, 10, 20, 50, 100) if sum(-(-len(g) // k) for g in alike) <= _STAGES), len(runs))
    joined = []
    for group in alike:
        for k in range(0, len(group), step):
            first, last = (".".join(one.split(".")[-2:]) for one in (group[k][1], group[k : k + step][-1][1]))
            end = last.removeprefix(first.rstrip("0123456789"))
            joined.append((group[k][0], first if first == last else f"{first}–{end}"))
    return joined


def _borders(names: Sequence[str], axis: str) -> list[dict[str, Any]]:
    """Lines between the stages of a heat map that has too many rows or columns to distinguish them."""
    if len(names) <= _GAPS:
        return []
    other = "y" if axis == "x" else "x"
    line = {
        "type": "line",
        f"{other}ref": "paper",
        f"{other}0": 0,
        f"{other}1": 1,
        "line": {"width": 1, "color": "#fff"},
    }
    return [{**line, f"{axis}0": start - 0.5, f"{axis}1": start - 0.5} for start, _ in stages(names)[1:]]


def _without_shared_path(names: Sequence[str]) -> Sequence[str]:
    # A common prefix is uninformative, and cutting long names in the middle would remove the informative number.
    if max(map(len, names), default=0) <= _LONGEST or len(set(names)) < 2:
        return names
    paths = [name.split(".") for name in names]
    shared = len(beginning(*(path[:-1] for path in paths)))
    return ["…" + ".".join(path[shared:]) for path in paths] if shared else names


def _y_range(series: Sequence[Series], limits: tuple[float, float] | None) -> dict[str, Any]:
    if limits is None:
        return {}
    values = [v for one in series for part in (one.y, one.low or (), one.high or ()) for v in _rounded(part)]
    known = [v for v in values if v is not None]
    low, high = min([limits[0], *known]), max([limits[1], *known])
    margin = 0.03 * (high - low)
    return {"range": [round(low - margin, 3), round(high + margin, 3)]}


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    # JSON cannot express NaN or infinity; plotly leaves a gap at null.
    return [None if v is None or not isfinite(v) else float(f"{v:.{_DIGITS}g}") for v in values]
