"""Keep results here, draw and tabulate them: ``python results/build.py [DIR/SCALE/NAME/results.json ...]``.

Files that ``intertwine reproduce`` wrote are kept as ``SCALE/NAME.json``, without the paths of the machine that made
them. Of every file that is kept, writes ``SCALE/NAME.svg`` and the page ``SCALE/NAME.md``, and of all of them the index
``README.md``; the documentation shows them.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from intertwine._io import write_atomically
from intertwine.lab.experiments import (
    OLDER,
    SCALES,
    Map,
    Panel,
    Reproduction,
    Row,
    Setting,
    experiments,
    is_older,
    rejudged,
)
from intertwine.lab.experiments.plans import listed

HERE = Path(__file__).parent
_INTRODUCTION = """# Results

Every table and figure of both papers that was run here, with the paper's numbers where its text has them, its
statements checked, and how each was made. The scales `small` and `smoke` are other networks, fewer of them and less
training than the papers', and digits in place of CIFAR-10 where no network would train on a CPU: there only the
statements speak, not the numbers (mathematics is exact at any scale). CIFAR-10 is a **JPEG copy** (quality 75) of the
original images, which costs a few points of accuracy throughout.

The files in `results/` are what `intertwine reproduce` wrote; the pages and pictures are made from them by
`python results/build.py`, and every statement is judged from the numbers on its page when that is made. Numbers are
means, with 95 % intervals over independent networks or runs where there are enough of them. A statement *holds* where
the intervals exclude its opposite, *does not hold* where they exclude it, and *cannot be told* otherwise: without
intervals, or where the networks that it is about did not train (85 % test accuracy on digits, 75 % on CIFAR-10, unless
it says otherwise); it then says why, and which way the numbers point. Every statement is judged by itself, with
intervals that miss on one side in one case of forty: of statements that are only just false, one in forty would be said
to hold. A result that was made by older code than today's says so.
"""


def main(files: Sequence[str]) -> None:
    """Keep new results; write all pictures and the page."""
    for file in files:
        keep(Reproduction.load(file))
    found = kept()
    for scale, r in found:
        draw(r, HERE / scale / f"{r.name}.svg")
        if r.maps:
            draw_maps(r.maps, HERE / scale / f"{r.name}-maps.svg")
    for name, text in pages(found).items():
        write_atomically(HERE / name, lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"))


def keep(r: Reproduction) -> None:
    """Write a result here, its command without the places of data and files."""
    command = re.sub(r"(?<![\w.])/[^\s+]*", "PATH", str(r.facts.get("command", "")))
    replace(r, facts={**r.facts, "command": command}).save(HERE / r.scale / f"{r.name}.json")


def kept() -> list[tuple[str, Reproduction]]:
    """What is kept, the largest scale first, in the order of ``intertwine reproduce``."""
    found = []
    for scale in reversed(SCALES):
        for name in experiments():
            path = HERE / scale / f"{name}.json"
            if path.is_file():
                found.append((scale, rejudged(Reproduction.load(path))))
    return found


def pages(found: Sequence[tuple[str, Reproduction]]) -> dict[str, str]:
    """The index and a page for each result as Markdown, by file."""
    return {"README.md": index(found), **{f"{scale}/{r.name}.md": page(r) for scale, r in found}}


def index(found: Sequence[tuple[str, Reproduction]]) -> str:
    """What there is, by paper, with verdicts."""
    verdicts = Counter(c.verdict for _, r in found for c in r.statements)
    total = sum(verdicts.values())
    words = {"holds": "hold", "does not hold": "do not hold", "cannot be told": "cannot be told"}
    counts = ", ".join(f"{verdicts[verdict]} {said}" for verdict, said in words.items())
    parts = [_INTRODUCTION, f"Of {total} statements {counts}.\n"]
    for title, chosen in (
        ("Paper 1", lambda r: r.papers.startswith("v2")),
        ("Paper 2", lambda r: r.papers.startswith("paper 2")),
        ("Left open by the papers", lambda r: r.papers.startswith("left open")),
    ):
        rows = [[f"[{r.title}]({s}/{r.name}.md)", r.papers, _where(r), _verdict(r)] for s, r in found if chosen(r)]
        parts += [f"## {title}\n", table(["what", "papers", "scale", "verdict"], rows), ""]
    return "\n".join(parts)


def _where(r: Reproduction) -> str:
    """Scale and data."""
    data = str(r.facts.get("data", ""))
    return ", ".join(filter(None, [r.scale, {"cifar10": "CIFAR-10", "parquet": "CamVid"}.get(data, data)]))


def _verdict(r: Reproduction) -> str:
    return r.verdict + ("; **older than its code**" if OLDER in r.notes else "")


def page(r: Reproduction) -> str:
    """One experiment."""
    parts = [
        f"# {r.title}",
        f"[All results](../README.md) · {r.papers} · scale `{r.scale}` · [numbers as JSON]({r.name}.json)",
        f"**{r.verdict[:1].upper()}{r.verdict[1:]}.**",
    ]
    if r.claims:
        said = lambda c: c.verdict + f": {c.why}" * bool(c.why) + " (a check of the run, no statement)" * c.check
        rows = [[c.text, said(c), c.detail] for c in r.claims]
        parts.append(table(["statement", "here", "judged by"], rows))
    if any(panel.measured for panel in r.panels):
        parts.append(f"![{r.title}]({r.name}.svg)")
    if r.maps:
        parts.append(f"![{r.title}: maps]({r.name}-maps.svg)")
    parts += [folded(panel) if panel.measured else panel_table(panel) for panel in r.panels]
    parts.append("\n".join(f"- {note}" for note in r.notes))
    if ran := what_ran(r):
        lines = "\n".join(f"- {line}" for line in ran)
        parts.append(f'<details markdown="1"><summary>What ran</summary>\n\n{lines}\n\n</details>')
    facts = ", ".join(f"{key} {value}" for key, value in r.facts.items() if key != "command")
    command = f"\n\n`{r.facts['command']}`" if r.facts.get("command") else ""
    return "\n\n".join([*filter(None, parts), f"Made with: {facts}.{command}\n"])


def what_ran(r: Reproduction) -> list[str]:
    """The plan of a result of today's code: networks and jobs with their settings, without what varies among jobs."""
    if is_older(r):
        return []
    planned = experiments()[r.name].plan(Setting(cast(Any, r.scale)))
    return [line if line.startswith("train ") else line.partition("; ")[0] for line in listed(planned)]


def folded(panel: Panel) -> str:
    """Numbers that a picture shows already."""
    title = f"Numbers: {panel.title}" if panel.title else "Numbers"
    return f'<details markdown="1"><summary>{title}</summary>\n\n{panel_table(panel)}\n\n</details>'


def panel_table(panel: Panel) -> str:
    """Points down, groups across, the paper's numbers beside ours."""
    columns: dict[str, list[str]] = {panel.title: list(panel.points)}
    for name, rows in panel.groups.items():
        if any(row.paper is not None for row in rows):
            columns[f"{name} paper".strip()] = [row.printed for row in rows]
        columns[f"{name} ours".strip()] = [row.shown for row in rows]
    return table(list(columns), list(zip(*columns.values())))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    safe = lambda cells: "| " + " | ".join(str(c).replace("|", "&#124;") for c in cells) + " |"
    return "\n".join([safe(head), "|" + "---|" * len(head), *map(safe, rows)])


def draw(r: Reproduction, path: Path) -> None:
    """All panels that are series, side by side; the paper's numbers dashed."""
    import matplotlib

    matplotlib.use("svg")
    # The same picture from the same numbers, with letters as letters.
    matplotlib.rcParams.update({"svg.hashsalt": r.name, "svg.fonttype": "none"})
    from matplotlib import pyplot

    panels = [panel for panel in r.panels if panel.measured]
    if not panels:
        return
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(6 * columns, 4 * lines), squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.axis("off")
    for panel, ax in zip(panels, axes.flat):
        at = range(len(panel.points))
        for k, (name, rows) in enumerate(panel.groups.items()):
            shift = 0.0 if panel.ordered else (k - (len(panel.groups) - 1) / 2) * min(0.12, 0.7 / len(panel.groups))
            _series(ax, rows, name, shift, panel.ordered)
        ax.set_xticks(at, panel.points, rotation=60, ha="right", fontsize=7)
        ax.set_title(panel.title or (next(iter(panel.groups)) if len(panel.groups) == 1 else r.title), fontsize=9)
        ax.grid(alpha=0.3)
        if len(ax.get_legend_handles_labels()[0]) > 1:
            ax.legend(fontsize=7, framealpha=0.5)
    figure.tight_layout()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="svg", metadata={"Date": None}))
    pyplot.close(figure)


def draw_maps(maps: Sequence[Map], path: Path) -> None:
    """Layer-by-layer matrices side by side, the first layer at the lower left as in the papers."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": path.stem, "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(maps), figsize=(4 * len(maps), 4), squeeze=False)
    for one, ax in zip(maps, axes.flat):
        shown = ax.imshow(one.values, origin="lower", cmap="magma")
        at = range(len(one.layers))
        ax.set_xticks(at, one.layers, rotation=90, fontsize=5)
        ax.set_yticks(at, one.layers, fontsize=5)
        ax.set_title(one.title, fontsize=8)
        figure.colorbar(shown, ax=ax, shrink=0.7)
    figure.tight_layout()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="svg", metadata={"Date": None}))
    pyplot.close(figure)


def _series(ax: Any, rows: Sequence[Row], name: str, shift: float, ordered: bool) -> None:
    """One group: a line with a band where points have an order, else points with bars; the paper's numbers beside."""
    at = [k + shift for k in range(len(rows))]
    ours = [row.ours for row in rows]
    style = "-o" if ordered else "o"
    (line,) = ax.plot(at, ours, style, markersize=3 if ordered else 5, label=name or "ours")
    if all(row.low is not None and row.high is not None for row in rows):
        low, high = [row.low for row in rows], [row.high for row in rows]
        if ordered:
            ax.fill_between(at, low, high, alpha=0.15, lw=0)
        else:
            ax.vlines(at, low, high, color=line.get_color(), lw=1)
    known = [(x, row.paper) for x, row in zip(at, rows) if row.paper is not None]
    if known:
        ax.plot(*zip(*known), "--" if ordered else "_", color=line.get_color(), lw=1, markersize=12,
                label=f"{name}, paper".lstrip(", "))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
