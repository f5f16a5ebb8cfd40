"""A result in a notebook: what was found, one small picture, a small table."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from .._result import Result
from .._untrusted.text import printable
from ..similarity.comparison import verdict

__all__ = ["notebook"]

_ROWS, _COLUMNS, _LETTERS = 12, 8, 60  # of a table, and of one of its cells
_COLOURS = (("blue", "#3b7dd8"), ("grey", "#9aa3ad"), ("orange", "#d8783b"))

Rows = Sequence[Mapping[str, Any]]
Shown = tuple[str, Rows, str]  # what was found, rows of a table, a picture


def notebook(result: Result) -> str:
    """The HTML that a notebook shows for a result."""
    words, rows, picture = _KINDS.get(type(result).__name__, _plain)(result)
    words = words.removeprefix(type(result).__name__).lstrip(": ")
    head = f'<p style="max-width:46em"><b>{_text(type(result).__name__)}</b>: {_text(words)}</p>'
    return f'<div style="max-width:52em;overflow-x:auto">{head}{picture}{_table(rows)}</div>'


def _plain(result: Result) -> Shown:
    return result.headline, result._rows(), ""


def _comparison(found: Any) -> Shown:
    measure = verdict.lead(found)
    partner = verdict.partners(found, measure).tolist()
    title, chance, base = verdict.measure_title(measure), found.chance[measure], found.untrained.get(measure)
    rows = []
    for i, (name, j) in enumerate(zip(found.layers_a, partner)):
        row = {"layer of A": name, "layer of B": found.layers_b[j], title: _short(found.scores[measure][i, j])}
        row |= {} if chance is None else {"chance": _short(chance[i, j])}
        rows.append(row | ({} if base is None else {"untrained": _short(base[i, j])}))
    return verdict.headline(found), rows, _heat(found.scores[measure].tolist(), f"{title}, layers of A by layers of B")


def _short(score: Any) -> float:
    return round(float(score), 3) + 0.0  # no "-0"


def _alignment(found: Any) -> Shown:
    names = {"cosine": "mean cosine", "chance": "by chance"}
    kept = ("space", "units", "moved", "cosine", "chance") if found.chance else ("space", "units", "moved", "cosine")
    rows = [{names.get(key, key): row[key] for key in kept} for row in found._rows()]
    bars = {"mean cosine": [row["mean cosine"] for row in rows]}
    if found.chance:
        bars["by chance"] = [row["by chance"] for row in rows]
    return found.headline, rows, _bars(bars, "mean cosine of matched units, space by space")


def _symmetry(found: Any) -> Shown:
    rows = [{key: row[key] for key in ("space", "size", "group", "axes", "name")} for row in found._rows()]
    sizes = {"units": [float(row["size"]) for row in rows]}
    return found.headline, rows, _bars(sizes, "units of each space") if rows else ""


def _distances(found: Any) -> Shown:
    return (found.headline, found._rows(), _heat(found.scores.tolist(), "scores of all pairs, in order"))


def _barrier(found: Any) -> Shown:
    names = {(path, again): f"{path}{', recalibrated' if again else ''}" for path, again in found.variants}
    rows = [
        {"path": name, "pair": " and ".join(pair), "barrier in loss": height}
        for (path, again), name in names.items()
        for pair, height in zip(found.pairs, found.heights(path, again))
    ]
    first = {names[c.path, c.recalibrated]: c.loss for c in found.curves if c.pair == 0}
    return found.headline, rows, _curves(found.ratios, first, "loss along the path, first pair")


_KINDS: dict[str, Callable[[Any], Shown]] = {
    "Comparison": _comparison,
    "Alignment": _alignment,
    "Symmetry": _symmetry,
    "Distances": _distances,
    "Barrier": _barrier,
}


def _heat(values: Sequence[Sequence[float]], title: str) -> str:
    """A matrix as squares, the darker the higher, from 0 or the lowest value to 1."""
    side = max(2, min(40, 220 // max(len(values), len(values[0]), 1)))
    known = [v for row in values for v in row if v == v]
    low, high = min([0.0, *known]), max([1.0, *known])
    squares = [
        f'<rect x="{j * side}" y="{i * side}" width="{side}" height="{side}" fill="{_COLOURS[0][1]}" '
        f'fill-opacity="{(v - low) / (high - low):.2f}"><title>{v:.3f}</title></rect>'
        for i, row in enumerate(values)
        for j, v in enumerate(row)
        if v == v
    ]
    return _picture(squares, len(values[0]) * side, len(values) * side, title)


def _bars(series: Mapping[str, Sequence[float]], title: str) -> str:
    """Bars, one of each series side by side for each place."""
    count = max(map(len, series.values()))
    width, height = max(2.0, min(16.0, 480 / max(count * len(series), 1))), 80
    top = max([1e-9, *(v for values in series.values() for v in values if v == v)])
    marks = []
    for k, (name, values) in enumerate(series.items()):
        for i, v in enumerate(values):
            if v == v and v > 0:
                tall = height * v / top
                x = i * width * (len(series) + 0.5) + k * width
                marks.append(
                    f'<rect x="{x:.1f}" y="{height - tall:.1f}" width="{width:.1f}" height="{tall:.1f}" '
                    f'fill="{_COLOURS[k % 3][1]}"><title>{_text(name)} {v:.3g}</title></rect>'
                )
    return _picture(marks, count * width * (len(series) + 0.5), height, title + _legend(series))


def _curves(xs: Sequence[float], series: Mapping[str, Sequence[float]], title: str) -> str:
    """Curves from their lowest to their highest value."""
    width, height = 320, 110
    known = [v for values in series.values() for v in values if v == v]
    low, high = min(known, default=0.0), max(known, default=1.0)
    marks = []
    for k, (name, values) in enumerate(series.items()):
        places = (
            f"{width * (x - xs[0]) / ((xs[-1] - xs[0]) or 1):.1f},{height * (1 - (v - low) / ((high - low) or 1)):.1f}"
            for x, v in zip(xs, values)
            if v == v
        )
        marks.append(
            f'<polyline points="{" ".join(places)}" fill="none" stroke="{_COLOURS[k % 3][1]}" stroke-width="2">'
            f"<title>{_text(name)}</title></polyline>"
        )
    return _picture(marks, width, height, f"{title}, {low:.3g} to {high:.3g}{_legend(series)}")


def _legend(series: Mapping[str, Any]) -> str:
    if len(series) < 2:
        return ""
    return f" ({', '.join(f'{_COLOURS[k % 3][0]}: {name}' for k, name in enumerate(series))})"


def _picture(marks: Sequence[str], width: float, height: float, title: str) -> str:
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{_text(title)}">{"".join(marks)}</svg>'
    )
    return f'<div>{drawn}<div style="font-size:smaller">{_text(title)}</div></div>'


def _table(rows: Rows) -> str:
    """The first rows and columns that hold anything; one row is turned on its side."""
    every = dict.fromkeys(key for row in rows for key in row)
    names = [name for name in every if any(_cell(row.get(name)) for row in rows)]
    shown = list(rows[:_ROWS])
    if len(rows) == 1:
        lines = [[name, rows[0].get(name)] for name in names[:_ROWS]]
        head, hidden = ["", "value"], f"<p>{len(names) - _ROWS} more values in to_frame().</p>" * (len(names) > _ROWS)
    else:
        lines = [[row.get(name) for name in names[:_COLUMNS]] for row in shown]
        head = names[:_COLUMNS]
        more = [
            *([f"{len(rows) - _ROWS:,} more rows"] if len(rows) > _ROWS else []),
            *([f"{len(names) - _COLUMNS} more columns"] if len(names) > _COLUMNS else []),
        ]
        hidden = f"<p>{' and '.join(more)} in to_frame().</p>" if more else ""
    top = "".join(f'<th style="text-align:left;padding-right:10px">{_text(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(_td(value) for value in line)}</tr>" for line in lines)
    return f'<table border="0"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{hidden}'


def _td(value: Any) -> str:
    side = "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left"
    return f'<td style="text-align:{side};padding:1px 10px 1px 0;white-space:nowrap">{_text(_cell(value))}</td>'


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _text(value: Any) -> str:
    return escape(printable(str(value)))
