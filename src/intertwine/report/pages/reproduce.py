"""Pages of reproductions: one experiment, and all experiments on one page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._nested import by_key
from ..._words import counted, sentence
from ..blocks import Block, Details, Facts, Figure, Grid, Heading, Paragraph, Table
from ..figures import Series, heatmap, lines
from ..page import Page

if TYPE_CHECKING:
    from ...lab.experiments import Reproduction, Row

_TABLES = 4  # tables shown; more are folded away
_SCALES = {
    "smoke": "in seconds, on digits: it shows that everything runs, and checks what must hold at any size",
    "small": "on CIFAR-10 with networks and epochs that a CPU can afford",
    "paper": "at the papers' sizes",
}


_IN_ORDER = re.compile(r"(relu|conv|layer|blocks)[\w.#*]*|[\w ]+(?: =)? -?[\d.]+")
"""Pattern of layer names, and of numbered things such as ``width 64`` and ``a = 0.5``."""
_TITLED = re.compile(r", (?![^(]*\))")
"""Pattern of a comma outside parentheses, unlike that in ``DGN(x, 1)``."""


@dataclass(frozen=True)
class Panel:
    """Groups of rows over the same points: one figure or one table."""

    title: str  # The common property of its groups; may be empty
    points: tuple[str, ...]  # The points along the axis, such as layers
    groups: dict[str, list[Row]]  # Rows of each group, one for each point

    @property
    def measured(self) -> bool:
        """Whether it is a series of at least three numbers, all of them measured."""
        return len(self.points) > 2 and all(row.ours is not None for rows in self.groups.values() for row in rows)

    @property
    def ordered(self) -> bool:
        """Whether its points have an order, as layers and sizes do, but networks and measures do not."""
        return all(map(_IN_ORDER.fullmatch, self.points))


def panels(r: Reproduction) -> list[Panel]:
    """Panels of groups over the same points.

    The part of a group's name after a comma outside parentheses, such as ``"linear_cka, chance taken out"``, becomes
    the title of a separate panel.
    """
    found: dict[tuple[tuple[str, ...], str], dict[str, list[Row]]] = {}
    for group, rows in by_key((row.group, row) for row in r.rows).items():
        name, *title = _TITLED.split(group, maxsplit=1)
        found.setdefault((tuple(row.what for row in rows), "".join(title)), {})[name] = rows
    return [Panel(title, points, groups) for (points, title), groups in found.items()]


def reproduction_page(reproduction: Reproduction) -> Page:
    """Lay out the page of one experiment."""
    r = reproduction
    return Page(r.title, _blocks(r), f"{r.papers}, {_SCALES[r.scale]}")


def all_page(reproductions: Sequence[Reproduction], failed: Mapping[str, str] | None = None) -> Page:
    """Lay out the page of several experiments, with a table of verdicts first; ``failed`` maps names to errors."""
    failed = dict(failed or {})
    rows = [[r.title, r.papers, r.scale, r.verdict, _outcome(r)] for r in reproductions]
    rows += [[name, "", "", error, "failed"] for name, error in failed.items()]
    held = sum(c.held is True for r in reproductions for c in r.claims)
    told = sum(c.held is not None for r in reproductions for c in r.claims)
    agree = [v for r in reproductions for row in r.rows if (v := _compared(r, row)) is not None]
    words = f"{held} of {told} checked statements hold"
    if agree:
        words += f", {sum(agree)} of {len(agree)} comparable numbers agree with the papers'"
    if failed:
        words += f"; {counted(len(failed), 'experiment')} failed"
    blocks: list[Block] = [
        Paragraph(f"{words}.", "verdict"),
        Table(["What", "Papers", "Scale", "Verdict", "Outcome"], rows),
    ]
    for r in reproductions:
        blocks += [Heading(f"{r.title} ({r.papers})"), *_blocks(r)]
    scales = sorted({r.scale for r in reproductions})
    return Page("The papers' tables and figures", blocks, "; ".join(f"{s}: {_SCALES[s]}" for s in scales))


def _blocks(r: Reproduction) -> list[Block]:
    blocks: list[Block] = [Paragraph(sentence(r.verdict), "verdict")]
    if not r.comparable and any(row.paper is not None and row.tolerance is None for row in r.rows):
        said = "The paper's numbers are of other networks, data or training, and are shown for orientation only."
        blocks.append(Paragraph(said, "note"))
    layout = panels(r)
    figures = [_figure(r, panel) for panel in layout if panel.measured]
    if figures:
        blocks.append(Grid(figures))
    maps = [heatmap(one.values, one.layers, one.layers, title=one.title) for one in r.maps]
    if maps:
        blocks.append(Grid(maps))
    if r.claims:
        verdict = lambda c: f"{c.verdict}: {c.why}" if c.why else c.verdict
        rows = [[c.text, verdict(c), c.detail, c.p, c.adjusted, c.needed, c.required or None] for c in r.claims]
        head = ["Statement", "Here", "Judged by", "p", "p (Holm)", "Networks needed", "Must hold at this scale"]
        blocks.append(Table(head, rows))
    tables = [_table(r, panel) for panel in layout]
    if figures:
        blocks.append(Details("All numbers", tables))
    else:
        blocks += tables if len(tables) <= _TABLES else [*tables[:_TABLES], Details("More numbers", tables[_TABLES:])]
    blocks += [Paragraph(note, "note") for note in r.notes]
    return [*blocks, Details("How this was made", [Facts({k: str(v) for k, v in r.facts.items()})])]


def _figure(r: Reproduction, panel: Panel) -> Figure:
    """A figure with one line per group, and the paper's as a dashed line."""
    series, values = list[Series](), list[float]()
    alone = len(panel.groups) == 1
    for name, rows in panel.groups.items():
        banded = all(row.low is not None and row.high is not None for row in rows)
        low, high = ([row.low for row in rows], [row.high for row in rows]) if banded else (None, None)
        series.append(Series("ours" if alone else name, [row.ours for row in rows], low, high))
        if any(row.paper is not None for row in rows):
            paper = [row.paper for row in rows]
            series.append(Series("paper" if alone else f"{name}, paper", paper, dash="dash"))
        values += [v for row in rows for v in (row.ours, row.low, row.high, row.paper) if v is not None]
    limits = (0.0, 1.0) if min(values) >= 0 and max(values) <= 1 else None
    return lines(panel.points, series, title=panel_title(r, panel), limits=limits, joined=panel.ordered)


def panel_title(r: Reproduction, panel: Panel) -> str:
    """The title of a panel: the common property of its groups, its only group's name, or the experiment's title."""
    alone = next(iter(panel.groups)) if len(panel.groups) == 1 else ""
    return ", ".join(filter(None, [alone, panel.title])) or r.title


def _table(r: Reproduction, panel: Panel) -> Table:
    """A table of one group with all details, or of several groups with one column each."""
    if len(panel.groups) > 1:
        shown: dict[str, list[object]] = {"": list(panel.points)}
        for name, rows in panel.groups.items():
            if any(row.paper is not None for row in rows):
                shown[f"{name}, paper"] = [row.printed for row in rows]
            shown[name] = [row.shown for row in rows]
        return Table(list(shown), list(zip(*shown.values())), panel_title(r, panel))
    (rows,) = panel.groups.values()
    judged = r.comparable or any(row.tolerance is not None for row in rows)
    judged = judged and any(row.paper is not None for row in rows)
    columns = ["", "Paper", "Ours", "From", "To", "Difference", "Verdict"]
    known = ([row.what, row.printed or None, row.ours, row.low, row.high, row.difference] for row in rows)
    told = [[*cells, row.verdict if judged else None] for cells, row in zip(known, rows)]
    return Table(columns, told, panel_title(r, panel) if panel.groups.keys() != {""} else "")


def _compared(r: Reproduction, row: Row) -> bool | None:
    """Whether a number agrees with the paper's; ``None`` if it should not be compared."""
    if row.difference is None or not (r.comparable or row.tolerance is not None):
        return None
    return row.verdict in ("equal", "paper inside our interval")


def _outcome(r: Reproduction) -> str:
    if not r.passed:
        return "what must hold does NOT"
    bound = any(c.required for c in r.claims) or any(row.tolerance is not None for row in r.rows)
    return "what must hold does" if bound else "–"
