"""Display of a result in a notebook: its headline, one small picture, a small table."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

from .._result import Result
from .._untrusted.text import printable
from ..similarity.comparison import verdict
from .figures import cut

__all__ = ["notebook"]

_ROWS, _COLUMNS, _LETTERS = 12, 8, 50  # limits of a table, and of one of its cells
_COLOURS = (("blue", "#3b7dd8"), ("grey", "#9aa3ad"), ("orange", "#d8783b"))

Rows = Sequence[Mapping[str, Any]]
Shown = tuple[str, Rows, str]  # headline, rows of a table, a picture


def notebook(result: Result) -> str:
    """The HTML that a notebook displays for a result."""
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
    names = {"cosine": "mean cosine"} | ({"chance": "by chance"} if found.chance else {})
    rows = [{names.get(key, key): row[key] for key in ("space", "units", "moved", *names)} for row in found._rows()]
    bars = {name: [row[name] for row in rows] for name in names.values()}
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
    return found.headline, rows, _bars(first, "loss along the path, first pair")


_KINDS: dict[str, Callable[[Any], Shown]] = {
    "Comparison": _comparison,
    "Alignment": _alignment,
    "Symmetry": _symmetry,
    "Distances": _distances,
    "Barrier": _barrier,
}


def _heat(values: Sequence[Sequence[float]], title: str) -> str:
    """A matrix as squares, darker for higher values, from 0 or the lowest value to 1."""
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
    """Bars, side by side for the series at each place."""
    legend = ", ".join(f"{colour}: {name}" for (colour, _), name in zip(cycle(_COLOURS), series))
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
    return _picture(
        marks, count * width * (len(series) + 0.5), height, f"{title} ({legend})" if len(series) > 1 else title
    )


def _picture(marks: Sequence[str], width: float, height: float, title: str) -> str:
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{_text(title)}">{"".join(marks)}</svg>'
    )
    return f'<div>{drawn}<div style="font-size:smaller">{_text(title)}</div></div>'


def _table(rows: Rows) -> str:
    """The first and last rows and all nonempty columns; a single row is transposed."""
    import pandas as pd

    frame = pd.DataFrame(rows).map(_cell)
    frame = frame.loc[:, (frame != "").any()]
    if len(rows) == 1:
        frame = frame.T.reset_index().set_axis(["", "value"], axis=1)
    more = len(frame) > _ROWS or len(frame.columns) > _COLUMNS
    html: str = frame.to_html(max_rows=_ROWS, max_cols=_COLUMNS, index=False, border=0, show_dimensions=more)
    return html


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else cut(printable(str(value)), _LETTERS)


def _text(value: Any) -> str:
    return escape(printable(str(value)))
